"""Order and selection of drifted objects."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from opdbus.drift.field import Severity
from opdbus.drift.transition_filter import Drifted
from opdbus.index.query.query_parser import MAX_CHARACTERS
from opdbus.index.query.query_terms import STOP_WORDS
from opdbus.language import kinds
from opdbus.language.vocabulary import stem
from opdbus.state.fields import split
from opdbus.state.object import ObjectId, matches

Ranked = Sequence[tuple[ObjectId, Drifted]]


async def ranked(counted: Mapping[ObjectId, Drifted]) -> Ranked:
    """Return drifted objects, the worst first, with the fields compared since the start."""
    # on a thread: 100,000 objects take 0.1 s
    return await asyncio.to_thread(_ranked, list(counted.items()))


def _ranked(rows: Ranked) -> Ranked:
    known = ((t, d, [one for one in d.fields if one.is_known]) for t, d in rows)
    return sorted(((t, replace(d, fields=some)) for t, d, some in known if some), key=_rank)


def chosen(rows: Ranked, wanted: Mapping[str, str], severity: str, what: str) -> Ranked:
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


def by_question(rows: Ranked, question: str) -> Ranked:
    """Order rows by a question: objects of its categories first, then by matching words.

    No row is left out: a word may name a category that is not meant. Only the first
    query_parser.MAX_CHARACTERS of a question are read.
    """
    question = question[:MAX_CHARACTERS]
    asked, words = kinds.requested(question, STOP_WORDS).named, _stems(question)

    def rank(row: tuple[ObjectId, Drifted]) -> tuple[int, int]:
        object_id, drifted = row
        fields = (f"{one.name} {one.declared} {one.observed}" for one in drifted.fields)
        own = _stems(" ".join((object_id.kind, object_id.name, *fields)))
        return -bool(kinds.of_object(object_id)[0] & asked), -len(words & own)

    return sorted(rows, key=rank)


def _stems(text: str) -> set[str]:
    return {stem(word) for word in split(text) if word not in STOP_WORDS}


def _rank(row: tuple[ObjectId, Drifted]) -> tuple[object, ...]:
    object_id, drifted = row
    has_failed = any(str(one.observed).startswith("failed") for one in drifted.fields)
    return -drifted.severity, not has_failed, drifted.what != "drift", object_id
