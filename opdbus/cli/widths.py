"""Width of texts in terminal columns, and wrapping of lines; pure."""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_WORD: Final = re.compile(r"(?<!\s)(\s*)(\S+)")
# Unicode categories of characters without a column; East Asian wide characters take two.
_NO_WIDTH: Final = frozenset({"Mn", "Me", "Cf"})
_WIDE: Final = frozenset({"W", "F"})


def width(text: str) -> int:
    """Return the width of a text in columns."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def pad(text: str, columns: int) -> str:
    """Pad a text with spaces to a width."""
    return text + " " * (columns - width(text))


def fold(text: str, room: int) -> list[str]:
    """Wrap a text between words; a word is broken only if it is longer than a line.

    Later lines have the indentation of the first.
    """
    if width(text) <= room:
        return [text]
    indent = text[: len(text) - len(text.lstrip())]
    if len(indent) > room // 2:
        indent, text = "", text.lstrip()
    lines = [""]
    for gap, word in _WORD.findall(text):
        first, *more = _pieces(word, room - len(indent))
        if not lines[-1].strip() or width(lines[-1] + gap + first) <= room:
            lines[-1] += gap + first
        else:
            lines.append(indent + first)
        lines += [indent + piece for piece in more]
    return lines


def _columns(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


def _pieces(word: str, room: int) -> Iterator[str]:
    """Yield a word, in parts if it is wider than the room."""
    start = used = 0
    for at, character in enumerate(word):
        columns = _columns(character)
        if used + columns > room and at > start:
            yield word[start:at]
            start, used = at, 0
        used += columns
    yield word[start:]
