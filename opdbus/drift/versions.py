"""Versions of packages in their order: that of deb-version(7), which suits most rpms too."""

import re
from fnmatch import fnmatchcase
from typing import Final

_PARTS: Final = re.compile(r"([^0-9]*)([0-9]*)")
_WANTED: Final = re.compile(r"(>=|<=|==|=|>>|<<|>|<)?\s*+(\S+)")
# More than anybody gives; each is compared with the whole version.
_MAX_BOUNDS: Final = 8


def compare(one: str, other: str) -> int:
    """Return less than 0 where one version is older than the other, and more where it is newer."""
    first, second = _key(one), _key(other)
    return (first > second) - (first < second)


def satisfies(wanted: str, version: str, *, exactly: bool = False) -> bool:
    """Return whether a version is as wanted: `>= 1.2, < 2`, `1.2*`, or a bare one or a newer one.

    A bare one is to be met exactly if the caller says so.
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
    """Leave out of a version the epoch and the revision where those that are wanted have none."""
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
    """Return what sorts as dpkg does: by turns words and numbers, `~` before the end of a word."""
    found: list[object] = []
    for word, digits in _PARTS.findall(part):
        found += [(*map(_weight, word), 0), _decimal(digits)]
    return tuple(found)


def _decimal(digits: str) -> tuple[int, str]:
    """Return what sorts as a number of any length does: Python reads 4,300 digits at most."""
    plain = digits.lstrip("0")
    return len(plain), plain


def _weight(char: str) -> int:
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256
