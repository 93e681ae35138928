"""Text of the host as data: cleaned of hidden characters, between marks that it cannot forge."""

import re
import unicodedata
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

# Marks of host text in an answer. No host text has these two characters: see `clean`.
BEGIN: Final = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}host data"
END: Final = "end of host data\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
# Bytes of a line, so that it has no more tokens; a longer one is cut, and its length given.
MAX_LINE: Final = 1000
# Characters that are read for a byte that is shown: the others may be hidden ones.
_READ_AHEAD: Final = 8
# Bytes of a key of a value, and the deepest level and the number of values that are shown of it.
_MAX_KEY: Final = 200
_MAX_DEPTH: Final = 8
_MAX_VALUES: Final = 1000
_MARKS: Final = str.maketrans("\u27e6\u27e7", "[]")
# Sequences of terminals: CSI, OSC, DCS and their like, and single escapes (ECMA-48).
_TERMINAL: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_BLANK: Final = re.compile(r"\s+")
# Categories without a visible character: controls, formats, surrogates, private, unassigned,
# and separators of lines.
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Others that show nothing: fillers, variation selectors, the grapheme joiner, blank Braille.
_HIDDEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)


def clean(text: str) -> str:
    """Return a text in one line, without terminal sequences, hidden characters and marks."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    shown = _HIDDEN.sub("", _BLANK.sub(" ", _TERMINAL.sub("", text)))
    kept = (c for c in shown if unicodedata.category(c) not in _HIDDEN_CATEGORIES)
    return "".join(kept).translate(_MARKS).strip()


def one_line(text: str, most: int = MAX_LINE) -> str:
    """Return a text of the host as one cleaned line of at most `most` bytes."""
    shown = clean(text[: _READ_AHEAD * most])
    if len(text) <= _READ_AHEAD * most and len(shown.encode()) <= most:
        return shown
    end = f"... ({len(text):,} characters)"
    return shown.encode()[: max(0, most - len(end))].decode(errors="ignore") + end


def clean_value(value: Any) -> Any:  # noqa: ANN401 -- a value of JSON
    """Return a value of JSON with all its texts as cleaned lines; NaN becomes None.

    Of a very large or deep one, the values beyond the first are left out.
    """
    left = _MAX_VALUES

    def copy(value: Any, depth: int) -> Any:  # noqa: ANN401 -- a value of JSON
        nonlocal left
        left -= 1
        if isinstance(value, str):
            return one_line(value)
        if isinstance(value, float):
            return round(value, 4) if value - value == 0 else None
        if not isinstance(value, dict | list | tuple):
            return value
        if depth == _MAX_DEPTH or left <= 0:
            return "..."
        shown = islice(value, left)
        if isinstance(value, dict):
            return {one_line(str(key), _MAX_KEY): copy(value[key], depth + 1) for key in shown}
        return [copy(one, depth + 1) for one in shown]

    return copy(value, 0)


def mark(lines: Iterable[str], most: int = MAX_LINE) -> str:
    """Return lines of the host, cleaned, between the marks of host text."""
    return "\n".join((BEGIN, *(one_line(line, most) for line in lines), END))
