"""Comparison of package versions by deb-version(7), which suits most rpm versions too."""

import re
from fnmatch import fnmatchcase
from typing import Final

_PARTS: Final = re.compile(r"([^0-9]*)([0-9]*)")
_WANTED: Final = re.compile(r"(>=|<=|==|=|>>|<<|>|<)?\s*+(\S+)")
# More bounds than anybody gives; each is compared with the whole version.
_MAX_BOUNDS: Final = 8


def compare(one: str, other: str) -> int:
    """Return -1 if the first version is older, 1 if it is newer, otherwise 0."""
    first, second = _key(one), _key(other)
    return (first > second) - (first < second)


def satisfies(wanted: str, version: str, *, exactly: bool = False) -> bool:
    """Return whether a version satisfies bounds: `>= 1.2, < 2`, `1.2*`, or a bare version.

    A bare version means that or a newer one; with `exactly`, only that one.
    """
    return all(_satisfies(one, version, exactly=exactly) for one in wanted.split(",", _MAX_BOUNDS))


def _satisfies(wanted: str, version: str, *, exactly: bool) -> bool:
    match = _WANTED.fullmatch(wanted.strip())
    if match is None:
        return wanted.strip() == version
    sign, least = match[1] or ("=" if exactly else ">="), match[2]
    if "*" in least:
        return fnmatchcase(version, least)
    order = compare(least, _as_far_as(least, version))
    return {
        ">=": order <= 0, "<=": order >= 0, ">": order < 0, "<": order > 0,
        ">>": order < 0, "<<": order > 0, "=": order == 0, "==": order == 0,
    }[sign]  # fmt: skip


def _as_far_as(wanted: str, version: str) -> str:
    """Strip the epoch and the revision from a version if the bound has none."""
    if ":" not in wanted:
        version = version.rpartition(":")[2]
    return version if "-" in wanted else version.rpartition("-")[0] or version


def _key(version: str) -> tuple[object, ...]:
    epoch, separator, rest = version.partition(":")
    if not separator or not (epoch.isascii() and epoch.isdecimal()):
        epoch, rest = "", version
    upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return _decimal(epoch), _order(upstream), _order(revision)


def _order(part: str) -> tuple[object, ...]:
    """Return a key that orders as dpkg does: words and numbers in turns, `~` before the end."""
    found: list[object] = []
    for word, digits in _PARTS.findall(part):
        found += [(*map(_weight, word), 0), _decimal(digits)]
    return tuple(found)


def _decimal(digits: str) -> tuple[int, str]:
    """Return a key that orders numbers of any length: int() reads at most 4,300 digits."""
    plain = digits.lstrip("0")
    return len(plain), plain


def _weight(char: str) -> int:
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256
