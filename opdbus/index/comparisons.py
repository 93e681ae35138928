"""Comparisons with a number in a question, such as `over 90 percent` and `uid above 1000`. Pure."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from opdbus.index.lexical import STOP_WORDS
from opdbus.state.conditions import Condition, condition
from opdbus.state.flatten import singular

# Words before a number that ask for more, or for less.
_ORDERS: Final = {
    **dict.fromkeys("more than|greater than|larger than|bigger than|higher than".split("|"), ">"),
    **dict.fromkeys("over|above|exceeding|beyond".split("|"), ">"),
    **dict.fromkeys("less than|fewer than|smaller than|lower than|under|below".split("|"), "<"),
    "at least": ">=",
    "at most": "<=",
}
_OPPOSITE: Final = {">": "<", "<": ">", ">=": "<=", "<=": ">="}
# The order, perhaps a field, the number, perhaps a unit, and of what.
_COMPARISON = re.compile(
    rf"\b({'|'.join(_ORDERS)}) (?:([^\W\d_]+) )?(\d{{1,12}}(?:\.\d{{1,6}})?)(?![\w.:/-]*\d)"
    r"(?: ?(%|[^\W\d_]+)(?: (free|left|available|full|used|in use)\b)?)?",
    re.IGNORECASE,
)
_FREE: Final = frozenset(("free", "left", "available"))
_UNITS: Final = {"%": "percent", "megabytes": "mb", "gigabytes": "gb", "mib": "mb", "gib": "gb"}
_GIGABYTES: Final = {"kb": 1 / (1 << 20), "mb": 1 / (1 << 10), "gb": 1.0, "tb": float(1 << 10)}
_WORD = re.compile(r"[^\W\d_]+")
_MOST: Final = 3
# So much before a comparison is looked at for the name of its field.
_BEFORE: Final = 100


class Comparison(NamedTuple):
    """A comparison from `start` to `end` of a question, and the conditions that it may mean."""

    start: int
    end: int
    meanings: tuple[Condition, ...]


def find(question: str) -> list[Comparison]:
    """Return the first comparisons in a question."""
    return [
        Comparison(
            match.start(),
            match.end() if _unit(match) in {"percent", *_GIGABYTES} else match.end(3),
            tuple(_meanings(question, match)),
        )
        for match in islice(_COMPARISON.finditer(question), _MOST)
    ]


def _unit(match: re.Match[str]) -> str:
    unit = (match[4] or "").lower()
    return _UNITS.get(unit, unit)


def _meanings(question: str, match: re.Match[str]) -> Iterator[Condition]:
    """Yield what a comparison may mean: its unit names the field, or a word before it does."""
    order, number, unit = _ORDERS[match[1].lower()], float(match[3]), _unit(match)
    if unit == "percent" and (match[5] or "").lower() in _FREE:
        yield _condition(unit, _OPPOSITE[order], 100 - number)
    elif unit == "percent":
        yield _condition(unit, order, number)
    elif unit in _GIGABYTES:
        yield _condition("gb", order, number * _GIGABYTES[unit])
        yield _condition("mb", order, number * _GIGABYTES[unit] * (1 << 10))
    else:
        before = _WORD.findall(question[: match.start()][-_BEFORE:].lower())
        field = next((word for word in reversed(before) if word not in STOP_WORDS), "")
        words = filter(None, ((match[2] or field).lower(), unit))
        yield from (_condition(name, order, number) for name in dict.fromkeys(map(singular, words)))


def _condition(field: str, order: str, number: float) -> Condition:
    return condition(field, order, f"{number:.6f}")
