"""Query parsing: takes conditions (`state:failed`, `size>5`) and clock times out of a question."""

import re
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, NamedTuple

from opdbus.engine.batching import Rank
from opdbus.errors import ModelError, OpDbusError, ProviderError
from opdbus.index.catalogue.entry_view import NOTHING, EntryRefs
from opdbus.index.database.store import Store
from opdbus.index.query import condition_matching, schedule_times, spelling
from opdbus.index.query.question_conditions import find_conditions
from opdbus.index.query.spelling import Correction
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.second_stage import Vector
from opdbus.state.conditions import Condition

# A longer question is a document, whose spelling is not corrected.
_MOST_SPELT: Final = 1000
# A word that every model has as a single token.
_PLAIN: Final = "a"
_DIGIT = re.compile(r"\d")


class ComparedValue(NamedTuple):
    """A time or a superlative as written in a question, and the entries that meet it."""

    words: str
    entries: EntryRefs


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A question's remaining words, and the conditions and times taken out of it.

    Every hit must meet the conditions; a time only boosts the entries that meet it.
    """

    words: str
    conditions: tuple[Condition, ...] = ()
    compared: tuple[ComparedValue, ...] = ()
    corrected: tuple[Correction, ...] = ()


async def parse_query(memory: StateStore, question: str) -> ParsedQuery:
    """Take conditions and times out of a question, if objects have the fields.

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
    for one in reversed(schedule_times.find_times(words)):
        met = [await condition_matching.found(memory, [meaning]) for meaning in one.meanings]
        either = reduce(EntryRefs.and_also, met, NOTHING)
        if len(either.ids):
            compared.append(ComparedValue(rest[one.start : one.end], either))
            # the digits of a clock time stay: a schedule has them in its text
            if not _DIGIT.search(rest, one.start, one.end):
                rest = rest[: one.start] + rest[one.end :]
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
