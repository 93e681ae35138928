"""Terminal access of `top`: drawing and input, with the terminal restored at every exit."""

import os
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

from opdbus.cli.top.lines import Line
from opdbus.cli.widths import width

# Alternate screen, hidden cursor, no automatic line wrap.
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_LOOKS: Final = {"bold": "1", "dim": "2", "chosen": "7"}
_COLOURS: Final = {"red": "31", "green": "32", "yellow": "33", "cyan": "36"}
# Terminals without cursor movement.
_DUMB: Final = frozenset({"", "dumb", "unknown"})
_USUAL: Final = (80, 24)


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
    def left(self) -> Iterator[None]:
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
        return _USUAL

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
            # terminals differ in the width of some characters
            if not text.isascii():
                yield f"\x1b[{at}G"

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        while data:
            data = data[os.write(self._target, data) :]
