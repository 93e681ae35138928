"""Answers to questions for all objects in a bad state, from observed values."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from opdbus.index.query import condition_matching, state_questions
from opdbus.index.query.state_questions import FAILED, FULL, StateQuestion
from opdbus.index.search import verdicts
from opdbus.index.search.verdicts import Found, Verdict
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform import name_lists
from opdbus.state import presence
from opdbus.state.conditions import parse
from opdbus.state.object import UNIT, Json, ObjectId

_MOUNT: Final = ("mounts", "mount")
_USED: Final = ("used_percent", "inodes_used_percent")
# Objects that an answer names, and that are read.
_MOST_NAMES: Final = 5
_MOST_READ: Final = 1000
# Nouns of units that stand for a type of units: its suffix.
_SUFFIXES: Final[Mapping[str, str]] = {
    "service": ".service",
    "daemon": ".service",
    "timer": ".timer",
    "socket": ".socket",
    "mount": ".mount",
}


class StateList(NamedTuple):
    """The objects in a bad state, the answer in words, and their sources.

    `nearest` is an object that was looked at, where none is in that state.
    """

    objects: Sequence[ObjectId]
    text: str
    sources: frozenset[str]
    nearest: ObjectId | None = None


async def find_state_verdict(memory: StateStore, question: str) -> Verdict | None:
    """Return the answer to a question for all failed units, or full file systems.

    None if it is no such question, or nothing on this host observes their state.
    """
    asked = state_questions.read_question(question)
    if asked is None or asked.state not in {FAILED, FULL}:
        return None
    found = await (
        failed_units(memory, asked.noun) if asked.state == FAILED else full_disks(memory, asked)
    )
    if found is None:
        return None
    objects = found.objects or ([found.nearest] if found.nearest else [])
    word = ("yes: " if found.objects else "no: ") if asked.is_whether else ""
    return Verdict(
        f"{word}{found.text}",
        found.sources,
        objects=tuple(objects),
        is_whole=True,
        is_none=not found.objects,
    )


async def failed_units(memory: StateStore, noun: str = "unit") -> StateList | None:
    """Return the units that are failed; None if none is and no observer lists units."""
    suffix = _SUFFIXES.get(noun, "")
    found = await _observed(memory, "plugin=systemd, kind=unit, active_state=failed")
    found = [one for one in found if one.object_id.name.endswith(suffix)]
    sources = verdicts.sources_of_kind(memory, UNIT)
    if found:
        names = name_lists.join_first([one.object_id.name for one in found], _MOST_NAMES)
        verb = "is" if len(found) == 1 else "are"
        text = f"{_count(len(found), noun)} {verb} failed: {names}"
        return StateList([one.object_id for one in found], text, _sources(found))
    if not sources:
        return None
    of_units = {"plugin": UNIT[0], "kind": UNIT[1]}
    units = await asyncio.to_thread(memory.catalogue.object_ids, of_units)
    nearest = next((one for one in units if one.name.endswith(suffix)), None)
    return StateList([], f"no {noun} is failed", sources, nearest)


async def full_disks(memory: StateStore, asked: StateQuestion) -> StateList | None:
    """Return the file systems that are full, the fullest first; None if none is observed."""
    found = await _observed(memory, "plugin=mounts, kind=mount, used_percent~''")
    rows = sorted(((_used(one.fields), one) for one in found), key=lambda row: -row[0])
    if not rows:
        return None
    state = "full" if asked.percent == state_questions.FULL_PERCENT else "nearly full"
    taken = f"{state} (taken as {_USED[0]} >= {asked.percent})"
    sources = _sources(found)
    if full := [row for row in rows if row[0] >= asked.percent]:
        verb = "is" if len(full) == 1 else "are"
        text = f"{_count(len(full), 'file system')} {verb} {taken}: {_percentages(full)}"
        return StateList([one.object_id for _, one in full], text, sources)
    text = f"no file system is {taken}: the fullest is {_percentages(rows[:1])}"
    return StateList([], text, sources, rows[0][1].object_id)


def _percentages(rows: Sequence[tuple[float, Found]]) -> str:
    texts = [f"{one.object_id.name} {used:g}%" for used, one in rows]
    return name_lists.join_first(texts, _MOST_NAMES)


def _used(fields: Mapping[str, Json]) -> float:
    """Return the larger of the percentages of space and of inodes that are used."""
    values = (fields.get(name) for name in _USED)
    return max((v for v in values if isinstance(v, int | float)), default=0)


async def _observed(memory: StateStore, where: str) -> list[Found]:
    """Return the observed objects that meet conditions and are there, in order."""
    object_ids = sorted(await condition_matching.object_ids(memory, parse(where)))[:_MOST_READ]
    read = [await verdicts.read_observed(memory, one) for one in object_ids]
    there = (one for one in read if one and one.sources)
    return [one for one in there if one.fields.get(presence.MISSING) is not True]


def _sources(found: Sequence[Found]) -> frozenset[str]:
    return frozenset().union(*(one.sources for one in found))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
