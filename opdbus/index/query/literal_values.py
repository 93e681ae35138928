"""Literal values in a question, for boosts: `uid 0`, `zsh as shell`.

A number counts only next to the name of its field. A word counts if the name of its field is
anywhere in the question: `main` alone does not mean a routing table. Technical words such as
`auto-restart`, `SIGABRT` or `noexec` count without a field name.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from opdbus.index.database.store import Store
from opdbus.index.query import query_terms
from opdbus.language import vocabulary
from opdbus.state.fields import leaves, split
from opdbus.state.flatten import singular

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
    "account": ("user",),
    # `what runs as www-data`
    "as": ("user",),
    "code": ("status",),
    "core": ("cpus",),
    "id": ("uid", "gid"),
    "member": ("member", "count"),
    "permission": ("user",),
    "privilege": ("user",),
    "processor": ("cpus",),
    "right": ("user",),
    "under": ("user",),
    "who": ("shell", "group", "member"),
}
# Numbers in words, without `one`, which rarely means 1.
_DIGITS: Final = {
    word: str(number)
    for number, word in enumerate("two three four five six seven eight nine ten".split(), 2)
}

# Fields whose values are all technical words, and fields where only words in capitals or with a
# hyphen are.
_TECHNICAL: Final = frozenset("fstype option".split())
_STATES: Final = frozenset("class mode restart result scope signal state status type".split())


class Literal(NamedTuple):
    """A value in a question and the ids of entries that have it; `word` is "" for a number."""

    word: str
    entries: Sequence[int]


def read(store: Store, question: str, matches: Mapping[str, int]) -> list[Literal]:
    """Return the values of a question that objects have; `matches` counts the objects by term."""
    found = [
        Literal("", store.words.having(phrase, _MOST_NUMBERED)) for phrase in _numbered(question)
    ]
    denied = _denied(question)
    words = [w for w in query_terms.names(question) if matches.get(w.lower(), 0) <= _MOST]
    words = [word for word in words if word.lower() not in denied]
    fields = _fields(question)
    found += [Literal(word, _whole(store, word, fields)) for word in words[:_MAX_VALUES]]
    return [literal for literal in found if literal.entries]


def _denied(question: str) -> frozenset[str]:
    """Return the words of values that a question negates: `not run as root`."""
    phrases = map(str.split, vocabulary.asked(question).values())
    return frozenset(word for first, *others in phrases if first == "not" for word in others)


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


def _fields(question: str) -> frozenset[str]:
    """Return the words of a question that may name fields, and the field names they stand for."""
    words = {form for word in split(question) for form in (word, singular(word))}
    return frozenset(words.union(*(_CALLED.get(word, ()) for word in words)))


def _whole(store: Store, word: str, fields: frozenset[str]) -> list[int]:
    """Return the ids of entries in which one of the fields has a word as its value: see `_is`."""
    value = word.lower()
    keys = (fields - {value}) | _TECHNICAL
    if "-" in word or word.isupper():
        keys |= _STATES
    return [
        entry
        for entry, properties in store.words.properties_having(word, _MOST, _MOST_CHARACTERS)
        if any(
            isinstance(found, str) and _is(found.lower(), value) and _key(path) in keys
            for path, _, found in leaves(properties)
        )
    ]


def _is(found: str, value: str) -> bool:
    """Return whether a value equals a word, lists it, ends in it as a path, or is its service."""
    found = found.removesuffix(".service")
    return found == value or found.endswith(f"/{value}") or value in found.split(",")


def _key(path: str) -> str:
    words = split(path)
    return singular(words[-1]) if words else ""
