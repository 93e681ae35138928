"""Words that name values, such as `failed` or `nearly full`, from vocabulary.tsv."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final, TypeAlias

from opdbus.state.conditions import Condition, parse
from opdbus.state.fields import Names

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from opdbus.state.object import Identity, Json

# Which rows of the vocabulary an object has, or a phrase names: one bit each, in 64 with a sign.
Traits: TypeAlias = int
MAX_ROWS: Final = 63

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_NOT: Final = frozenset("not never cannot nothing nobody".split())
# What may stand between `not` and what it denies.
_FILLERS: Final = frozenset("currently now actually yet really properly any longer been be".split())
_LONGEST: Final = 6


@dataclass(frozen=True, slots=True)
class Row:
    """The phrases that name a value, and conditions: an object that meets all of one has it."""

    phrases: tuple[tuple[str, ...], ...]
    alternatives: tuple[tuple[Condition, ...], ...]


@cache
def version() -> str:
    """Return a hash of the vocabulary: objects are looked at again when it changes."""
    return hashlib.blake2b(_file().read_bytes(), digest_size=4).hexdigest()


def _file() -> Traversable:
    return resources.files("opdbus") / "vocabulary.tsv"


@cache
def rows() -> tuple[Row, ...]:
    """Read the vocabulary."""
    return tuple(
        _row(*line.split("\t"))
        for line in _file().read_text("utf-8").splitlines()
        if not line.startswith("#")
    )


def _row(phrases: str, conditions: str) -> Row:
    return Row(
        tuple(tuple(phrase.split()) for phrase in phrases.split("|")),
        tuple(parse(part) for part in conditions.split("|") if part),
    )


class Reader:
    """Finds the traits of objects; made for some at a time, since it remembers their keys."""

    def __init__(self) -> None:
        self._names = Names({c.field for row in rows() for part in row.alternatives for c in part})

    def traits(self, identity: Identity, properties: Mapping[str, Json]) -> Traits:
        """Return which values of the vocabulary an object has."""
        found = self._names.values(identity, properties)
        return sum(
            1 << number
            for number, row in enumerate(rows())
            if any(_is_met(part, found) for part in row.alternatives)
        )


def _is_met(conditions: tuple[Condition, ...], found: Mapping[str, list[Json]]) -> bool:
    return all(c.field in found and c.is_met_by(found[c.field]) for c in conditions)


def asked(question: str) -> list[Traits]:
    """Return the values that a question names: for each phrase, the rows that have it."""
    words = list(_plain(question))
    found: dict[Traits, None] = {}
    at = 0
    while at < len(words):
        length, traits = _longest(words, at)
        # what is denied and has no opposite is not asked for
        if traits and not (at and words[at - 1] == "not"):
            found[traits] = None
        at += length
    return list(found)


def _plain(question: str) -> Iterator[str]:
    """Yield the words of a question, each denial as `not` right before what it denies."""
    words = _WORD.findall(question.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    denied = False
    for index, word in enumerate(words):
        if (
            word in _NOT
            or word.endswith("n't")
            or (word == "no" and words[index + 1 :][:1] == ["longer"])
        ):
            denied = True
            yield "not"
        elif not (denied and word in _FILLERS):
            denied = False
            yield word


def _longest(words: list[str], at: int) -> tuple[int, Traits]:
    """Return the length of the longest phrase at a place, 1 if there is none, and its rows."""
    for length in range(min(_LONGEST, len(words) - at), 0, -1):
        traits = _phrases().get(tuple(words[at : at + length]))
        if traits is not None:
            return length, traits
    return 1, 0


@cache
def _phrases() -> Mapping[tuple[str, ...], Traits]:
    found: dict[tuple[str, ...], Traits] = {}
    for number, row in enumerate(rows()):
        for phrase in row.phrases:
            traits = 1 << number if row.alternatives else 0
            found[phrase] = found.get(phrase, 0) | traits
    return found
