"""Literal values in a question, for boosts: `uid 0`, `zsh as shell`.

A number counts only next to the name of its field. A word counts if the name of its field is
anywhere in the question: `main` alone does not mean a routing table. Technical words such as
`auto-restart`, `SIGABRT` or `noexec` count without a field name.
"""

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from opdbus.index.database.store import Store
from opdbus.index.query import query_terms
from opdbus.language import vocabulary
from opdbus.language.tables import NUMBERS
from opdbus.state.fields import leaves, split
from opdbus.state.flatten import singular
from opdbus.state.object import Json

# A word in more objects distinguishes little; a field name with a number may be in more.
_MOST: Final = 100
_MOST_NUMBERED: Final = 1000
# Larger objects are not searched for values.
_MOST_CHARACTERS: Final = 8192
# A question with more values is a document.
_MAX_VALUES: Final = 16

_TOKEN = re.compile(r"[^\W\d_]+|(?<![\w.:/-])\d+(?![\w:/-]|\.\d)")
# 51820/udp
_PORT = re.compile(r"\b(\d{1,5})/(?:tcp|udp)\b")
# the exit status 203 of a line with "status=203/EXEC"
_STATUS = re.compile(r"\bstatus=(\d{1,3})\b")
# Words allowed between the name of a field and its number.
_BETWEEN: Final = query_terms.STOP_WORDS | frozenset("number nr value equal equals set".split())
# Field names for everyday words.
_CALLED: Final[Mapping[str, Sequence[str]]] = {
    "account": ("user",), "code": ("status",), "core": ("cpus",), "id": ("uid", "gid"),
    "member": ("member", "count"), "permission": ("user",), "privilege": ("user",),
    "processor": ("cpus",), "right": ("user",), "who": ("shell", "group", "member"),
    # `what runs as www-data`
    "as": ("user",), "under": ("user",),
}  # fmt: skip
# Numbers in words, without `one`, which rarely means 1.
_DIGITS: Final = {word: str(number) for word, number in NUMBERS.items() if number > 1}
# Fields whose values are all technical words, and fields where only words in capitals or with a
# hyphen are.
_TECHNICAL: Final = frozenset("fstype option".split())
_STATES: Final = frozenset("class mode restart result scope signal state status type".split())


class Literal(NamedTuple):
    """A value in a question and the ids of entries that have it; `word` is "" for a number."""

    word: str
    entries: Sequence[int]


def read_literals(store: Store, question: str, matches: Mapping[str, int]) -> list[Literal]:
    """Return the values of a question that objects have; `matches` counts the objects by term."""
    found = [
        Literal("", store.words.having(phrase, _MOST_NUMBERED)) for phrase in _numbered(question)
    ]
    # words of values that a question negates: `not run as root`
    phrases = map(str.split, vocabulary.values_in(question).values())
    denied = {word for first, *others in phrases if first == "not" for word in others}
    words = [
        word
        for word in query_terms.names(question)
        if matches.get(word.lower(), 0) <= _MOST and word.lower() not in denied
    ]
    # words of the question that may name fields, and the field names they stand for
    fields = {form for word in split(question) for form in (word, singular(word))}
    fields.update(*(_CALLED.get(word, ()) for word in fields))
    found += [Literal(word, _having_value(store, word, fields)) for word in words[:_MAX_VALUES]]
    return [literal for literal in found if literal.entries]


def _numbered(question: str) -> list[str]:
    """Return a phrase `name number` for each number and the word before or after it."""
    words = (_DIGITS.get(word, word) for word in _TOKEN.findall(question.lower()))
    tokens = [word for word in words if word not in _BETWEEN]
    found: dict[str, None] = {}
    for at, token in enumerate(tokens):
        if token.isdecimal():
            for word in (*tokens[max(0, at - 1) : at], *tokens[at + 1 : at + 2]):
                names = _CALLED.get(singular(word), [word])
                found |= dict.fromkeys(f"{name} {token}" for name in names)
    for name, pattern in (("port", _PORT), ("status", _STATUS)):
        found |= dict.fromkeys(f"{name} {number}" for number in pattern.findall(question.lower()))
    return list(found)[:_MAX_VALUES]


def _having_value(store: Store, word: str, fields: AbstractSet[str]) -> list[int]:
    """Return the ids of entries in which one of the fields has a word as its value."""
    value = word.lower()
    keys = (fields - {value}) | _TECHNICAL
    if "-" in word or word.isupper():
        keys |= _STATES

    def has(path: str, found: Json) -> bool:
        """Return whether a value equals the word, lists it, ends in it, or is its service."""
        if not isinstance(found, str):
            return False
        text, words = found.lower().removesuffix(".service"), split(path)
        is_value = text == value or text.endswith(f"/{value}") or value in text.split(",")
        return is_value and bool(words) and singular(words[-1]) in keys

    return [
        entry
        for entry, properties in store.words.properties_having(word, _MOST, _MOST_CHARACTERS)
        if any(has(path, found) for path, _, found in leaves(properties))
    ]
