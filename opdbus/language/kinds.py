"""Words that name a sort of things, such as `ports` or `file systems`, from kinds.tsv."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from opdbus.language import tables
from opdbus.language.glossary import gloss

if TYPE_CHECKING:
    from opdbus.state.object import ObjectId

# Which rows of the table a thing is in, or a question names: one bit each.
Kinds: TypeAlias = int

_WORD = re.compile(r"[a-z0-9]+")
# `stork.service` is one word, and `on-call`
_COMPOUND = re.compile(r"[a-z0-9]+(?:[-._:/@+]+[a-z0-9]+)*")
# A question that begins so says last what it asks for: `can alice's ports be reached`.
_ENDING = frozenset(
    "is are was were can could does do did has have had may will where when how since why on"
    " in at to".split()
)

# So near the beginning is the noun that `which` belongs to.
_FIRST_WORDS = 5
# What comes before these says what is asked for: `web server port of the shop`.
_AFTER_NOUNS = frozenset(
    "of that which who whose what with without in on for from to by at as and or but under over"
    " above below via through behind than is are was were has have had can could may must should"
    " will would do does did not more less never".split()
)
# After these comes a verb, unless a word that says nothing does.
_BEFORE_VERBS = frozenset("what who how".split())
# So many characters after them are read.
_NEAR = 100
_CLAUSE_END = re.compile(r"[,;:?!](?:\s|$)|\.\s*$")
# `..., on which port`
_LATER = re.compile(
    r"(?:[,;:]\s*(?:and |on |at |in )?|\b(?:and|on|at|in|by|under|through|behind) )(?:what|which) ",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Row:
    """Phrases, the things that they name, and what is taken from those if nobody asks for them."""

    phrases: str
    object_ids: tuple[str, ...]
    less: float


@cache
def rows() -> tuple[Row, ...]:
    """Read the table."""
    return tuple(
        Row(phrases, tuple(filter(None, object_ids.split("|"))), int(less) / 100)
        for phrases, object_ids, less in tables.rows("kinds")
    )


@lru_cache(maxsize=4096)
def _of_sort(sort: str) -> tuple[Kinds, float]:
    """Return the rows of a sort; of one that only declarations or publishers have, by its name.

    A published `podman/container` is what `containers` means, and a `storage/disk` a `drive`.
    """
    fitting = [
        (1 << number, row.less)
        for number, row in enumerate(rows())
        if any(fnmatchcase(sort, object_id) for object_id in row.object_ids)
    ]
    if not fitting:
        words = _WORD.findall(sort.split("/")[1].lower())
        return requested(" ".join(words[-1:]), frozenset()).named, 0.0
    return sum(bit for bit, _ in fitting), fitting[0][1]


def of_object(object_id: ObjectId) -> tuple[Kinds, float]:
    """Return the rows that a thing is in, and what is taken from it if nobody asks for them."""
    return _of_sort(f"{object_id.plugin}/{object_id.kind}/{_telling(object_id)}")


def _telling(object_id: ObjectId) -> str:
    """Return the part of a name that tells a sort: few different ones are remembered."""
    if object_id.kind == "unit":
        _, at, suffix = object_id.name.rpartition("@.")
        return f"{at or '.'}{suffix if at else object_id.name.rpartition('.')[2]}"
    if object_id.kind == "package":
        name = object_id.name.partition(":")[0]
        return "lib" if name.startswith("lib") else f"-{name.rpartition('-')[2]}"
    if object_id.kind == "file":
        return "unit" if "/systemd/system/" in object_id.name else ""
    return object_id.name if object_id.kind == "fact" else ""


class RequestedKinds(NamedTuple):
    """The rows that a question names, and those of them that it asks for.

    `what sets the host name` names a fact, and asks for something else.
    """

    named: Kinds
    subject: Kinds


def requested(question: str, passed: AbstractSet[str]) -> RequestedKinds:
    """Return the rows that a question names, of several phrases at one place the longest.

    Words that are `passed` may stand before its subject: they say nothing.
    """
    words = _WORD.findall(question.lower())
    found = {at: kinds for at, _, kinds in _phrases().find(words) if kinds}
    named = reduce(or_, found.values(), 0)
    if words and words[0] in _ENDING and words[1:2] != ["there"]:
        return RequestedKinds(named, named)
    first = next((at for at, word in enumerate(words) if at in found or word not in passed), 0)
    if words[:1] == ["which"]:
        # a noun comes after what says more of it: `which old web services`
        noun = next((at for at in range(1, _FIRST_WORDS) if at in found), first)
        first = noun if passed.isdisjoint(words[1:noun]) else first
    return RequestedKinds(
        named, _asked_later(question) or found.get(first, 0) or _head(question, passed)
    )


def _asked_later(question: str) -> Kinds:
    """Return what a later part of a question asks for: `voice chat, on which port`."""
    for match in _LATER.finditer(question):
        words = _WORD.findall(question[match.end() : match.end() + _NEAR].lower())
        if kinds := _phrases().first(words):
            return kinds
    return 0


def _head(question: str, passed: AbstractSet[str]) -> Kinds:
    """Return the noun that a question begins with, after what says more of it: `ssh port of it`."""
    words = _COMPOUND.findall(_CLAUSE_END.split(question.lower(), maxsplit=1)[0])
    first = next((at for at, word in enumerate(words) if word not in passed), len(words))
    if first == 1 and words[0] in _BEFORE_VERBS:
        return 0
    # at the first word of these, or at one that says nothing, the noun ends
    ends = next(
        (at for at in range(first, len(words)) if words[at] in _AFTER_NOUNS | passed), len(words)
    )
    for at, length, kinds in _phrases().find(words[first:ends]):
        if at and first + at + length == ends:
            # `creates accounts`, but `kubernetes pods`
            is_verb = words[first].endswith("s") and words[ends - 1].endswith("s")
            is_verb &= not gloss(words[first])
            return 0 if is_verb else kinds
    return 0


@cache
def published() -> Kinds:
    """Return the rows of sorts that op-dbus does not observe: only publishers tell of them."""
    return sum(
        1 << number
        for number, row in enumerate(rows())
        if row.object_ids and all(object_id.startswith("*/") for object_id in row.object_ids)
    )


def words(question: str) -> set[str]:
    """Return the words of a question that name sorts of things."""
    asked = _WORD.findall(question.lower())
    found = _phrases().find(asked)
    return {word for at, length, kinds in found if kinds for word in asked[at : at + length]}


def names(question: str) -> list[str]:
    """Return the phrases of a question that name sorts of things in several words."""
    words = _WORD.findall(question.lower())
    found = _phrases().find(words)
    return [" ".join(words[at : at + length]) for at, length, _ in found if length > 1]


@cache
def _phrases() -> tables.Phrases:
    return tables.Phrases(
        (row.phrases, 1 << number if row.object_ids else 0) for number, row in enumerate(rows())
    )
