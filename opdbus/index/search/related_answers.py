"""Answers one or two connections from the best hit: `which package has what is on port 631`.

The question describes the hit and asks for an object that the hit's fields name (see
`connections`): the unit of a port, the package of a unit. Or it asks for objects that name the hit:
`what needs postgresql`.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from opdbus.index.catalogue.entry_view import EntryRefs
from opdbus.index.changes import connections
from opdbus.index.database.store import Content, Entry
from opdbus.index.query import question_patterns
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.second_stage import RankedHits
from opdbus.language import kinds, vocabulary
from opdbus.state.fields import split
from opdbus.state.object import UNIT, ObjectId

# Kinds asked for that mean the object named by the hit's fields; the second only if it is a unit.
_ASKED: Final = "service|package|timer"
_OF_UNITS: Final = "unit file"
_STEPS: Final = 2
_STARTING: Final = re.compile(
    r"(?:what|which [^\W\d_]+) (?:starts|triggers|activates|launches|kicks off|wakes)\b",
    re.IGNORECASE,
)
_STARTED_BY: Final = "triggered_by"
_UNITS: Final = r"(?:what|which (?:unit|service|timer|socket|mount)s?)"
_NEEDING: Final = r"(?:needs?|requires?|depends? (?:up)?on|rel(?:y|ies) on)"


class UnitQuestion(NamedTuple):
    """A pattern, the unit fields that it reads, and a question that has it (tested).

    The fields are the named unit's own (`is_own`) or those of the units that name it.
    """

    pattern: re.Pattern[str]
    fields: Sequence[str]
    example: str
    is_own: bool = False


UNIT_QUESTIONS: Final = (
    UnitQuestion(
        re.compile(rf"{_UNITS} {_NEEDING} (?P<unit>.+)", re.IGNORECASE),
        ("requires", "wants"),
        "what needs postgresql",
    ),
    UnitQuestion(
        re.compile(rf"{_UNITS} does (?P<unit>.+) {_NEEDING}", re.IGNORECASE),
        ("requires", "wants"),
        "which services does nextcloud need",
        is_own=True,
    ),
    UnitQuestion(
        re.compile(rf"{_UNITS} (?:is )?start(?:s|ed)? after (?P<unit>.+)", re.IGNORECASE),
        ("after",),
        "what starts after the network",
    ),
)
# Hits among which the unit that a question names is looked for.
_BEST: Final = 5
# Score difference above the hit: enough to rank before it at the same confidence.
_MORE: Final = 1e-4
MOST: Final = 5


async def add_related(
    memory: StateStore,
    question: str,
    found: RankedHits,
    contents: Mapping[int, Content],
    within: EntryRefs | None,
) -> RankedHits:
    """Put the related objects that a question asks for before the best hit.

    With `within`, only objects of these entries.
    """
    if not found or found[0][0].id not in contents:
        return found
    best, score = found[0]
    object_ids = await _related_units(memory, question, found)
    if not any(map(memory.catalogue.has, object_ids)):
        object_ids = (await _related(memory, question, best.identity.object_id))[:1]
    entries = [
        memory.catalogue.representative_of(each)
        for each in object_ids
        if memory.catalogue.has(each)
    ]
    answers = [each for each in entries if within is None or each.id in within.ids][:MOST]
    first = [
        (each, score._replace(total=score.total + _MORE * (len(answers) - place)))
        for place, each in enumerate(answers)
    ]
    known = {each.identity.object_id for each in answers}
    return [*first, *(row for row in found if row[0].identity.object_id not in known)]


async def _related_units(
    memory: StateStore, question: str, found: RankedHits
) -> Sequence[ObjectId]:
    """Return the units that name the unit in a question, or that its fields name."""
    asked = question.strip(" ?.!")
    for pattern, fields, _, is_own in UNIT_QUESTIONS:
        match = pattern.fullmatch(asked)
        if not match or vocabulary.values_in(question):
            continue
        unit = next((each for each, _ in found[:_BEST] if _is_called(each, match["unit"])), None)
        if unit is None:
            return []
        object_id = unit.identity.object_id
        if is_own:
            own = await connections.fields_of(memory, object_id)
            return connections.units_in(own, *fields)
        naming = [await connections.naming(memory, field, object_id) for field in fields]
        return [*dict.fromkeys(chain.from_iterable(naming))]
    return []


def _is_called(entry: Entry, words: str) -> bool:
    """Return whether words name a unit: `the sensor recorder` for sensor-recorder.service."""
    object_id = entry.identity.object_id
    asked, name = split(words), split(object_id.name)
    asked = asked[asked[:1] == ("the",) :]
    suffix = name[-1:]
    return object_id[:2] == UNIT and (asked if asked[-1:] == suffix else (*asked, *suffix)) == name


async def _related(memory: StateStore, question: str, object_id: ObjectId) -> Sequence[ObjectId]:
    """Return the objects asked for that are reached from an object, and exist; [] without any."""
    if _STARTING.match(question) and not vocabulary.values_in(question):
        fields = await connections.fields_of(memory, object_id)
        names = fields.get(_STARTED_BY) if object_id[:2] == UNIT else None
        names = names if isinstance(names, list) else []
        units = [ObjectId(*UNIT, name) for name in names if isinstance(name, str)]
        return [*filter(memory.catalogue.has, units)]
    asked, own = question_patterns.of(question).asked, kinds.of_object(object_id)[0]
    subject = asked.subject & kinds.of_phrases(_ASKED) if own & asked.named else 0
    if object_id[:2] == UNIT:
        subject |= asked.subject & kinds.of_phrases(_OF_UNITS)
    if not subject or own & asked.subject:
        return []
    reached = [object_id]
    for _ in range(_STEPS):
        reached = [other for each in reached for other in await connections.named(memory, each)]
        meant = [one for one in reached if kinds.of_object(one)[0] & subject]
        if there := [*filter(memory.catalogue.has, meant)]:
            return there
    return []
