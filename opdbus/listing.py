"""The first of many names, and of long ones, as messages give them; values that differ little."""

import json
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

# So much of what two long texts have in common is shown before they differ.
_BEFORE: Final = 12
_MAX_COMPARED: Final = 2000


def first(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Join names; of more than `most` the first, and how many more there are."""
    more = len(names) - most
    return between.join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def shortened(text: str, most: int) -> str:
    """Cut a text of more than `most` characters to so many, the last of which say that."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def distinct(one: str, other: str, most: int) -> tuple[str, str]:
    """Write two texts of at most `most` characters so that a reader sees where they differ.

    Those that look alike are quoted, and their blanks, invisible and foreign characters escaped;
    of long ones the parts that differ are given.
    """
    if one != other and _look_alike(one, other):
        sides = json.dumps(one), json.dumps(other)
    else:
        sides = " ".join(one.split()), " ".join(other.split())
    return cut_to_difference(*sides, most)


def cut_to_difference(one: str, other: str, most: int) -> tuple[str, str]:
    """Cut two texts to `most` characters each, from a little before where they differ."""
    near = most - 2 * _BEFORE
    if one != other and max(len(one), len(other)) > most and one[:near] == other[:near]:
        # halves are compared faster than characters
        lengths = range(near, min(len(one), len(other)) + 1)
        shared = near + bisect_left(lengths, 1, key=lambda n: one[:n] != other[:n]) - 1
        start = max(0, shared - _BEFORE)
        one, other = f"...{one[start:]}", f"...{other[start:]}"
    return shortened(one, most), shortened(other, most)


def _look_alike(one: str, other: str) -> bool:
    """Return whether two texts differ in blanks, in what is invisible, or in foreign letters."""
    first, second = _seen(one), _seen(other)
    return len(first) == len(second) and all(
        a == b or not (a.isascii() and b.isascii()) for a, b in zip(first, second, strict=True)
    )


def _seen(text: str) -> str:
    # of longer ones the parts that differ are shown in any case
    plain = unicodedata.normalize("NFC", text[:_MAX_COMPARED])
    invisible = {"Cf", "Cc"}
    kept = (c for c in plain if c in "\t\n" or unicodedata.category(c) not in invisible)
    return " ".join("".join(kept).split())
