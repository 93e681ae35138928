"""Terminal of `top`: lines of styled text, decoding of keys, and drawing."""

import codecs
import os
import re
import sys
import termios
import tty
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, Self, TypeAlias
from unicodedata import category

from opdbus.cli.output import width_of, wrap
from opdbus.platform.lines import escape_hidden

# sign at the place where a line was cut
CUT: Final = "\u2026"
# words up to this width are not shortened
_LONG_WORD: Final = 24
# A complete escape sequence, or a character; below, the beginning of one.
_KEY: Final = re.compile(r"(\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~]|[^\x1b[O]))|.", re.DOTALL)
_INCOMPLETE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_KEY_NAMES: Final = {
    "A": "up",
    "B": "down",
    "H": "home",
    "F": "end",
    "1~": "home",
    "4~": "end",
    "5~": "page up",
    "6~": "page down",
    "7~": "home",
    "8~": "end",
}
_CONTROLS: Final = {
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x0c": "redraw",
    "\x15": "clear",
}
# Alternate screen, hidden cursor, no automatic line wrap.
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_LOOKS: Final = {"bold": "1", "dim": "2", "chosen": "7"}
_COLOURS: Final = {"red": "31", "green": "32", "yellow": "33", "cyan": "36"}
# Terminals without cursor movement.
_DUMB: Final = frozenset({"", "dumb", "unknown"})
_DEFAULT_SIZE: Final = (80, 24)


class Piece(NamedTuple):
    """A part of a line; `look` is a key of `_LOOKS` or `_COLOURS` in `terminal`, or empty."""

    text: str
    look: str = ""


Line: TypeAlias = tuple[Piece, ...]


def make_line(*pieces: str | Piece) -> Line:
    """Make a line without control characters; a line break becomes a space."""
    given = (Piece(piece) if isinstance(piece, str) else piece for piece in pieces)
    return tuple(Piece(escape_text(text), look) for text, look in given if text)


def escape_text(text: str) -> str:
    """Escape control and hidden characters, and replace line breaks and tabs by spaces.

    Other format characters are removed, because their width differs between terminals.
    """
    shown = escape_hidden(text.replace("\n", " ").replace("\t", " "))
    return shown if shown.isascii() else "".join(c for c in shown if category(c) != "Cf")


def line_width(pieces: Iterable[Piece]) -> int:
    """Return the width of a line in columns."""
    return sum(width_of(piece.text) for piece in pieces)


def cut_line(whole: Line, columns: int) -> Line:
    """Cut a line to a width; if it loses text, its last column has the sign CUT."""
    if line_width(whole) <= columns:
        return whole
    pieces: list[Piece] = []
    left = columns - width_of(CUT)
    for text, look in whole:
        taken = _fitting(text, left)
        left -= width_of(taken)
        if taken != text:
            return (*pieces, Piece(taken + CUT, look))
        pieces.append(Piece(text, look))
    return tuple(pieces)


def _fitting(text: str, columns: int) -> str:
    """Return the beginning of a text that fits into a width."""
    used = 0
    for at, character in enumerate(text):
        used += width_of(character)
        if used > columns:
            return text[:at]
    return text


def spread(left: Line, right: Line, columns: int) -> Line:
    """Join a line at the left end and one at the right end; the left one is cut first."""
    right = cut_line(right, columns)
    room = columns - line_width(right) - 1
    if room < 1:
        return right
    left = cut_line(left, room)
    return (*left, Piece(" " * (room - line_width(left) + 1)), *right)


def shorten_longest_word(text: str, columns: int) -> str:
    """Shorten the longest word of a text that is too wide, so that the rest stays visible.

    Both ends of the word stay, such as those of a path.
    """
    excess = width_of(text) - columns
    longest = max(text.split(), key=width_of, default="")
    if excess <= 0 or width_of(longest) <= _LONG_WORD:
        return text
    left = max(_LONG_WORD, width_of(longest) - excess - width_of(CUT)) // 2
    ends = _fitting(longest, left), _fitting(longest[::-1], left)[::-1]
    return text.replace(longest, CUT.join(ends), 1)


def lines_beside(
    label: Piece, labels: int, text: str, columns: int, look: str = ""
) -> Iterator[Line]:
    """Yield a text beside a label of `labels` columns, in as many lines as it needs."""
    first = Piece(escape_text(label.text).ljust(labels + 1), label.look)
    for part in text.splitlines() or [""]:
        for piece in wrap(escape_text(part), max(1, columns - labels - 1)):
            yield first, Piece(piece, look)
            first = Piece(" " * (labels + 1))


def mark_selected(whole: Line, columns: int) -> Line:
    """Mark a line as selected: by a sign, and by its look over the full width."""
    text = plain_text(cut_line(whole, columns))
    text = f">{text[1:]}"
    return (Piece(text + " " * (columns - width_of(text)), "chosen"),)


def plain_text(whole: Line) -> str:
    """Return the text of a line."""
    return "".join(piece.text for piece in whole).rstrip()


class KeyDecoder:
    """Decoder of terminal input into keys: names such as `up`, or one character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._rest = ""

    @property
    def is_waiting(self) -> bool:
        """True after an escape character that may be a key or begin a sequence."""
        return bool(self._rest)

    def read(self, data: bytes) -> list[str]:
        """Return the keys that are complete."""
        text = self._rest + self._decoder.decode(data)
        incomplete = _INCOMPLETE.search(text)
        self._rest = incomplete[0] if incomplete else ""
        keys = []
        for match in _KEY.finditer(text.removesuffix(self._rest)):
            if sequence := match[1]:
                # drop a modifier, as in 1;5A
                name = re.sub(r"^(?:1;\d+(?=[A-Z]))", "", sequence[2:])
                keys += [_KEY_NAMES[name]] if name in _KEY_NAMES and sequence[1] in "[O" else []
            elif match[0] in _CONTROLS:
                keys.append(_CONTROLS[match[0]])
            elif match[0].isprintable():
                keys.append(match[0])
        return keys

    def give_up(self) -> list[str]:
        """Return the Escape key for an incomplete sequence, after waiting in vain."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest else []


def is_usable(environ: Mapping[str, str]) -> bool:
    """Return true if a screen can be drawn on the terminal."""
    streams = (sys.stdin, sys.stdout)
    is_terminal = all(stream is not None and stream.isatty() for stream in streams)
    return is_terminal and environ.get("TERM", "") not in _DUMB


def has_colours(environ: Mapping[str, str]) -> bool:
    """Return true if the terminal has colours and NO_COLOR is unset."""
    return not environ.get("NO_COLOR") and not environ.get("TERM", "").startswith("vt")


class Terminal:
    """A terminal to draw on; use as a context, which restores it."""

    def __init__(self, *, is_coloured: bool) -> None:
        self.source, self._target = sys.stdin.fileno(), sys.stdout.fileno()
        self._looks = _LOOKS | (_COLOURS if is_coloured else {})
        self._encoding = sys.stdout.encoding
        self._before: list[Any] = []
        self._shown: Sequence[Line] = ()

    def __enter__(self) -> Self:
        """Save the terminal's settings, and switch to the alternate screen."""
        self._before = termios.tcgetattr(self.source)
        try:
            tty.setcbreak(self.source, termios.TCSANOW)
            self._write(_ENTER)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        """Restore the terminal, unless it is gone."""
        self._shown = ()
        with suppress(OSError):
            self._write(_LEAVE)
        with suppress(OSError, termios.error):
            termios.tcsetattr(self.source, termios.TCSANOW, self._before)

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Restore the terminal during the context."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines; 80 x 24 if the terminal does not report them."""
        with suppress(OSError):
            size = os.get_terminal_size(self._target)
            if size.columns and size.lines:
                return size.columns, size.lines
        return _DEFAULT_SIZE

    def forget(self) -> None:
        """Draw everything again the next time."""
        self._shown = ()

    def draw(self, lines: Sequence[Line]) -> None:
        """Draw the lines that differ from those on the screen; raises OSError if it is gone."""
        is_new = len(lines) != len(self._shown)
        before = [()] * len(lines) if is_new else self._shown
        parts = ["\x1b[0m\x1b[2J"] if is_new else []
        for number, (old, new) in enumerate(zip(before, lines, strict=True), 1):
            if old != new:
                # erase before writing: after a full line it would erase the last column
                parts.append(f"\x1b[0m\x1b[{number};1H\x1b[2K")
                parts += self._paint(new)
        self._write("".join(parts))
        self._shown = lines

    def _paint(self, line: Line) -> Iterator[str]:
        """Yield the texts of a line with the sequences for their looks."""
        at = 1
        for text, look in line:
            code = self._looks.get(look, "")
            yield f"\x1b[0;{code}m{text}" if code else f"\x1b[0m{text}"
            at += width_of(text)
            # terminals differ in the width of some characters
            if not text.isascii():
                yield f"\x1b[{at}G"

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        while data:
            data = data[os.write(self._target, data) :]
