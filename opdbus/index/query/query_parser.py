"""Query parsing: takes conditions (`state:failed`) and comparisons (`over 90 percent`) out."""

import ipaddress
import re
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, NamedTuple

from opdbus.index.catalogue.entry_view import NOTHING, EntryRefs
from opdbus.index.database.store import Store
from opdbus.index.query import (
    clock_times,
    comparisons,
    condition_matching,
    relative_dates,
    spelling,
)
from opdbus.index.query.spelling import Correction
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.state import fields
from opdbus.state.conditions import IS, Condition, condition
from opdbus.state.secret_names import is_secret_name

# A question with more conditions is a document, in which a colon has another meaning.
_MAX_CONDITIONS: Final = 8
# Fields that make a condition only if an object has the value: `user:hunter2` may be credentials.
_NAMING: Final = frozenset("user username login account".split())

_CANDIDATE = re.compile(
    r"(?<!\S)([a-z][\w-]*(?:\.[\w-]+)*):(\"[^\"]+\"|'[^']+'|[^\s\"']+)", re.IGNORECASE
)
# Questions are cut to this length first: about twice what a model reads.
MAX_CHARACTERS: Final = 2000
# A longer question is a document, whose spelling is not corrected.
_MOST_SPELT: Final = 1000
# A word that every model has as a single token.
_PLAIN: Final = "a"
_DIGIT = re.compile(r"\d")
_AT_THE_END: Final = "?!.,;)"


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


async def read(memory: StateStore, question: str) -> ParsedQuery:
    """Take FIELD:VALUE conditions and comparisons out of a question, if objects have the fields."""
    asked = await _without_conditions(memory, question)
    words, compared = asked.words, []
    told = clock_times.find(words)
    for found in sorted([*comparisons.find(words), *told], reverse=True):
        met = [await condition_matching.found(memory, [meaning]) for meaning in found.meanings]
        either = reduce(EntryRefs.and_also, met, NOTHING)
        if len(either.ids):
            compared.append(ComparedValue(words[found.start : found.end], either))
            # the digits of a clock time stay: a schedule has them in its text
            if found not in told or not _DIGIT.search(words, found.start, found.end):
                words = words[: found.start] + words[found.end :]
    for dated in relative_dates.find(words, relative_dates.now()):
        either = await relative_dates.met(memory, dated)
        if len(either.ids):
            compared.append(ComparedValue(dated.words, either))
    return ParsedQuery(words if words.strip() else asked.words, asked.conditions, tuple(compared))


async def corrected(vectors: ObjectVectors, asked: ParsedQuery) -> ParsedQuery:
    """Replace words that no object has by likely spellings: see `spelling`.

    Where a model is loaded, a word that it has as one token is not taken for a typing error.
    """
    memory, model = vectors.memory, vectors.serving.phase.embedder

    def look(store: Store) -> list[Correction]:
        words = asked.words[:_MOST_SPELT]
        named = spelling.find_compounds(words, memory.catalogue.named)
        found = spelling.without_known_phrases(store, named)
        words = spelling.corrected(words, found)
        missing = wrong = spelling.unknown_words(store, words)
        if missing and model:
            plain, *counts = model.splitter.count([_PLAIN, *missing])
            wrong = [word for word, count in zip(missing, counts, strict=True) if count > plain]
        lookup = memory.words.lookup
        more = spelling.corrections(store, words, missing, wrong, lookup) if missing else []
        return [*found, *more]

    found = await memory.archive.read(look)
    return replace(asked, words=spelling.corrected(asked.words, found), corrected=tuple(found))


async def _without_conditions(memory: StateStore, question: str) -> ParsedQuery:
    candidates = list(_CANDIDATE.finditer(question))
    taken: list[tuple[re.Match[str], Condition]] = []
    for match in candidates if len(candidates) <= _MAX_CONDITIONS else []:
        found = _condition(match[1], match[2])
        if found and await _is_known(memory, found):
            taken.append((match, found))
    words = question
    for match, _ in reversed(taken):
        words = words[: match.start()] + words[match.end() :]
    return ParsedQuery(words, tuple(found for _, found in taken))


def _condition(field: str, given: str) -> Condition | None:
    value = given.rstrip(_AT_THE_END) if given[0] not in "\"'" else given
    if not value or _is_something_else(field, value):
        return None
    # a name is rarely written in full
    return condition(field, "~" if field.lower() == "name" else IS, value)


def _is_something_else(field: str, value: str) -> bool:
    """Return whether FIELD:VALUE is rather a URL, a time, an address or credentials."""
    if value.startswith(("//", ":", "\\")):
        return True
    if field.lower() not in fields.IDENTITY and ("@" in value or is_secret_name(value)):
        return True
    return ":" in value and value[0] not in "\"'" and not _is_address(value)


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_interface(value)
    except ValueError:
        return False
    return True


async def _is_known(memory: StateStore, asked: Condition) -> bool:
    if asked.field.lower() in fields.IDENTITY:
        return True
    if asked.field.lower() not in _NAMING:
        asked = Condition(asked.field, "~", "")
    return bool(len((await condition_matching.found(memory, [asked], only_first=True)).ids))
