"""Words that name values, such as `failed` or `nearly full`, from vocabulary.tsv."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from opdbus.language import tables
from opdbus.state.conditions import Condition, parse
from opdbus.state.fields import IDENTITY, Names

if TYPE_CHECKING:
    from opdbus.state.object import Identity, Json

# Rows of the vocabulary that an object meets or a phrase names, one bit each.
Traits: TypeAlias = int
# Bytes of stored traits.
TRAIT_BYTES: Final = 16
# Conditions that an object must all meet.
Conditions: TypeAlias = tuple[Condition, ...]

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_NOT: Final = frozenset("not never cannot nothing nobody".split())
_PARTICIPLES: Final = ("ing", "ed")
# A bare verb after these names a state.
_ASKING: Final = frozenset("do does did".split())
# So does a verb at the end of a relative clause: `services that run but are disabled`.
_RELATIVE: Final = frozenset("that which who".split())
CONTRASTS: Final = frozenset("but though although while yet nevertheless anyway regardless".split())
_AFTER_CLAUSES: Final = CONTRASTS | frozenset("and or now still right".split())
_SUFFIXES: Final = ("ing", "ed", "es", "s")
_SHORTEST: Final = 3
# Words that may stand between `not` and the word it negates.
_FILLERS: Final = frozenset(
    "currently now actually yet really properly any longer been be i we you it they".split()
)
# A subject of at most this many words may, too, without `_ENDING`: `why can't the old printer
# start`.
_MOST_BETWEEN: Final = 4
# Cached questions: a search looks up the values of its question several times.
_QUESTIONS: Final = 16
_ENDING: Final = frozenset("not and or but that which who are is of with than as".split())


class Row(NamedTuple):
    """Phrases that name a value, and alternatives: an object that meets all of one has it."""

    phrases: str
    alternatives: tuple[Conditions, ...]


@cache
def rows() -> tuple[Row, ...]:
    """Read the vocabulary."""
    return tuple(
        Row(phrases, tuple(parse(part) for part in conditions.split("|") if part))
        for phrases, conditions in tables.rows("vocabulary")
    )


class Reader:
    """Computes the traits of objects; make one for each batch, since it remembers their keys."""

    def __init__(self) -> None:
        self._names = Names({c.field for row in rows() for part in row.alternatives for c in part})
        self._asked = _alternatives()

    def traits(self, identity: Identity, properties: Mapping[str, Json]) -> Traits:
        """Return the rows of the vocabulary whose conditions an object meets."""
        found = self._names.values(identity, properties)
        traits = 0
        for field, values in found.items():
            if texts := self._asked.get(field):
                ways = [*texts.get("", ())]
                for value in values:
                    if type(value) is str:
                        ways += texts.get(value.lower(), ())
                for bit, part in ways:
                    if traits & bit:
                        continue
                    if not part or all(c.is_met_by(found.get(c.field, ())) for c in part):
                        traits |= bit
        return traits


@cache
def _alternatives() -> Mapping[str, Mapping[str, Sequence[tuple[Traits, Conditions]]]]:
    """Return all alternatives by a field that they need, then by its required text, or "".

    Chooses a field that few objects have, not one of the identity, where possible. The condition
    that the text meets is left out of the alternative.
    """
    found: dict[str, dict[str, list[tuple[Traits, Conditions]]]] = {}
    for number, row in enumerate(rows()):
        for part in row.alternatives:
            rare = min(part, key=lambda condition: condition.field in IDENTITY)
            texts = found.setdefault(rare.field, {})
            left = tuple(c for c in part if c is not rare or not rare.text)
            texts.setdefault(rare.text, []).append((1 << number, left))
    return found


def as_bytes(traits: Traits) -> bytes:
    """Return traits in their stored form."""
    return traits.to_bytes(TRAIT_BYTES, "little")


@lru_cache(maxsize=_QUESTIONS)
def values_in(question: str) -> Mapping[Traits, str]:
    """Return the phrases in a question that name values, by the rows they name."""
    words = _beside_verbs(list(plain(question)))
    asking = next((at for at, word in enumerate(words) if word in _ASKING), len(words))

    def is_form(at: int) -> bool:
        """Return whether a verb names a state: `did it crash`, `what is failing`.

        It does not in `what removes it` and `a run of it`.
        """
        after = words[at + 1 : at + 2]
        if at and words[at - 1] in _RELATIVE:
            return _AFTER_CLAUSES.issuperset(after)
        # `what runs but`, and `which services run but`
        is_clause = words[at - 1 : at] == ["what"] or words[at - 2 : at - 1] == ["which"]
        goes_on = bool(after) and after[0] in _AFTER_CLAUSES
        return words[at].endswith(_PARTICIPLES) or asking < at or (is_clause and goes_on)

    # a negated phrase without an opposite in the table is left out
    return {
        traits: " ".join(words[at : at + length])
        for at, length, traits in _phrases().find(words, is_form)
        if traits and not (at and words[at - 1] == "not")
    }


def negated_words(question: str) -> set[str]:
    """Return the words of phrases that are negated and name a value: `enabled` in `not enabled`."""
    phrases = (phrase.split() for phrase in values_in(question).values())
    denials = (rest for first, *rest in phrases if first == "not")
    return {word for rest in denials if values_in(" ".join(rest)) for word in rest}


def _beside_verbs(words: list[str]) -> list[str]:
    """Return words with `not` moved behind a subject, if a phrase results: `not it running`."""
    phrases = _phrases()
    for at, word in enumerate(words):
        if word != "not" or phrases.first(words[at : at + phrases.longest]) is not None:
            continue
        for end in range(at + 1, min(at + 1 + _MOST_BETWEEN, len(words) - 1)):
            if words[end] in _ENDING:
                break
            if phrases.first(["not", *words[end + 1 : end + phrases.longest]]) is not None:
                return [*words[:at], *words[at + 1 : end + 1], "not", *words[end + 1 :]]
    return words


def fields(traits: Traits) -> set[str]:
    """Return the fields of the first alternative of each of some traits, without the identity's."""
    named = [row for number, row in enumerate(rows()) if traits >> number & 1]
    return {c.field for row in named for c in row.alternatives[0] if c.field not in IDENTITY}


def plain(question: str) -> Iterator[str]:
    """Yield the words of a question, each negation as `not` right before the word it negates."""
    words = _WORD.findall(question.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    denied = False
    for index, word in enumerate(words):
        if (
            word in _NOT
            or word.endswith("n't")
            or (word == "no" and words[index + 1 : index + 2] == ["longer"])
        ):
            denied = True
            yield "not"
        elif not (denied and word in _FILLERS):
            denied = False
            yield word


@cache
def _phrases() -> tables.Phrases:
    """Return the phrases of the table, in the form that `plain` gives a question."""
    return tables.Phrases(
        (
            (
                "|".join(" ".join(plain(phrase)) for phrase in row.phrases.split("|")),
                1 << number if row.alternatives else 0,
            )
            for number, row in enumerate(rows())
        ),
        stem,
    )


def stem(word: str) -> str:
    """Return the common stem of the forms of a regular verb or noun: failing, fails, failed."""
    suffix = next((end for end in _SUFFIXES if word.endswith(end)), "")
    stem = word.removesuffix(suffix) if len(word) - len(suffix) >= _SHORTEST else word
    stem = stem.removesuffix("e")
    is_doubled = stem[-2:-1] == stem[-1:] and stem[-1:] not in "sl"
    return stem[:-1] if is_doubled and len(stem) >= _SHORTEST else stem
