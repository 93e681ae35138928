"""The terminal: one screen of it is drawn and keys are read, and at every end it is as it was."""

import os
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

from opdbus.cli.top.lines import Line
from opdbus.cli.widths import width

# The alternate screen, without the cursor, and without going on in the next line.
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_LOOKS: Final = {"bold": "1", "dim": "2", "chosen": "7"}
_COLOURS: Final = {"red": "31", "green": "32", "yellow": "33", "cyan": "36"}
# Terminals that know no cursor that moves.
_DUMB: Final = frozenset({"", "dumb", "unknown"})
_USUAL: Final = (80, 24)


def is_usable(environ: Mapping[str, str]) -> bool:
    """Return whether there is a terminal that a screen can be drawn on."""
    streams = (sys.stdin, sys.stdout)
    is_terminal = all(stream is not None and stream.isatty() for stream in streams)
    return is_terminal and environ.get("TERM", "") not in _DUMB


def has_colours(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal has colours, and they are wanted."""
    return not environ.get("NO_COLOR") and not environ.get("TERM", "").startswith("vt")


class Terminal:
    """A terminal that is drawn on; use as a context, which leaves it as it was."""

    def __init__(self, *, is_coloured: bool) -> None:
        self.source, self._target = sys.stdin.fileno(), sys.stdout.fileno()
        self._looks = _LOOKS | (_COLOURS if is_coloured else {})
        self._encoding = sys.stdout.encoding
        self._before: list[Any] = []
        self._shown: Sequence[Line] = ()

    def __enter__(self) -> Self:
        """Keep how the terminal is, and take it."""
        self._before = termios.tcgetattr(self.source)
        try:
            tty.setcbreak(self.source, termios.TCSANOW)
            self._write(_ENTER)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        """Leave the terminal as it was, unless it is gone."""
        self._shown = ()
        with suppress(OSError):
            self._write(_LEAVE)
        with suppress(OSError, termios.error):
            termios.tcsetattr(self.source, termios.TCSANOW, self._before)

    @contextmanager
    def left(self) -> Iterator[None]:
        """Leave the terminal for a while."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    @property
    def size(self) -> tuple[int, int]:
        """The columns and lines; the usual ones where the terminal does not say."""
        with suppress(OSError):
            size = os.get_terminal_size(self._target)
            if size.columns and size.lines:
                return size.columns, size.lines
        return _USUAL

    def forget(self) -> None:
        """Draw everything again the next time."""
        self._shown = ()

    def draw(self, lines: Sequence[Line]) -> None:
        """Draw the lines that are other than those on the screen; raises OSError if it is gone."""
        is_new = len(lines) != len(self._shown)
        before = [()] * len(lines) if is_new else self._shown
        parts = ["\x1b[0m\x1b[2J"] if is_new else []
        for number, (old, new) in enumerate(zip(before, lines, strict=True), 1):
            if old != new:
                # first: after a full line it would erase the last column
                parts.append(f"\x1b[0m\x1b[{number};1H\x1b[2K{self._painted(new)}")
        self._write("".join(parts))
        self._shown = lines

    def _painted(self, line: Line) -> str:
        return "".join(self._pieces(line))

    def _pieces(self, line: Line) -> Iterator[str]:
        at = 1
        for text, look in line:
            code = self._looks.get(look, "")
            yield f"\x1b[0;{code}m{text}" if code else f"\x1b[0m{text}"
            at += width(text)
            # terminals differ in how wide some characters are
            if not text.isascii():
                yield f"\x1b[{at}G"

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        while data:
            data = data[os.write(self._target, data) :]
