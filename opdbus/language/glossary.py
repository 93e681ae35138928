"""Plain words for well-known names such as `chronyd` or `wg0`, from glossary.tsv."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from opdbus.language import tables

_UNITS = frozenset(
    "service socket timer target mount automount path slice scope device swap".split()
)
# What a number at the end may follow, in a name such as linux-image-6.1.0-35-amd64.
_BEFORE_NUMBER = re.compile(r"(?:.*[^\w.+~-])?", re.DOTALL)
_NUMBER = re.compile(r"-\d")


@cache
def entries() -> Mapping[str, str]:
    """Read the glossary: the meaning of each name."""
    return {name: meaning for names, meaning in tables.rows("glossary") for name in names.split()}


def gloss(name: str) -> str:
    """Return what a whole name means, else an empty string: parts of names mislead.

    `python3-openssl` is no programming language, and the account `systemd-timesync` no manager.
    """
    names = entries()
    for form in _forms(name.lower()):
        if form in names:
            return names[form]
    return ""


def _forms(name: str) -> Iterator[str]:
    """Yield a name as it is, and without the suffix, the instance or the number of a unit."""
    yield name
    stem, dot, suffix = name.rpartition(".")
    bare = stem if dot and suffix in _UNITS else name
    yield bare
    if "@" in bare:
        bare = bare[: bare.index("@")]
        yield f"{bare}@"
        yield bare
    before = _BEFORE_NUMBER.match(bare)
    number = _NUMBER.search(bare, before.end() if before else 0)
    # wg0, and linux-image-6.1.0-35-amd64
    yield bare[: number.start()] if number else bare.rstrip("0123456789")
