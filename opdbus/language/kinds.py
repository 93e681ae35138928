"""Words that name kinds of objects, such as `ports` or `file systems`, from kinds.tsv."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from functools import cache, lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from opdbus.language import tables
from opdbus.language.object_text import UNIT_NOUNS
from opdbus.language.synonyms import gloss

if TYPE_CHECKING:
    from opdbus.state.object import Identity, ObjectId

# Rows of the table that an object belongs to or a question names, one bit each.
Kinds: TypeAlias = int

# Suffixes of units' names, which are their types.
_SUFFIXES = frozenset((*UNIT_NOUNS, "device"))
# Kinds that neither run nor fail.
STATELESS = frozenset({("files", "file"), ("users", "account"), ("users", "group")})
# Kinds of which nothing is on or off.
NEVER_ON = frozenset({("packages", "package"), ("kernel", "sysctl"), ("kernel", "parameter")})

# a compound such as `stork.service` or `on-call` is one word
_COMPOUND = re.compile(r"[a-z0-9]+(?:[-._:/@+]+[a-z0-9]+)*")
# Questions that begin so name their subject last: `can alice's ports be reached`.
_ENDING = frozenset(
    "is are was were can could does do did has have had may will where when how since why on"
    " in at to".split()
)

# Words after `which` in which its noun is looked for.
_FIRST_WORDS = 5
# The subject comes before these: `web server port of the shop`.
_AFTER_NOUNS = frozenset(
    "of that which who whose what with without in on for from to by at as and or but under over"
    " above below via through behind than is are was were has have had can could may must should"
    " will would do does did not more less never".split()
)
# A verb follows these, unless a filler word does.
_BEFORE_VERBS = frozenset("what who how".split())
# Characters read after them.
_NEAR = 100
_CLAUSE_END = re.compile(r"[,;:?!](?:\s|$)|\.\s*$")
# A later clause: `..., on which port`
_LATER = re.compile(
    r"(?:[,;:]\s*(?:and |on |at |in )?|\b(?:and|on|at|in|by|under|through|behind) )(?:what|which) ",
    re.IGNORECASE,
)


class Row(NamedTuple):
    """Phrases, patterns of the objects they name, and the penalty where they are not asked for.

    A pattern is `plugin/kind/part`, with wildcards: see `of_object`. The penalty is 0 to 1.
    """

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


def of_object(object_id: ObjectId | Identity) -> tuple[Kinds, float]:
    """Return the rows of an object, and its penalty where none of them is asked for."""
    part, name = "", object_id.name
    if object_id.kind == "unit":
        _, at, suffix = name.rpartition("@.")
        suffix = suffix if at else name.rpartition(".")[2]
        # as in systemctl, a name without a suffix is that of a service
        part = f"{at or '.'}{suffix}" if suffix in _SUFFIXES else ".service"
    elif object_id.kind == "package":
        name = name.partition(":")[0]
        part = "lib" if name.startswith("lib") else f"-{name.rpartition('-')[2]}"
    elif object_id.kind == "file":
        part = "unit" if "/systemd/system/" in name else ""
    elif object_id.kind == "fact":
        part = name
    return _of_category(f"{object_id.plugin}/{object_id.kind}/{part}")


@lru_cache(maxsize=4096)
def _of_category(category: str) -> tuple[Kinds, float]:
    """Return the rows and the penalty of a `plugin/kind/part`, of which there are few.

    A kind that no row has is matched by its last word: a published `podman/container` is meant by
    `containers`, a `storage/disk` by `drive`. Its penalty is 0.
    """
    fitting = [
        (1 << number, row.less)
        for number, row in enumerate(rows())
        if any(fnmatchcase(category, object_id) for object_id in row.object_ids)
    ]
    if not fitting:
        words = tables.words_of(category.split("/")[1])
        return requested(" ".join(words[-1:]), frozenset()).named, 0.0
    return sum(bit for bit, _ in fitting), fitting[0][1]


class RequestedKinds(NamedTuple):
    """The rows that a question names, and those it asks for.

    `what sets the host name` names a fact and asks for another object.
    """

    named: Kinds
    subject: Kinds


@cache
def of_phrases(phrases: str) -> Kinds:
    """Return the rows that phrases such as `timer|cron job` name; for constants."""
    named = (requested(phrase, frozenset()).named for phrase in phrases.split("|"))
    return reduce(or_, named, 0)


def requested(question: str, passed: AbstractSet[str]) -> RequestedKinds:
    """Return the rows that a question names; of phrases at one place the longest counts.

    Words that are `passed` carry no meaning and may stand before the subject.
    """
    words = tables.words_of(question)
    found = {at: kinds for at, _, kinds in _phrases().find(words) if kinds}
    named = reduce(or_, found.values(), 0)
    if words and words[0] in _ENDING and words[1:2] != ["there"]:
        return RequestedKinds(named, named)
    first = next((at for at, word in enumerate(words) if at in found or word not in passed), 0)
    if words[:1] == ["which"]:
        # the noun follows its adjectives: `which old web services`
        noun = next((at for at in range(1, _FIRST_WORDS) if at in found), first)
        first = noun if passed.isdisjoint(words[1:noun]) else first
    later = (
        _phrases().first(tables.words_of(question[match.end() : match.end() + _NEAR]))
        for match in _LATER.finditer(question)
    )
    subject = next(filter(None, later), 0) or found.get(first, 0) or _head(question, passed)
    return RequestedKinds(named, subject)


def _head(question: str, passed: AbstractSet[str]) -> Kinds:
    """Return the rows of the head of the first noun phrase: `port` in `ssh port of it`."""
    words = _COMPOUND.findall(_CLAUSE_END.split(question.lower(), maxsplit=1)[0])
    first = next((at for at, word in enumerate(words) if word not in passed), len(words))
    if first == 1 and words[0] in _BEFORE_VERBS:
        return 0
    # the noun phrase ends before a preposition, a verb or a filler word
    ends = next(
        (at for at in range(first, len(words)) if words[at] in _AFTER_NOUNS | passed), len(words)
    )
    for at, length, kinds in _phrases().find(words[first:ends]):
        if at and first + at + length == ends:
            # `creates accounts`, but `kubernetes pods`
            is_verb = words[first].endswith("s") and words[ends - 1].endswith("s")
            return 0 if is_verb and not gloss(words[first]) else kinds
    return 0


@cache
def published() -> Kinds:
    """Return the rows that only publishers have objects of, since op-dbus does not observe them."""
    return sum(
        1 << number
        for number, row in enumerate(rows())
        if row.object_ids and all(object_id.startswith("*/") for object_id in row.object_ids)
    )


def kind_words(question: str) -> set[str]:
    """Return the words of a question that name kinds."""
    asked = tables.words_of(question)
    found = _phrases().find(asked)
    return {word for at, length, kinds in found if kinds for word in asked[at : at + length]}


def kind_phrases(question: str) -> list[str]:
    """Return the phrases of several words in a question that name kinds."""
    words = tables.words_of(question)
    found = _phrases().find(words)
    return [" ".join(words[at : at + length]) for at, length, _ in found if length > 1]


@cache
def _phrases() -> tables.Phrases:
    return tables.Phrases(
        (row.phrases, 1 << number if row.object_ids else 0) for number, row in enumerate(rows())
    )
