"""Conditions on fields, such as `active_state=failed`: grammar and evaluation. Pure."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from opdbus.errors import InvalidArgs
from opdbus.platform import timestamps
from opdbus.state import fields
from opdbus.state.object import Identity, Json

Number: TypeAlias = int | float

# Comparisons of text ignore case; a list meets a condition if any of its members does.
OPERATORS: Final = ("=", "!=", ">", ">=", "<", "<=", "~")
# The operator of questions, such as `state:failed`: equal, or contained in a text with words.
IS: Final = ":"
MAX_CONDITIONS: Final = 16
MAX_CHARACTERS: Final = 1000
ACCEPTED: Final = (
    "a condition is FIELD=VALUE, or has one of != > >= < <= ~ (contains) in place of =; several are"
    ' joined with commas, and a value with commas stands in quotes, such as options~"rw,noatime"'
)

ORDERS: Final[Mapping[str, Callable[[Number, Number], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_FIELD: Final = r"[^\s,=!<>~\"']+"
_NO_AND: Final = rf"(?!and\s+{_FIELD}\s*[=!<>~])"
_CONDITION = re.compile(
    rf"\s*({_FIELD})\s*([=!<>~]+)\s*"
    rf"(\"[^\"]*\"|'[^']*'|(?:{_NO_AND}[^,\s]+(?:\s++{_NO_AND}[^,\s]+)*)?)\s*"
    rf"(?:,|$|(?<=\s)and\s(?=\s*{_FIELD}\s*[=!<>~]))",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_NUMBER = re.compile(
    r"([+-]?\d{1,30}(?:\.\d{1,30})?)[ \t]*(?:%|([kmgtp]?)(?:i?b)?)|[+-]?0x[0-9a-f]{1,16}",
    re.IGNORECASE | re.ASCII,
)
_BEFORE_NUMBERS: Final = frozenset("+-0123456789 \t\n")
_UNITS: Final = ("", "k", "m", "g", "t", "p")
# Fields whose names end in one of these hold time spans; a bare number has this unit.
_SPAN_UNITS: Final = frozenset("sec secs seconds ms msec usec".split())
_MAX_SPAN: Final = 256
_FOREVER: Final = ("infinity", f"{2**64 - 1}usec")
BOOLEANS: Final = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; `value` is in lower case."""

    field: str
    operator: str
    value: str

    def is_met_by(self, found: Sequence[Json]) -> bool:
        """Return whether an object's values of the field meet the condition."""
        if self.operator == "!=":
            return bool(found) and not any(map(self._equals, found))
        test = _TESTS.get(self.operator, Condition._compares)
        for value in found:  # noqa: SIM110 -- `any` takes twice as long
            if test(self, value):
                return True
        return False

    @property
    def part(self) -> str:
        """Return a string that the JSON of every match has in some case; "" if there is none."""
        is_plain = self.value.isascii() and self.value.isprintable()
        if self._is_text and is_plain and self.operator in {"=", "~", IS}:
            return max(re.split(r'["\\]', self.value), key=len)
        return ""

    @property
    def patterns(self) -> list[str]:
        """Return SQL LIKE patterns that every match's JSON meets; backslash is the escape."""
        # SQLite ignores case for ASCII only
        words = [word for word in fields.split(self.field) if word.isascii()]
        return [*map(pattern, words), pattern(self.part)]

    @property
    def text(self) -> str:
        """Return the only text, apart from case, that meets the condition; "" if others may."""
        return self.value if self.operator == "=" and self._is_text else ""

    @property
    def _is_text(self) -> bool:
        is_number = number(self.value) is not None
        return not is_number and self.value not in BOOLEANS and not self.is_span

    @property
    def is_span(self) -> bool:
        """Return whether the value is a time span, which can be written in many ways."""
        return _span(self.value, _span_unit(self.field)) is not None

    def _equals(self, value: Json) -> bool:
        is_same = same_span(self.field, value, self.value)
        if is_same is not None:
            return is_same
        if isinstance(value, bool):
            return BOOLEANS.get(self.value) is value
        if isinstance(value, int | float):
            return number(self.value) == value
        return mean_one(_lower(value), self.value)

    def _is_part(self, value: Json) -> bool:
        return self.value in _lower(value)

    def _is(self, value: Json) -> bool:
        return self._equals(value) or (" " in _lower(value) and self._is_part(value))

    def _compares(self, value: Json) -> bool:
        if isinstance(value, bool):
            return False
        found = value if isinstance(value, int | float) else number(_lower(value))
        limit = number(self.value)
        if found is None or limit is None:
            return False
        return ORDERS[self.operator](found, limit)


_TESTS: Final[Mapping[str, Callable[[Condition, Json], bool]]] = {
    "=": Condition._equals,
    "~": Condition._is_part,
    IS: Condition._is,
}


def parse(text: str) -> tuple[Condition, ...]:
    """Parse conditions that are joined with commas or `and`; raises InvalidArgs."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidArgs(f"conditions may have at most {MAX_CHARACTERS} characters in all")
    found = []
    at = 0
    while text[at:].strip():
        match = _CONDITION.match(text, at)
        if not match:
            raise InvalidArgs(f"{text[at:].strip()!r} is no condition: {ACCEPTED}")
        found.append(condition(*match.groups()))
        at = match.end()
    if len(found) > MAX_CONDITIONS:
        raise InvalidArgs(f"there are {len(found)} conditions, at most {MAX_CONDITIONS} are taken")
    return tuple(found)


def pattern(text: str) -> str:
    """Return the LIKE pattern for texts that contain a text."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def condition(name: str, compared: str, given: str) -> Condition:
    """Return the condition of three parts, the value perhaps in quotes; raises InvalidArgs."""
    written = f"{name}{compared}{given}"
    if not fields.split(name):
        raise InvalidArgs(f"{written!r} names no field: {ACCEPTED}")
    if compared not in (*OPERATORS, IS):
        raise InvalidArgs(f"there is no operator {compared!r}: {ACCEPTED}")
    if not given or (given[0] in "\"'" and not _QUOTED.fullmatch(given)):
        raise InvalidArgs(f'{written!r} lacks a value, "" if the empty one is meant: {ACCEPTED}')
    value = given[1:-1] if _QUOTED.fullmatch(given) else given
    if compared in ORDERS and number(value) is None:
        raise InvalidArgs(f"{written!r} needs a number such as 90 or 4G, and {value!r} is not one")
    return Condition(name, compared, value.lower())


class AllOf:
    """Conditions that an object must meet together."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self.conditions = conditions
        self.names = fields.Names(condition.field for condition in conditions)

    def hold(self, identity: Identity, properties: Mapping[str, Json]) -> bool:
        """Return whether an object meets all conditions."""
        found = self.names.values(identity, properties)
        return all(c.is_met_by(found.get(c.field, ())) for c in self.conditions)


def mean_one(one: str, other: str) -> bool:
    """Return whether two texts are the same value: the same word, boolean, number or time span.

    Drift uses the same rule. 0644 is 644, 4g is 4294967296, 0x10 is 16, yes is true, and 90s is
    1min 30s. Two numbers with a decimal point may be versions: 1.10 is not 1.1.
    """
    first, second = one.lower(), other.lower()
    if first == second:
        return True
    if first in BOOLEANS or second in BOOLEANS:
        return BOOLEANS.get(first) is BOOLEANS.get(second)
    # most texts are not numbers
    found = number(one) if one[:1] in _BEFORE_NUMBERS else None
    if found is not None and found == number(other):
        return not ("." in one and "." in other)
    # a month is M, and a minute m
    is_span = one[:1].isdigit() and one[-1].isalpha() and other[-1:].isalpha()
    span = _span(one, "") if is_span else None
    return span is not None and span == _span(other, "")


def same_span(field: str, one: Json, other: Json) -> bool | None:
    """Return whether two values of a time span field are equal; None if they are not spans.

    Such fields have names like `TimeoutSec` and `RestartUSec`; a bare number has that unit.
    """
    if not (unit := _span_unit(field)):
        return None
    spans = _span(one, unit), _span(other, unit)
    return None if None in spans else spans[0] == spans[1]


@lru_cache(maxsize=4096)
def _span_unit(field: str) -> str:
    """Return the unit of a time span field; "" for any other, such as `reads_per_sec`."""
    words = ("", *fields.split(field))
    return words[-1] if words[-1] in _SPAN_UNITS and words[-2] != "per" else ""


def _span(value: Json, unit: str) -> float | None:
    """Return a time span in microseconds, a bare number in `unit`; None if it is not a span."""
    is_read = isinstance(value, int | float | str) and not isinstance(value, bool)
    text = str(value).strip(" \t\n") if is_read else ""
    if len(text) > _MAX_SPAN:
        return None
    if unit and text[-1:].isdigit():
        text += unit
    if unit and text.lower() in _FOREVER:
        return math.inf
    try:
        return timestamps.span(text)
    except InvalidArgs:
        return None


def number(text: str) -> Number | None:
    """Return a number, percentage or size with a binary unit, such as 0.5, 0x1f, 95% and 4G."""
    match = _NUMBER.fullmatch(text.strip(" \t\n"))
    if not match:
        return None
    if match[1] is None:
        return int(match[0], 16)
    unit = 1 << 10 * _UNITS.index((match[2] or "").lower())
    return (float(match[1]) if "." in match[1] else int(match[1])) * unit


def _lower(value: Json) -> str:
    return "" if value is None else str(value).lower()
