"""Text of the host as data: cleaned of hidden characters, between marks that it cannot forge."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

# Marks of host text in an answer. No host text has these two characters: see `clean`.
BEGIN: Final = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}host data"
END: Final = "end of host data\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
# A longer value is cut; its length is given.
MAX_VALUE: Final = 1000
# Deepest level of a value in an answer.
_MAX_DEPTH: Final = 8
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


def shorten(text: str, most: int = MAX_VALUE) -> str:
    """Cut a text to `most` characters, with its length at the end."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def clean_value(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 -- a value of JSON
    """Return a value of JSON with all its texts cleaned and shortened; NaN becomes None."""
    if isinstance(value, str):
        return shorten(clean(value))
    if isinstance(value, float):
        return round(value, 4) if value - value == 0 else None
    if depth == _MAX_DEPTH and isinstance(value, dict | list | tuple):
        return "..."
    if isinstance(value, dict):
        return {clean(str(key)): clean_value(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [clean_value(one, depth + 1) for one in value]
    return value


def mark(lines: Sequence[str]) -> str:
    """Return cleaned lines between the marks of host text."""
    return "\n".join((BEGIN, *lines, END))
