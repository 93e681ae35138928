"""The events that a question asks for, by happenings.tsv, and the sentences that match them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from operator import or_
from typing import Final, TypeAlias

from opdbus.history.change_sentence import OF_DECLARATIONS
from opdbus.language import kinds, tables, vocabulary

# One bit for each row of the table.
Happenings: TypeAlias = int
_OF_DECLARATIONS = re.compile(r"declar|drift|intend|state file")
# Events that are also named by the resulting state: the vocabulary row that begins so.
_STATES: Final = {
    "failed": "failed", "started": "running", "stopped": "stopped", "enabled": "enabled",
    "disabled": "disabled", "masked": "masked", "filled": "full",
    "killed": "killed", "went up": "up", "went down": "down", "read-only": "read only",
}  # fmt: skip
# Events that have others as their parts.
_PARTS: Final = {"restarted": ("stopped", "started")}
_SHARE_OF_PART: Final = 0.9
# The most words between a negation and the event: `not in sudo`.
_DENIED_WITHIN: Final = 2
_FILLERS: Final = frozenset(
    "a an the next be been being is are was were got get it they to its any".split()
)


def find_events(question: str) -> list[Happenings]:
    """Return the events that a question asks for, each as the bits of its meanings.

    A negated event is the opposite: `no longer an administrator`. So is a membership, if the
    question mentions a loss: `who lost root access`.
    """
    words = _telling(vocabulary.plain(question))
    found = [
        _opposite(bits) if "not" in words[max(0, at - _DENIED_WITHIN) : at] else bits
        for at, _, bits in _event_phrases(words, question)
    ]
    had, lost = _bits()["administrator"] | _bits()["joined"], _bits()["removed"]
    if any(bits & had for bits in found) and any(bits & lost for bits in found):
        found = [_opposite(bits) for bits in found if bits & had]
    return list(dict.fromkeys(found))


def besides(question: str) -> list[str]:
    """Return the words of a question that name no event."""
    words = _telling(vocabulary.plain(question))
    saying = _saying(words, question)
    return [word for n, word in enumerate(words) if n not in saying]


def saying(question: str) -> frozenset[str]:
    """Return the words of a question that name an event."""
    words = _telling(vocabulary.plain(question))
    return frozenset(words[n] for n in _saying(words, question))


def _saying(words: Sequence[str], question: str) -> set[int]:
    return {n for at, length, _ in _event_phrases(words, question) for n in range(at, at + length)}


def _event_phrases(words: Sequence[str], question: str) -> Iterator[tuple[int, int, Happenings]]:
    """Yield the phrases that name events; those in a kind's name (`kernel tuning`) do not."""
    names = kinds.kind_phrases(question)
    for at, length, bits in _phrases().find(words, lambda _at: True):
        phrase = f" {' '.join(words[at : at + length])} "
        if not any(phrase in f" {name} " and phrase.strip() != name for name in names):
            yield at, length, bits


def asks_for_declarations(question: str) -> bool:
    """Return whether a question is about declarations, not only about the host."""
    return bool(_OF_DECLARATIONS.search(question.lower()))


def is_of_declaration(sentence: str) -> bool:
    """Return whether a sentence is about a declaration or about drift."""
    return happened(sentence)[0] in OF_DECLARATIONS


def is_alike(one: str, other: str) -> bool:
    """Return whether two sentences have the same main event, which is `failed` if there is any."""
    first, second = happened(one), happened(other)
    main = ("failed" if "failed" in events else events[0] for events in (first, second))
    return next(main) == next(main)


def happened(sentence: str) -> list[str]:
    """Return the events of a sentence, in the words of happenings.tsv."""
    return sentence.rpartition("; ")[2].partition(":")[0].split(", ")


def share(wanted: Sequence[Happenings], sentence: str) -> float:
    """Return the share of the wanted events that a sentence has.

    One that is a part of an event of the sentence counts less.
    """
    events = happened(sentence)
    bits = _bits_of(events)
    parts = _bits_of([part for event in events for part in _PARTS.get(event, ())])
    met = [1.0 if each & bits else _SHARE_OF_PART * bool(each & parts) for each in wanted]
    return sum(met) / len(met) if met else 0.0


def undoes(later: str, sentence: str) -> bool:
    """Return whether the opposite of an event of a sentence happened in a later one's."""
    return _has_opposite(sentence, later) or _has_opposite(later, sentence)


def _has_opposite(one: str, other: str) -> bool:
    """Return whether a sentence has the opposite of an event of another one, by the table."""
    events = [_bits().get(event, 0) for event in happened(one)]
    return share([_opposite(bits) for bits in events if _opposite(bits) != bits], other) > 0


def _bits_of(events: Iterable[str]) -> Happenings:
    return reduce(or_, (_bits().get(event, 0) for event in events), 0)


def wider_words(question: str) -> list[str]:
    """Return the words that sentences have for events of which one that is asked for is a part."""
    words = set(event_words(question))
    return [event for event, parts in _PARTS.items() if not words.isdisjoint(parts)]


def event_words(question: str) -> list[str]:
    """Return the words that sentences have for the events that a question asks for."""
    wanted = find_events(question)
    return [word for word, bit in _bits().items() if any(each & bit for each in wanted)]


@cache
def _bits() -> Mapping[str, Happenings]:
    rows = tables.rows("happenings")
    return {phrases.partition("|")[0]: 1 << number for number, (phrases, *_) in enumerate(rows)}


@cache
def _opposite(bits: Happenings) -> Happenings:
    """Return the opposite event, or the same one if it has none."""
    found = [
        _bits()[other[0]]
        for number, (_, *other) in enumerate(tables.rows("happenings"))
        if other and bits & 1 << number
    ]
    return reduce(or_, found) if found else bits


@cache
def _phrases() -> tables.Phrases:
    states = {row.phrases.partition("|")[0]: row.phrases for row in vocabulary.rows()}
    found = []
    for (phrases, *_), (word, bit) in zip(tables.rows("happenings"), _bits().items(), strict=True):
        every = [*phrases.split("|"), *states.get(_STATES.get(word, ""), "").split("|")]
        plain = (" ".join(_telling(vocabulary.plain(phrase))) for phrase in every if phrase)
        found.append(("|".join(plain), bit))
    return tables.Phrases(found, vocabulary.stem)


def _telling(words: Iterable[str]) -> list[str]:
    return [word for word in words if word not in _FILLERS]
