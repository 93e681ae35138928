"""Plain words for well-known names such as `chronyd` or `wg0`, from glossary.tsv."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from opdbus.language import tables

_UNITS = frozenset(
    "service socket timer target mount automount path slice scope device swap".split()
)
# Prefix after which a version begins in a name such as linux-image-6.1.0-35-amd64.
_BEFORE_NUMBER = re.compile(r"(?:.*[^\w.+~-])?", re.DOTALL)
_NUMBER = re.compile(r"-\d")


@cache
def entries() -> Mapping[str, str]:
    """Read the glossary: the meaning of each name."""
    return {name: meaning for names, meaning in tables.rows("glossary") for name in names.split()}


def gloss(name: str) -> str:
    """Return the meaning of a whole name, "" if it has none; parts of names mislead.

    `python3-openssl` is not a programming language, and the account `systemd-timesync` not a
    manager.
    """
    names = entries()
    for form in _forms(name.lower()):
        if form in names:
            return names[form]
    return ""


def _forms(name: str) -> Iterator[str]:
    """Yield a name, and the name without the suffix, instance or number of a unit."""
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
    # wg0 and linux-image-6.1.0-35-amd64
    yield bare[: number.start()] if number else bare.rstrip("0123456789")
