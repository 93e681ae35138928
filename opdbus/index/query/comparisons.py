"""Comparisons with a number in a question: `over 90 percent`, `uid above 1000`. Pure."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from opdbus.index.query.query_terms import STOP_WORDS
from opdbus.state.conditions import Condition, condition
from opdbus.state.flatten import singular

# Phrases before a number, by operator.
_ORDERS: Final = {
    **dict.fromkeys("more than|greater than|larger than|bigger than|higher than".split("|"), ">"),
    **dict.fromkeys("over|above|exceeding|beyond".split("|"), ">"),
    **dict.fromkeys("less than|fewer than|smaller than|lower than|under|below".split("|"), "<"),
    "at least": ">=",
    "at most": "<=",
}
_OPPOSITE: Final = {">": "<", "<": ">", ">=": "<=", "<=": ">="}
_NUMBERS: Final = {
    word: float(number)
    for number, word in enumerate("zero one two three four five six seven eight nine ten".split())
}
# The operator, an optional field, the number, an optional unit, and `free` or `used`.
_COMPARISON = re.compile(
    rf"\b({'|'.join(_ORDERS)}) (?:(?:the|usual|default|normal) )*(?:([^\W\d_]+) )?"
    rf"(\d{{1,12}}(?:\.\d{{1,6}})?|(?:{'|'.join(_NUMBERS)})\b)(?![\w.:/-]*\d)"
    r"(?: ?(%|[^\W\d_]+)(?: (free|left|available|full|used|in use)\b)?)?",
    re.IGNORECASE,
)
_FREE: Final = frozenset(("free", "left", "available"))
_UNITS: Final = {
    "%": "percent", "bytes": "b", "byte": "b", "kilobytes": "kb", "megabytes": "mb",
    "gigabytes": "gb", "terabytes": "tb", "kib": "kb", "mib": "mb", "gib": "gb", "tib": "tb",
}  # fmt: skip
_BYTES: Final = {unit: 1 << 10 * power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb"))}
_WORD = re.compile(r"[^\W\d_]+")
_MOST: Final = 3
# Characters before a comparison in which its field is looked for.
_BEFORE: Final = 100


class Comparison(NamedTuple):
    """The span `start` to `end` of a comparison, and the conditions that it may mean."""

    start: int
    end: int
    meanings: tuple[Condition, ...]


def find(question: str) -> list[Comparison]:
    """Return the first `_MOST` comparisons of a question.

    A comparison ends after its unit if that is percent or bytes, otherwise after the number.
    """
    return [
        Comparison(
            match.start(),
            match.end() if _unit(match) in {"percent", *_BYTES} else match.end(3),
            tuple(_meanings(question, match)),
        )
        for match in islice(_COMPARISON.finditer(question), _MOST)
    ]


def _number(text: str) -> float:
    return _NUMBERS[text] if text in _NUMBERS else float(text)


def _unit(match: re.Match[str]) -> str:
    unit = (match[4] or "").lower()
    return _UNITS.get(unit, unit)


def _meanings(question: str, match: re.Match[str]) -> Iterator[Condition]:
    """Yield the conditions that a comparison may mean.

    A unit of percent or bytes implies the field. Otherwise the field is the word after the
    operator, or the last word before it that is not a stop word, or the unit.
    """
    order, number, unit = _ORDERS[match[1].lower()], _number(match[3].lower()), _unit(match)
    if unit == "percent" and (match[5] or "").lower() in _FREE:
        yield _condition(unit, _OPPOSITE[order], 100 - number)
    elif unit == "percent":
        yield _condition(unit, order, number)
    elif unit in _BYTES:
        for field, size in (("size", 1), ("mb", _BYTES["mb"]), ("gb", _BYTES["gb"])):
            yield _condition(field, order, number * _BYTES[unit] / size)
    else:
        before = _WORD.findall(question[: match.start()][-_BEFORE:].lower())
        field = next((word for word in reversed(before) if word not in STOP_WORDS), "")
        words = filter(None, ((match[2] or field).lower(), unit))
        yield from (_condition(name, order, number) for name in dict.fromkeys(map(singular, words)))


def _condition(field: str, order: str, number: float) -> Condition:
    return condition(field, order, f"{number:.6f}")
