"""Plain words for well-known names such as `chronyd` or `wg0`, from glossary.tsv."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_UNIT = re.compile(
    r"\.(?:service|socket|timer|target|mount|automount|path|slice|scope|device|swap)$"
)
_SEPARATOR = re.compile(r"[-_.:@ ]+")
_DIGITS = re.compile(r"\d.*$")
# Shorter parts are more often abbreviations of something else.
_SHORTEST_PART = 3
_WHOLE_ONLY = "(whole names only)"


@cache
def version() -> str:
    """Return a hash of the glossary: texts are rendered again when it changes."""
    return hashlib.blake2b(_file().read_bytes(), digest_size=4).hexdigest()


def _file() -> Traversable:
    return resources.files("opdbus") / "glossary.tsv"


@cache
def entries() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Read the glossary: all names with their glosses, and those that may be parts of names.

    Words such as `rotate` have the meaning of the glossary only as whole names.
    """
    names: dict[str, str] = {}
    parts: dict[str, str] = {}
    whole_only = False
    for line in _file().read_text("utf-8").splitlines():
        if line.startswith("#"):
            whole_only = line.endswith(_WHOLE_ONLY)
        elif line:
            listed, meaning = line.split("\t")
            row = dict.fromkeys(listed.split(), meaning)
            names |= row
            parts |= {} if whole_only else row
    return names, parts


def gloss(name: str) -> str:
    """Return the gloss of a name or of its longest known part, else an empty string."""
    names, parts = entries()
    whole = (names[form] for form in _wholes(name.lower()) if form in names)
    partial = (parts[form] for form in _parts(name.lower()) if form in parts)
    return next(whole, "") or next(partial, "")


def _wholes(name: str) -> Iterator[str]:
    """Yield a name as it is, and without the suffix and instance of a unit."""
    yield name
    bare = _UNIT.sub("", name)
    yield bare
    template, at, _ = bare.partition("@")
    if at:
        yield template + "@"
        yield template


def _parts(name: str) -> Iterator[str]:
    """Yield a name's beginnings, longest first, then its parts, with and without numbers."""
    if "/" in name:
        return  # of a mount point only the whole is a name
    parts = _SEPARATOR.split(_UNIT.sub("", name).partition("@")[0])
    for end in range(len(parts) - 1, 1, -1):
        yield "-".join(parts[:end])
    for part in parts:
        if len(part) >= _SHORTEST_PART or len(parts) == 1:
            yield part
            yield _DIGITS.sub("", part)
