"""How changes have to do with each other: by the names of things, and by what caused them. Pure."""

import re
from collections.abc import Set as AbstractSet
from typing import Final

from opdbus.history import jobs
from opdbus.history.change import BOOT, FIRST, SOURCE, START
from opdbus.history.question import Row
from opdbus.state.fields import split
from opdbus.state.object import Thing, canonical
from opdbus.text import DESCRIBING, UNIT_NOUNS

# What it counts to be of the same thing, to name it or be named by it, to have the same cause. What
# happened to the thing itself is likely to be known.
SAME: Final = 0.6
NAMED: Final = 0.8
CAUSED: Final = 0.5
_SUFFIX = re.compile(rf"\.(?:{'|'.join(UNIT_NOUNS)}|d|conf|cfg|ini)$")
_NAME = re.compile(r"[^\W_][\w@.+:-]*")
# Words in these are no names.
_TEXTS: Final = frozenset(DESCRIBING)
# Shorter names, and those of many things, are ordinary words in what other things say.
_SHORTEST: Final = 3
_ORDINARY: Final = frozenset(
    "fact hostname hardware kernel locale os time root user users"
    " bin etc games lib local mail man news opt sbin share srv sys system tmp usr var".split()
)
# Causes of everything that changed at such a time.
_COMMON: Final = frozenset(("", "exit", "kernel", "reload", BOOT, FIRST, SOURCE, START))


def called(thing: Thing) -> AbstractSet[str]:
    """Return what a thing is called: its name, and that without its folder and its suffix."""
    name = thing.name.lower()
    last = name.rpartition("/")[2] if name.startswith("/") else name.partition(" ")[0]
    bare = _SUFFIX.sub("", last)
    return {form for form in (name, last, bare, bare.partition("@")[0]) if form}


def relation(row: Row, other: Row, connected: AbstractSet[Thing]) -> float:
    """Return how much two changes have to do with each other; 0 if nothing is known of it.

    `connected` are the things that are connected with the other one's now. What is gone, and what
    has no field for it, is told by names.
    """
    one, two = Thing(*row.identity[1:]), Thing(*other.identity[1:])
    if one == two:
        return SAME
    if one in connected or _names(one) & _said(other) or _names(two) & _said(row):
        return NAMED
    cause = jobs.alone(row.cause)
    is_same = cause == jobs.alone(other.cause) and cause.partition(":")[0] not in _COMMON
    return CAUSED if is_same else 0.0


def _names(thing: Thing) -> AbstractSet[str]:
    return {n for n in called(thing) if len(n) >= _SHORTEST} - _ORDINARY


def _said(row: Row) -> AbstractSet[str]:
    """Return the names in a row: in that of its object, and in the values of telling fields."""
    told = (field for field in row.fields if "".join(split("".join(field.path[-1:]))) not in _TEXTS)
    values = canonical([[*(field.before or ()), *(field.after or ())] for field in told])
    return _mentioned(f"{row.identity.name} {values}") | called(Thing(*row.identity[1:]))


def _mentioned(text: str) -> AbstractSet[str]:
    words = {word.strip(".:-") for word in _NAME.findall(text.lower())}
    return words | {_SUFFIX.sub("", word.removesuffix(".d")) for word in words}
