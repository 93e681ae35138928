"""Query parsing: takes conditions (`state:failed`, `size>5`) and comparisons (`over 5 GB`) out."""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Final, NamedTuple

from opdbus.engine.batching import Rank
from opdbus.errors import ModelError, OpDbusError, ProviderError
from opdbus.index.catalogue.entry_view import NOTHING, EntryRefs
from opdbus.index.database.store import Store
from opdbus.index.query import condition_matching, constraints, spelling
from opdbus.index.query.constraints import DateConstraint
from opdbus.index.query.question_conditions import find_conditions
from opdbus.index.query.spelling import Correction
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.second_stage import Vector
from opdbus.state.conditions import Condition
from opdbus.state.object import Json

# A longer question is a document, whose spelling is not corrected.
_MOST_SPELT: Final = 1000
# A word that every model has as a single token.
_PLAIN: Final = "a"
_DIGIT = re.compile(r"\d")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?))?")
# Dates are compared of at most this many objects.
_MOST_DATED: Final = 5000


class ComparedValue(NamedTuple):
    """The words of a comparison in a question, and the entries that meet it."""

    words: str
    entries: EntryRefs


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A question's remaining words, and the conditions and comparisons taken out of it.

    Every hit must meet the conditions; a comparison only boosts the entries that meet it.
    """

    words: str
    conditions: tuple[Condition, ...] = ()
    compared: tuple[ComparedValue, ...] = ()
    corrected: tuple[Correction, ...] = ()


def now() -> datetime:
    """Return the present time in UTC, with which dates are compared."""
    return datetime.now(UTC)


async def parse_query(memory: StateStore, question: str) -> ParsedQuery:
    """Take conditions and comparisons out of a question, if objects have the fields.

    Conditions are those of `question_conditions`.
    """
    conditions: list[Condition] = []
    words = question
    for asked in reversed(find_conditions(question)):
        probe = asked.probe
        if not probe or len((await condition_matching.found(memory, [probe], only_first=True)).ids):
            conditions.insert(0, asked.condition)
            words = words[: asked.start] + words[asked.end :]
    rest, compared = words, list[ComparedValue]()
    times = constraints.find_times(words)
    for one in sorted([*constraints.find_comparisons(words), *times], reverse=True):
        met = [await condition_matching.found(memory, [meaning]) for meaning in one.meanings]
        either = reduce(EntryRefs.and_also, met, NOTHING)
        if len(either.ids):
            compared.append(ComparedValue(rest[one.start : one.end], either))
            # the digits of a clock time stay: a schedule has them in its text
            if one not in times or not _DIGIT.search(rest, one.start, one.end):
                rest = rest[: one.start] + rest[one.end :]
    for dated in constraints.find_dates(rest, now()):
        either = await _having_date(memory, dated)
        if len(either.ids):
            compared.append(ComparedValue(dated.words, either))
    return ParsedQuery(rest if rest.strip() else words, (*conditions,), (*compared,))


async def embed_question(vectors: ObjectVectors, question: str, priority: Rank) -> Vector | None:
    """Return the vector of a question, None without a working engine."""
    try:
        return await vectors.ask(question, priority)
    except OpDbusError as error:
        if isinstance(error, ModelError | ProviderError) or vectors.serving.phase.error:
            return None
        raise


async def correct_query(vectors: ObjectVectors, asked: ParsedQuery) -> ParsedQuery:
    """Replace words that no object has by likely spellings: see `spelling`.

    Where a model is loaded, a word that it has as one token is not taken for a typing error.
    """
    memory, model = vectors.memory, vectors.serving.phase.embedder

    def correct(store: Store) -> list[Correction]:
        words = asked.words[:_MOST_SPELT]
        found = spelling.find_compounds(store, words, memory.catalogue.named)
        words = spelling.apply_corrections(words, found)
        missing = wrong = spelling.unknown_words(store, words)
        if missing and model:
            plain, *counts = model.splitter.count([_PLAIN, *missing])
            wrong = [word for word, count in zip(missing, counts, strict=True) if count > plain]
        lookup = memory.words.lookup
        more = spelling.corrections(store, words, missing, wrong, lookup) if missing else []
        return [*found, *more]

    found = await memory.archive.read(correct)
    words = spelling.apply_corrections(asked.words, found)
    return replace(asked, words=words, corrected=tuple(found))


async def _having_date(memory: StateStore, asked: DateConstraint) -> EntryRefs:
    """Return the entries of objects with a date in the range."""
    unread = memory.fields.unread()
    # an object that the index does not cover yet may have any of the fields
    is_read = unread.after >= unread.last and not unread.ids
    names = [name for name in asked.fields if not is_read or memory.fields.index.knows(name)]
    having = [
        await condition_matching.object_ids(memory, [Condition(name, "~", "-")]) for name in names
    ]
    object_ids = sorted(frozenset().union(*having))[:_MOST_DATED]
    found = await condition_matching.values(memory, object_ids, asked.fields)

    def is_in_range(value: Json) -> bool:
        """Return whether a value begins with an ISO 8601 time, read as UTC, in the range."""
        match = _DATE.match(value) if isinstance(value, str) else None
        try:
            date = match and datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00'}+00:00")
        except ValueError:
            return False
        return date is not None and asked.first <= date < asked.last

    return memory.catalogue.refs_of(
        object_id
        for object_id, values in zip(object_ids, found, strict=True)
        if any(is_in_range(value) for each in values.values() for value in each)
    )
