"""Answers about the whole host: what is wrong with it, and what no observer reports."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from opdbus.config import SEVERITIES
from opdbus.drift.tracker import Tracker
from opdbus.drift.transition_filter import DriftState
from opdbus.index.query import question_patterns, state_questions
from opdbus.index.query.state_questions import (
    FAILED,
    FULL,
    FULL_PERCENT,
    RUNNING,
    WRONG,
    StateQuestion,
)
from opdbus.index.search import state_lists
from opdbus.index.search.verdicts import Verdict
from opdbus.index.state_store.state_store import StateStore
from opdbus.language import kinds, vocabulary
from opdbus.platform import name_lists
from opdbus.state.object import FILE, UNIT, ObjectId

# Name, state, number of objects, and reason of an observer.
Status = tuple[str, str, int, str]
_WELL: Final = frozenset(("up", "starting"))
_MOST_NAMES: Final = 5
# Fields that only an observer has values of.
_RUNTIME: Final = frozenset(("active_state", "sub_state", "result", "state"))
_UNITS: Final = "service|timer|unit"


async def find_faults(
    memory: StateStore, drifts: Tracker, statuses: Sequence[Status], question: str
) -> Verdict | None:
    """Return what is wrong with the host; None if a question does not ask that.

    That is failed units, differences from the state file, full file systems, and observers that
    failed. Observers that are absent are named, but nothing need be wrong with them.
    """
    asked = state_questions.read_question(question)
    if asked is None or asked.state != WRONG:
        return None
    failed = await state_lists.failed_units(memory)
    full = await state_lists.full_disks(memory, StateQuestion(FULL, percent=FULL_PERCENT))
    drifted = await drifts.report({}, SEVERITIES[0], "")
    faults = [found.text for found in (failed, full) if found and found.objects]
    faults[1:1] = [describe_drift(drifted)] if drifted else []
    broken = [name for name, state, *_ in statuses if state == FAILED]
    if broken:
        faults.append(f"observers that failed: {name_lists.join_first(broken, _MOST_NAMES)}")
    absent = [name for name, state, *_ in statuses if state not in _WELL and state != FAILED]
    absent += [] if statuses else ["this host"]
    text = "; ".join(faults) or "nothing that op-dbus observes is wrong"
    if absent:
        text += f"; not observed: {name_lists.join_first(absent, _MOST_NAMES)}"
    if asked.is_whether:
        text = f"{'yes' if bool(faults) != asked.is_well else 'no'}: {text}"
    objects = [*(failed.objects if failed else ()), *(object_id for object_id, _ in drifted)]
    objects += full.objects if full else ()
    nearest = [found.nearest for found in (failed, full) if found and found.nearest]
    return Verdict(
        text,
        objects=tuple(dict.fromkeys(objects)) or tuple(nearest[:1]),
        is_whole=True,
        is_none=not objects,
    )


def describe_drift(drifted: Sequence[tuple[ObjectId, DriftState]]) -> str:
    """Return how many objects are other than declared, by severity, the worst first."""
    counts = Counter(state.severity.word for _, state in drifted)
    number = len(drifted)
    of = ", ".join(f"{counts[word]} {word}" for word in reversed(SEVERITIES) if counts[word])
    what = "object is" if number == 1 else "objects are"
    return f"{number:,} {what} other than declared ({of})"


async def find_unreported(
    memory: StateStore, why_not: Callable[[tuple[str, str]], str], question: str
) -> Verdict | None:
    """Return that no observer reports units, where a question asks which are in some state.

    None if something observes units, or none is declared: then they are found as they are.
    """
    every = memory.catalogue.view.source_kinds.copy()
    sources = {source for source, *kind_id in every if tuple(kind_id) == UNIT}
    if sources != {FILE} or not await asyncio.to_thread(_asks_for_running_units, question):
        return None
    reason = why_not(UNIT)
    if not reason:
        return None
    wanted = {"plugin": UNIT[0], "kind": UNIT[1]}
    declared = await asyncio.to_thread(memory.catalogue.object_ids, wanted)
    text = f"no observer reports the state of units: {reason}; those declared may not be so"
    return Verdict(text, objects=tuple(declared[:1]), is_whole=True, is_none=True)


def _asks_for_running_units(question: str) -> bool:
    asked = state_questions.read_question(question)
    if asked:
        return asked.state in {FAILED, RUNNING}
    form = question_patterns.of(question)
    fields = {name for bits in form.values for name in vocabulary.fields(bits)}
    is_of_units = bool(form.holders & kinds.of_phrases(_UNITS))
    return form.is_pure and is_of_units and not fields.isdisjoint(_RUNTIME)
