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
# wg0, and linux-image-6.1.0-35-amd64
_NUMBER = re.compile(r"(?:-\d[\w.+~-]*|\d+)$")


@cache
def version() -> str:
    """Return a hash of the glossary: texts are rendered again when it changes."""
    return hashlib.blake2b(_file().read_bytes(), digest_size=4).hexdigest()


def _file() -> Traversable:
    return resources.files("opdbus") / "glossary.tsv"


@cache
def entries() -> Mapping[str, str]:
    """Read the glossary: the meaning of each name."""
    names: dict[str, str] = {}
    for line in _file().read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            listed, meaning = line.split("\t")
            names |= dict.fromkeys(listed.split(), meaning)
    return names


def gloss(name: str) -> str:
    """Return what a whole name means, else an empty string: parts of names mislead.

    `python3-openssl` is no programming language, and the account `systemd-timesync` no manager.
    """
    names = entries()
    return next((names[form] for form in _forms(name.lower()) if form in names), "")


def _forms(name: str) -> Iterator[str]:
    """Yield a name as it is, and without the suffix, the instance or the number of a unit."""
    yield name
    bare = _UNIT.sub("", name)
    yield bare
    template, at, _ = bare.partition("@")
    if at:
        yield template + "@"
        yield template
    yield _NUMBER.sub("", template)
