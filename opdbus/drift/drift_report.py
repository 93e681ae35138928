"""Drift as it is reported: order and selection of objects, and the D-Bus signal of a transition."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from opdbus.drift.field import MISSING, Path, Severity
from opdbus.drift.transition_filter import DriftState, DriftTransition
from opdbus.index.query.query_terms import STOP_WORDS
from opdbus.index.query.question_conditions import MAX_CHARACTERS
from opdbus.index.state_store.events import Drift, Event
from opdbus.language import kinds, vocabulary
from opdbus.language.vocabulary import stem
from opdbus.platform.name_lists import shorten
from opdbus.state.fields import split
from opdbus.state.object import ObjectId, matches

Ranked = Sequence[tuple[ObjectId, DriftState]]

# Limits of a signal: number of fields, and characters of each field's name.
MAX_FIELDS: Final = 64
MAX_FIELD: Final = 200


async def rank_drifted(counted: Mapping[ObjectId, DriftState]) -> Ranked:
    """Return drifted objects, the worst first, with the fields compared since the start."""
    rows = list(counted.items())

    def rank(row: tuple[ObjectId, DriftState]) -> tuple[object, ...]:
        object_id, drifted = row
        has_failed = any(str(one.observed).startswith("failed") for one in drifted.fields)
        return -drifted.severity, not has_failed, drifted.what != "drift", object_id

    def work() -> Ranked:
        known = ((t, d, [one for one in d.fields if one.is_known]) for t, d in rows)
        return sorted(((t, replace(d, fields=some)) for t, d, some in known if some), key=rank)

    # on a thread: 100,000 objects take 0.1 s
    return await asyncio.to_thread(work)


def select_drifted(rows: Ranked, wanted: Mapping[str, str], severity: str, what: str) -> Ranked:
    """Return the rows of at least a severity and of a class; an empty class means all.

    `wanted` has values of plugin, kind and name.
    """
    least = Severity[severity.upper()]
    if not wanted and not what and least == Severity.INFO:
        return rows
    return [
        (object_id, drifted)
        for object_id, drifted in rows
        if drifted.severity >= least and what in {"", drifted.what} and matches(object_id, wanted)
    ]


def order_by_question(rows: Ranked, question: str) -> Ranked:
    """Order rows by a question: objects of its categories first, then by matching words.

    Where it asks for what does not exist, missing objects come before others of a category. No row
    is left out: a word may name a category that is not meant. Only the first
    query_parser.MAX_CHARACTERS of a question are read.
    """
    question = question[:MAX_CHARACTERS]
    asked, words = kinds.requested(question, STOP_WORDS).named, _stems(question)
    is_missing = any(bits & _missing_bit() for bits in vocabulary.values_in(question))

    def rank(row: tuple[ObjectId, DriftState]) -> tuple[int, bool, int]:
        object_id, drifted = row
        fields = (f"{one.name} {one.declared} {one.observed}" for one in drifted.fields)
        own = _stems(" ".join((object_id.kind, object_id.name, *fields)))
        is_last = is_missing and not any(one.is_absence for one in drifted.fields)
        return -bool(kinds.of_object(object_id)[0] & asked), is_last, -len(words & own)

    return sorted(rows, key=rank)


@cache
def _missing_bit() -> vocabulary.Traits:
    """Return the bit of the row of the vocabulary for what does not exist."""
    first = (row.phrases.partition("|")[0] for row in vocabulary.rows())
    return next(1 << number for number, phrase in enumerate(first) if phrase == MISSING)


def _stems(text: str) -> set[str]:
    return {stem(word) for word in split(text) if word not in STOP_WORDS}


def announce(
    notify: Callable[[Event], None], threshold: Severity, transition: DriftTransition
) -> None:
    """Report a transition to `notify` unless it is below the threshold."""
    if event := drift_event(transition, threshold):
        notify(event)


def drift_event(transition: DriftTransition, threshold: Severity) -> Drift | None:
    """Return the event of a transition, None if it changes nothing at or above the threshold.

    Fields that begin, end or change their severity count. If no field remains, the event is
    `healed` or `undeclared`.
    """
    before, after = (
        _severities(transition.before, threshold),
        _severities(transition.after, threshold),
    )
    was, now = transition.before, transition.after
    if now and after and (after != before or (was and was.what != now.what)):
        names = [shorten(field.name, MAX_FIELD) for field in now.fields[:MAX_FIELDS]]
        return Drift(transition.object_id, now.what, now.severity.word, names)
    if was and before and not after:
        what = "healed" if transition.healed or not transition.dropped else "undeclared"
        return Drift(transition.object_id, what, was.severity.word, [])
    return None


def _severities(drifted: DriftState | None, threshold: Severity) -> dict[Path, Severity]:
    fields = drifted.fields if drifted else ()
    return {field.path: field.severity for field in fields if field.severity >= threshold}
