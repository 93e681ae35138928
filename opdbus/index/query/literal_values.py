"""Values that a question gives as they are, with the name of their field: `uid 0`, `zsh as shell`.

What has such a value is raised. The value counts only beside its field's name if it is a number,
and with it anywhere in the question if it is a word: `main` alone names no table of routes. A word
that is hardly any other one, such as `auto-restart`, `SIGABRT` or `noexec`, needs no name of a
field.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from opdbus.index.database.store import Store
from opdbus.index.query import query_terms
from opdbus.language import vocabulary
from opdbus.state.fields import leaves, split
from opdbus.state.flatten import singular

# A word that more objects have tells little; a number beside a word has few different ones.
_MOST: Final = 100
_MOST_NUMBERED: Final = 1000
# Of larger objects the values are not looked at.
_MOST_CHARACTERS: Final = 8192
# A question with more of them is a document.
_MAX_VALUES: Final = 16

_TOKEN = re.compile(r"[^\W\d_]+|(?<![\w.:/-])\d+(?![\w:/-]|\.\d)")
# 51820/udp
_PORT = re.compile(r"\b(\d{1,5})/(?:tcp|udp)\b")
# 203 of "status=203/EXEC"
_STATUS = re.compile(r"\bstatus=(\d{1,3})\b")
# What may stand between the name of a field and its number.
_BETWEEN: Final = query_terms.STOP_WORDS | frozenset("number nr value equal equals set".split())
# What people call fields besides their own names.
_CALLED: Final[Mapping[str, Sequence[str]]] = {
    "account": ("user",),
    # such as `what runs as www-data`
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
# Numbers in words; `one` is rarely meant as one.
_DIGITS: Final = {
    word: str(number)
    for number, word in enumerate("two three four five six seven eight nine ten".split(), 2)
}

# Fields whose values are no everyday words, and those some of whose values are.
_TECHNICAL: Final = frozenset("fstype option".split())
_STATES: Final = frozenset("class mode restart result scope signal state status type".split())


class Literal(NamedTuple):
    """A value of a question, and the entries that have it, by id; the word is "" for a number."""

    word: str
    entries: Sequence[int]


def read(store: Store, question: str, matches: Mapping[str, int]) -> list[Literal]:
    """Find what has the values of a question; `matches` says how many objects have its terms."""
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
    """Return the words of values that a question denies: `not run as root`."""
    phrases = map(str.split, vocabulary.asked(question).values())
    return frozenset(word for first, *others in phrases if first == "not" for word in others)


def _numbered(question: str) -> list[str]:
    """Return each number with the word before it, and the one after it, as objects have them."""
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
    """Return the words of a question that may be names of fields, and what they stand for."""
    words = {form for word in split(question) for form in (word, singular(word))}
    return frozenset(words.union(*(_CALLED.get(word, ()) for word in words)))


def _whole(store: Store, word: str, fields: frozenset[str]) -> list[int]:
    """Return what has a word as a whole value of one of some fields: see _is."""
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
    """Return whether a value is this: all of it, one of a list, the end of a path, a service."""
    found = found.removesuffix(".service")
    return found == value or found.endswith(f"/{value}") or value in found.split(",")


def _key(path: str) -> str:
    words = split(path)
    return singular(words[-1]) if words else ""
