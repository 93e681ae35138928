"""Comparison of values that mean the same in different notations."""

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final

from opdbus.state.conditions import BOOLEANS, Number, mean_one, number, same_span
from opdbus.state.fields import split
from opdbus.state.long_text import sub
from opdbus.state.object import Json, canonical
from opdbus.state.secret_text import REDACTED

_TRUE: Final = frozenset({"enabled", *(word for word, value in BOOLEANS.items() if value)})
_FALSE: Final = frozenset({"disabled", *(word for word, value in BOOLEANS.items() if not value)})
# Words in the keys of values that change by themselves.
_VOLATILE: Final = frozenset(
    "pid mainpid ppid inode uptime timestamp bytes packets counter counters usage current percent"
    " usec nsec monotonic nrestarts restarts handshake since last temperature signal dbm elapsed"
    " heartbeat seen idle".split()
)
# Blanks that do not count around a value or repeated in it; others, such as a no-break space, do.
_BLANKS: Final = " \t\n"
_GAP: Final = re.compile(r"[ \t\n]+")
_BETWEEN: Final = re.compile(r"[, \t\n\r]+")
# The notation that the kernel's `proc_dointvec` reads: it accepts no plus sign.
_KERNEL_NUMBER: Final = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,19})")
_KERNEL_BLANKS: Final = re.compile(r"[ \t\n\v\f\r]+")
_MAC: Final = re.compile(r"[0-9a-f]{2}([:-][0-9a-f]{2}){5}", re.IGNORECASE)
_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]++\.?+[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]{1,9})?")
# possessive quantifiers: matching takes linear time
_ADDRESS: Final = re.compile(r"[0-9a-f]*+[:.][0-9a-f:.]*+(?:/[0-9]{1,3})?", re.IGNORECASE)
# Longer texts are compared literally: they are no numbers, addresses or words with a meaning.
_MAX_READ: Final = 256
# Limits of matching lists of objects element by element: the number of elements,
_MAX_MATCHED: Final = 200
# and the steps of all comparisons, about 0.2 s.
_MAX_STEPS: Final = 100_000
_CHARACTERS_A_STEP: Final = 1000


def same(declared: Json, observed: Json, *, ordered: bool = False) -> bool:
    """Return whether two values mean the same; order counts in lists only if `ordered`.

    Of objects, only fields that both sides have are compared. Lists of objects that would take too
    long to match count as different.
    """
    return _Comparison(ordered=ordered).same(declared, observed)


class _Comparison:
    """One comparison of two values, with the steps that are left to match lists."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._left = _MAX_STEPS

    def same(self, declared: Json, observed: Json) -> bool:
        if isinstance(declared, dict) and isinstance(observed, dict):
            self._left -= len(declared) + len(observed)
            there = by_words(observed)
            lasting = ((key, value) for key, value in declared.items() if not is_volatile(key))
            pairs = ((key, value, find_value(observed, there, key)) for key, value in lasting)
            return all(
                self._same_field(key, value, other[0]) for key, value, other in pairs if other
            )
        one, other = _as_list(declared, observed), _as_list(observed, declared)
        if isinstance(one, list) and isinstance(other, list):
            return self._same_list(one, other)
        if isinstance(declared, dict | list) or isinstance(observed, dict | list):
            return all(side in (None, "", [], {}) for side in (declared, observed))
        texts = [side for side in (declared, observed) if isinstance(side, str)]
        self._left -= 1 + sum(map(len, texts)) // _CHARACTERS_A_STEP
        return is_hidden(declared) or is_hidden(observed) or _same_scalar(declared, observed)

    def _same_field(self, key: str, declared: Json, observed: Json) -> bool:
        is_same = same_span(key, declared, observed)
        return self.same(declared, observed) if is_same is None else is_same

    def _same_list(self, declared: Sequence[Json], observed: Sequence[Json]) -> bool:
        if len(declared) != len(observed):
            return False
        if self._ordered:
            return all(map(self.same, declared, observed))
        forms = [*map(_form, declared)]
        self._left -= len(forms) + sum(map(len, forms)) // _CHARACTERS_A_STEP
        if not Counter(map(_form, observed)) - Counter(forms):
            return True
        if len(declared) > _MAX_MATCHED:
            return False
        rest = list(observed)
        # the longest first: a short element may match more of the others
        for at in sorted(range(len(forms)), key=lambda at: -len(forms[at])):
            for place, other in enumerate(rest):
                if self._left >= 0 and self.same(declared[at], other):
                    del rest[place]
                    break
            else:
                return False
        return True


def same_setting(wanted: str, value: str) -> bool:
    """Return whether writing a text to a kernel setting results in a value.

    Of several numbers, the first may be written alone; text after the last number is ignored.
    """
    one, other = _setting(wanted), _setting(value)
    if other and all(isinstance(word, int) for word in other):
        one = list(takewhile(lambda word: isinstance(word, int), one))[: len(other)]
        return bool(one) and other[: len(one)] == one
    return one == other


def _setting(text: str) -> list[int | str]:
    """Return the words of a setting, numbers as the kernel reads them: 0x10 is 16, 010 is 8."""
    return [
        int(word, 16 if "x" in word.lower() else 8 if word.lstrip("-")[0] == "0" else 10)
        if _KERNEL_NUMBER.fullmatch(word)
        else word
        for word in _KERNEL_BLANKS.split(text.strip(" \t\n\v\f\r"))
        if word
    ]


def is_hidden(value: Json) -> bool:
    """Return whether a value contains a redacted secret and so cannot be compared."""
    return isinstance(value, str) and REDACTED in value


def is_volatile(key: str) -> bool:
    """Return whether a key names a volatile value."""
    return not _VOLATILE.isdisjoint(split(key))


def by_words(properties: Mapping[str, Json]) -> dict[str, str]:
    """Return the keys of an object by their normalized form: ActiveState by active_state."""
    return {normalize_key(key): key for key in properties}


def normalize_key(key: str) -> str:
    """Return a key in lower case, its words joined by underscores."""
    return "_".join(split(key))


def find_value(properties: Mapping[str, Json], there: Mapping[str, str], key: str) -> list[Json]:
    """Return the value of a key or of its normalized form in a list, empty for none."""
    if key in properties:
        return [properties[key]]
    found = there.get(normalize_key(key))
    return [] if found is None else [properties[found]]


def items(value: Json) -> list[Json]:
    """Return the items of a list, or of a text that is separated by commas or blanks."""
    if isinstance(value, str):
        return list(filter(None, _BETWEEN.split(value)))
    return value if isinstance(value, list) else [] if value is None else [value]


def is_true(value: Json) -> bool | None:
    """Return the Boolean that a value means; None if it means neither."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) > _MAX_READ:
        return None
    text = str(value).strip().lower()
    return True if text in _TRUE | {"1"} else False if text in _FALSE | {"0"} else None


def _as_list(value: Json, other: Json) -> Json:
    """Split a text that is compared with a list of several items, such as `4096 6291456`."""
    is_text = isinstance(value, str) and isinstance(other, list) and len(other) > 1
    return items(value) if is_text else value


def _form(value: Json) -> str:
    """Return a text that is equal for most values that mean the same."""
    if isinstance(value, dict | list):
        return canonical(value)
    return sub(_GAP, " ", str(value).strip(_BLANKS)).lower()


def _same_scalar(declared: Json, observed: Json) -> bool:
    if declared == observed or _form(declared) == _form(observed):
        return "/" not in str(declared) or _strip(declared) == _strip(observed)
    if declared is None or observed is None:
        return "" in (declared, observed)
    if isinstance(declared, bool) or isinstance(observed, bool):
        said = is_true(declared)
        return said is not None and said is is_true(observed)
    if isinstance(declared, int | float) or isinstance(observed, int | float):
        one, other = _read_number(declared), _read_number(observed)
        if one is not None and other is not None:
            return one == other
        return is_true(declared) is not None and is_true(declared) is is_true(observed)
    return _same_text(_strip(declared), _strip(observed))


def _strip(value: Json) -> str:
    return str(value).strip(_BLANKS)


def _same_text(one: str, other: str) -> bool:
    # /srv/ and //srv equal /srv
    is_same_path = one[:1] == other[:1] == "/" and _parts(one) == _parts(other)
    if is_same_path or len(one) > _MAX_READ or len(other) > _MAX_READ:
        return is_same_path
    first, second = one.lower(), other.lower()
    for meaning in (_TRUE, _FALSE):
        if first in meaning:
            return second in meaning
    if _MAC.fullmatch(one) and _MAC.fullmatch(other):
        return first.replace("-", ":") == second.replace("-", ":")
    if _ADDRESS.fullmatch(one) and _ADDRESS.fullmatch(other):
        return address(one) == address(other)
    return mean_one(one, other)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _read_number(value: Json) -> Number | None:
    if isinstance(value, int | float):
        return value
    if isinstance(value, str) and len(value) > _MAX_READ:
        return None
    text = str(value)
    found = number(text)
    # no inf, nan or 1_000, which float() accepts
    return float(text) if found is None and _FLOAT.fullmatch(text) else found


def address(text: str) -> str:
    """Return an IP address in its usual notation, and any other text unchanged."""
    try:
        return str(ipaddress.ip_interface(text) if "/" in text else ipaddress.ip_address(text))
    except ValueError:
        return text
