"""Answers that are one or two steps behind the best hit: `which package has what is on port 631`.

The hit is what a question describes, and has a field that names what it asks for, as connected has
it: a port its unit, the unit its package.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Final

from opdbus import kinds, vocabulary
from opdbus.index import connected, forms
from opdbus.index.catalogue import thing_of
from opdbus.index.connected import UNIT
from opdbus.index.memory import Memory
from opdbus.index.second_stage import Found
from opdbus.index.store import Content, Entry
from opdbus.index.view import Found as Met
from opdbus.kinds import Kinds
from opdbus.state.object import Thing

# What is asked for so is not the thing itself, but what its fields name.
_ASKED: Final = ("service", "package", "timer")
_OF_UNITS: Final = "unit file"
_STEPS: Final = 2
_STARTING: Final = re.compile(
    r"(?:what|which [^\W\d_]+) (?:starts|triggers|activates|launches|kicks off|wakes)\b",
    re.IGNORECASE,
)
_STARTED_BY: Final = "triggered_by"
# It stands before the hit that it was found by, and is as likely right.
_MORE: Final = 1e-4


async def order(
    memory: Memory,
    question: str,
    found: Found,
    contents: Mapping[int, Content],
    within: Met | None,
) -> Found:
    """Put what a question asks for before the best hit, if that only leads to it.

    Only what is `within` some entries is asked for.
    """
    if not found or found[0][0].id not in contents:
        return found
    best, score = found[0]
    answer = await _answer(memory, question, thing_of(best))
    if answer is None or (within is not None and answer.id not in within.ids):
        return found
    first = answer, replace(score, total=score.total + _MORE)
    return [first, *(row for row in found if thing_of(row[0]) != thing_of(answer))]


async def _answer(memory: Memory, question: str, thing: Thing) -> Entry | None:
    """Return the entry of what is asked for, by way of a thing."""
    if _STARTING.match(question) and not vocabulary.asked(question):
        return next(_there(memory, await _started_by(memory, thing)), None)
    asked = forms.of(question).asked
    sorts = kinds.of_thing(thing)[0]
    subject = asked.subject & reduce(or_, map(_sorts, _ASKED)) if sorts & asked.named else 0
    if thing[:2] == UNIT:
        subject |= asked.subject & _sorts(_OF_UNITS)
    if not subject or sorts & asked.subject:
        return None
    reached = [thing]
    for _ in range(_STEPS):
        reached = [other for each in reached for other in await connected.named(memory, each)]
        meant = [each for each in reached if kinds.of_thing(each)[0] & subject]
        if entry := next(_there(memory, meant), None):
            return entry
    return None


async def _started_by(memory: Memory, thing: Thing) -> list[Thing]:
    names = (await connected.fields_of(memory, thing)).get(_STARTED_BY)
    if thing[:2] != UNIT or not isinstance(names, list):
        return []
    return [Thing(*UNIT, name) for name in names if isinstance(name, str)]


def _there(memory: Memory, things: list[Thing]) -> Iterator[Entry]:
    """Yield the first entries of things that there are."""
    has, about = memory.catalogue.has, memory.catalogue.about
    return (about(each)[0] for each in things if has(each))


def _sorts(phrase: str) -> Kinds:
    return kinds.asked(phrase, frozenset()).named
