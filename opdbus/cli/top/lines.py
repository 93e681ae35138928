"""Lines of a screen: styled pieces of text, cut to the available columns; pure."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias
from unicodedata import category

from opdbus.cli.output import visible
from opdbus.cli.widths import fold, width

# sign at the place where a line was cut
CUT: Final = "\u2026"
# words up to this width are not shortened
_LONG: Final = 24


class Piece(NamedTuple):
    """A part of a line; `look` is a key of `_LOOKS` or `_COLOURS` in `terminal`, or empty."""

    text: str
    look: str = ""


Line: TypeAlias = tuple[Piece, ...]


def line(*pieces: str | Piece) -> Line:
    """Make a line without control characters; a line break becomes a space."""
    given = (Piece(piece) if isinstance(piece, str) else piece for piece in pieces)
    return tuple(Piece(safe(text), look) for text, look in given if text)


def safe(text: str) -> str:
    """Escape control and hidden characters, and replace line breaks and tabs by spaces.

    Other format characters are removed, because their width differs between terminals.
    """
    shown = visible(text.replace("\n", " ").replace("\t", " "))
    return shown if shown.isascii() else "".join(c for c in shown if category(c) != "Cf")


def columns_of(pieces: Iterable[Piece]) -> int:
    """Return the width of a line in columns."""
    return sum(width(piece.text) for piece in pieces)


def cut(whole: Line, columns: int) -> Line:
    """Cut a line to a width; if it loses text, its last column has the sign CUT."""
    return whole if columns_of(whole) <= columns else tuple(_cut(whole, columns - width(CUT)))


def _cut(whole: Line, left: int) -> Iterator[Piece]:
    for text, look in whole:
        taken = _first(text, left)
        left -= width(taken)
        if taken != text:
            yield Piece(taken + CUT, look)
            return
        yield Piece(text, look)


def _first(text: str, columns: int) -> str:
    used = 0
    for at, character in enumerate(text):
        used += width(character)
        if used > columns:
            return text[:at]
    return text


def spread(left: Line, right: Line, columns: int) -> Line:
    """Join a line at the left end and one at the right end; the left one is cut first."""
    right = cut(right, columns)
    room = columns - columns_of(right) - 1
    if room < 1:
        return right
    left = cut(left, room)
    return (*left, Piece(" " * (room - columns_of(left) + 1)), *right)


def squeezed(text: str, columns: int) -> str:
    """Shorten the longest word of a text that is too wide, so that the rest stays visible.

    Both ends of the word stay, such as those of a path.
    """
    excess = width(text) - columns
    longest = max(text.split(), key=width, default="")
    if excess <= 0 or width(longest) <= _LONG:
        return text
    left = max(_LONG, width(longest) - excess - width(CUT)) // 2
    ends = _first(longest, left), _first(longest[::-1], left)[::-1]
    return text.replace(longest, CUT.join(ends), 1)


def beside(label: Piece, labels: int, text: str, columns: int, look: str = "") -> Iterator[Line]:
    """Yield a text beside a label of `labels` columns, in as many lines as it needs."""
    first = Piece(safe(label.text).ljust(labels + 1), label.look)
    for part in text.splitlines() or [""]:
        for piece in fold(safe(part), max(1, columns - labels - 1)):
            yield first, Piece(piece, look)
            first = Piece(" " * (labels + 1))


def chosen(whole: Line, columns: int) -> Line:
    """Mark a line as selected: by a sign, and by its look over the full width."""
    text = plain(cut(whole, columns))
    text = f">{text[1:]}"
    return (Piece(text + " " * (columns - width(text)), "chosen"),)


def plain(whole: Line) -> str:
    """Return the text of a line."""
    return "".join(piece.text for piece in whole).rstrip()
