"""Values and lists of names for messages; pairs of values cut to the place where they differ."""

import json
import math
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

# Characters shown before the first difference of two long texts.
_BEFORE: Final = 12
_MAX_COMPARED: Final = 2000
# Larger numbers are printed in scientific notation.
_LONG: Final = 1e15
# Characters that look like those of ASCII: from confusables.txt of UTS #39, limited to scripts that
# are used beside Latin.
_CONFUSABLES: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u0501\u04bb"
    "\u051b\u051d\u04cf\u0475\u0433\u0410\u0412\u0415\u041a\u041c\u041d\u041e"
    "\u0420\u0421\u0422\u0425\u0405\u0406\u0408\u04ae\u051a\u051c\u03bf\u03bd"
    "\u03b1\u03c1\u03b9\u03c5\u03b3\u0391\u0392\u0395\u0396\u0397\u0399\u039a"
    "\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u0585\u057d\u0570\u0578\u0131"
    "\u2010\u2012\u2013\u2014\u2212\u2018\u2019\u201c\u201d\u2215\u2044",
    "aeopcyxsijdhqwlvrABEKMHOPCTXSIJYQWovapiuyABEZHIKMNOPTYXouhni-----''\"\"//",
)


def join_first(
    names: Sequence[str], most: int, between: str = ", ", *, total: int | None = None
) -> str:
    """Join the first `most` names, with the number of the rest.

    `total` is the number of all names, where only the first ones are given.
    """
    more = (len(names) if total is None else total) - most
    return between.join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def format_value(value: object) -> str:
    """Format a value for people; None and NaN are empty."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        is_whole = 1000 <= abs(value) < _LONG
        return "" if math.isnan(value) else f"{value:.0f}" if is_whole else f"{value:.4g}"
    return str(value)


def shorten(text: str, most: int) -> str:
    """Cut a text to `most` characters; a cut text ends in `...`."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def show_difference(one: str, other: str, most: int) -> tuple[str, str]:
    """Return two texts, of at most `most` characters each, in which their difference is visible.

    Texts that look alike are quoted, with characters beyond ASCII escaped. Long texts are cut to
    the part that differs.
    """
    # equal skeletons: they differ only in blanks, invisible characters or letters of other scripts;
    # `Müller` and `Möller` are visibly different
    if one != other and _skeleton(one) == _skeleton(other):
        sides = json.dumps(one), json.dumps(other)
    else:
        sides = " ".join(one.split()), " ".join(other.split())
    return cut_to_difference(*sides, most)


def cut_to_difference(one: str, other: str, most: int) -> tuple[str, str]:
    """Cut two texts to `most` characters each, beginning shortly before the first difference."""
    near = most - 2 * _BEFORE
    if one != other and max(len(one), len(other)) > most and one[:near] == other[:near]:
        # comparing prefixes by bisection is faster than comparing characters
        lengths = range(near, min(len(one), len(other)) + 1)
        shared = near + bisect_left(lengths, 1, key=lambda n: one[:n] != other[:n]) - 1
        start = max(0, shared - _BEFORE)
        one, other = f"...{one[start:]}", f"...{other[start:]}"
    return shorten(one, most), shorten(other, most)


def _skeleton(text: str) -> str:
    """Return a text without invisible characters, with ASCII for confusable letters (UTS #39)."""
    # the differing parts of longer texts are shown in any case
    plain = unicodedata.normalize("NFKC", text[:_MAX_COMPARED]).translate(_CONFUSABLES)
    invisible = {"Cf", "Cc"}
    kept = (c for c in plain if c in "\t\n" or unicodedata.category(c) not in invisible)
    return " ".join("".join(kept).split())
