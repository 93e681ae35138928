"""Answers one or two connections from the best hit: `which package has what is on port 631`.

The question describes the hit and asks for an object that the hit's fields name (see
`connections`): the unit of a port, the package of a unit. Or it asks for objects that name the hit:
`what needs postgresql`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import or_
from typing import Final

from opdbus.index.catalogue.catalogue import object_id_of
from opdbus.index.catalogue.entry_view import EntryRefs as Met
from opdbus.index.changes import connections
from opdbus.index.changes.connections import UNIT
from opdbus.index.database.store import Content, Entry
from opdbus.index.query import question_patterns
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.second_stage import Found
from opdbus.language import kinds, vocabulary
from opdbus.language.kinds import Kinds
from opdbus.state.fields import split
from opdbus.state.object import ObjectId

# Kinds asked for that mean the object named by the hit's fields.
_ASKED: Final = ("service", "package", "timer")
_OF_UNITS: Final = "unit file"
_STEPS: Final = 2
_STARTING: Final = re.compile(
    r"(?:what|which [^\W\d_]+) (?:starts|triggers|activates|launches|kicks off|wakes)\b",
    re.IGNORECASE,
)
_STARTED_BY: Final = "triggered_by"
# Question patterns, the unit fields that each reads, and whether the fields are the named unit's
# own (`what does ... need`) or those of the units that name it.
_UNITS: Final = r"(?:what|which (?:unit|service|timer|socket|mount)s?)"
_NEEDING: Final = r"(?:needs?|requires?|depends? (?:up)?on|rel(?:y|ies) on)"
_REQUIRED: Final = ("requires", "wants")
_FORMS: Final[Sequence[tuple[re.Pattern[str], Sequence[str], bool]]] = tuple(
    (re.compile(pattern, re.IGNORECASE), fields, does)
    for pattern, fields, does in (
        (rf"{_UNITS} {_NEEDING} (?P<unit>.+)", _REQUIRED, False),
        (rf"{_UNITS} does (?P<unit>.+) {_NEEDING}", _REQUIRED, True),
        (rf"{_UNITS} (?:is )?start(?:s|ed)? after (?P<unit>.+)", ("after",), False),
    )
)
# Hits among which the unit that a question names is looked for.
_BEST: Final = 5
# Score difference above the hit: enough to rank before it at the same confidence.
_MORE: Final = 1e-4
MOST: Final = 5


async def order(
    memory: StateStore,
    question: str,
    found: Found,
    contents: Mapping[int, Content],
    within: Met | None,
) -> Found:
    """Put the related objects that a question asks for before the best hit.

    With `within`, only objects of these entries.
    """
    if not found or found[0][0].id not in contents:
        return found
    best, score = found[0]
    answers = await _of_units(memory, question, found)
    if not answers and (answer := await _answer(memory, question, object_id_of(best))):
        answers = [answer]
    answers = [each for each in answers if within is None or each.id in within.ids][:MOST]
    first = [
        (each, replace(score, total=score.total + _MORE * (len(answers) - place)))
        for place, each in enumerate(answers)
    ]
    known = set(map(object_id_of, answers))
    return [*first, *(row for row in found if object_id_of(row[0]) not in known)]


async def _of_units(memory: StateStore, question: str, found: Found) -> list[Entry]:
    """Return the entries of units that name the unit in a question, or that its fields name."""
    asked = question.strip(" ?.!")
    for form, fields, does in _FORMS:
        if not (match := form.fullmatch(asked)) or vocabulary.asked(question):
            continue
        unit = next((each for each, _ in found[:_BEST] if _is_called(each, match["unit"])), None)
        if unit is None:
            return []
        object_id = object_id_of(unit)
        if does:
            object_ids = connections.units_in(
                await connections.fields_of(memory, object_id), *fields
            )
        else:
            naming = [await connections.naming(memory, field, object_id) for field in fields]
            object_ids = list(dict.fromkeys(chain.from_iterable(naming)))
        return list(_there(memory, object_ids))
    return []


def _is_called(entry: Entry, words: str) -> bool:
    """Return whether words name a unit: `the sensor recorder` for sensor-recorder.service."""
    object_id = object_id_of(entry)
    said, name = split(words), split(object_id.name)
    said = said[said[:1] == ("the",) :]
    kind = name[-1:]
    return object_id[:2] == UNIT and (said if said[-1:] == kind else (*said, *kind)) == name


async def _answer(memory: StateStore, question: str, object_id: ObjectId) -> Entry | None:
    """Return the entry of the object asked for that is reached from an object, None if none is."""
    if _STARTING.match(question) and not vocabulary.asked(question):
        return next(_there(memory, await _started_by(memory, object_id)), None)
    asked = question_patterns.of(question).asked
    sorts = kinds.of_object(object_id)[0]
    subject = asked.subject & reduce(or_, map(_sorts, _ASKED)) if sorts & asked.named else 0
    if object_id[:2] == UNIT:
        subject |= asked.subject & _sorts(_OF_UNITS)
    if not subject or sorts & asked.subject:
        return None
    reached = [object_id]
    for _ in range(_STEPS):
        reached = [other for each in reached for other in await connections.named(memory, each)]
        meant = [each for each in reached if kinds.of_object(each)[0] & subject]
        if entry := next(_there(memory, meant), None):
            return entry
    return None


async def _started_by(memory: StateStore, object_id: ObjectId) -> list[ObjectId]:
    names = (await connections.fields_of(memory, object_id)).get(_STARTED_BY)
    if object_id[:2] != UNIT or not isinstance(names, list):
        return []
    return [ObjectId(*UNIT, name) for name in names if isinstance(name, str)]


def _there(memory: StateStore, object_ids: list[ObjectId]) -> Iterator[Entry]:
    """Yield the first entry of each object that exists."""
    return (memory.catalogue.first(each) for each in object_ids if memory.catalogue.has(each))


def _sorts(phrase: str) -> Kinds:
    return kinds.requested(phrase, frozenset()).named
