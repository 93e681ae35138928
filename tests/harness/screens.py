"""A program on a terminal of its own, whose screen a test reads and whose keys it presses."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Self

from harness.running import PATIENCE_SECONDS

# What `op-dbus top` sends, and no more: modes, looks, places, and what is erased.
_SEQUENCE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|(.)", re.DOTALL)


class Screen:
    """`op-dbus` with arguments, or Python code, on a terminal; use as a context, which kills it."""

    def __init__(
        self, environ: Mapping[str, str], *arguments: str, columns: int = 80, rows: int = 24
    ) -> None:
        program = arguments if arguments[0] == "-c" else ("-m", "opdbus", *arguments)
        self._ours, self._theirs = pty.openpty()
        self.before = termios.tcgetattr(self._theirs)
        self.resize(columns, rows)
        self.sent = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.process = subprocess.Popen(
            # so that Ctrl-C and Ctrl-Z are for it
            ["setsid", "--ctty", sys.executable, *program],
            env={**environ, "TERM": "xterm-256color"},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        """Go on: it runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr
        self.process.stderr.close()
        os.close(self._theirs)
        os.close(self._ours)

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size, and forget what it showed."""
        self.columns, self.rows = columns, rows
        # characters, each with its look
        self._cells = [[(" ", "0")] * columns for _ in range(rows)]
        self._at, self._look = (0, 0), "0"
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        """Press keys, as a terminal sends them."""
        os.write(self._ours, keys.encode())

    @property
    def text(self) -> str:
        """The lines that are shown by now."""
        while self._read(0.0):
            pass
        return "\n".join("".join(sign for sign, _ in row).rstrip() for row in self._cells)

    @property
    def coloured(self) -> str:
        """The lines that are shown, with the sequences for their looks."""
        lines = (groupby(row, key=lambda cell: cell[1]) for row in self._cells)
        return "\n".join(
            "".join(f"\x1b[{look}m{''.join(sign for sign, _ in cells)}" for look, cells in line)
            for line in lines
        )

    def until(self, wanted: Callable[[str], Any] | str) -> str:
        """Wait until the screen has a text, or is as wanted, and give it."""
        is_wanted = wanted if callable(wanted) else lambda text: wanted in text
        end = time.monotonic() + PATIENCE_SECONDS
        while not is_wanted(text := self.text):
            assert self._read(max(0.0, end - time.monotonic())), f"it shows only:\n{text}"
        return text

    def exit_code(self) -> int:
        """Wait for its end, and give the exit code."""
        code = self.process.wait(PATIENCE_SECONDS)
        while self._read(0.0):
            pass
        return code

    @property
    def errors(self) -> str:
        """What it printed on stderr, once it has ended."""
        assert self.process.stderr
        return self.process.stderr.read().decode()

    @property
    def settings(self) -> list[Any]:
        """How the terminal treats what is typed."""
        return termios.tcgetattr(self._theirs)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], seconds)
        if not ready:
            return False
        text = self._decoder.decode(os.read(self._ours, 65536))
        self.sent += text
        for match in _SEQUENCE.finditer(text):
            self._obey(*match.groups())
        return True

    def _obey(self, numbers: str | None, command: str | None, character: str | None) -> None:
        row, column = self._at
        if character:
            if row < self.rows and column < self.columns:
                self._cells[row][column] = (character, self._look)
            self._at = (row, column + 1)
        elif command == "H":
            row, column = map(int, (numbers or "1;1").split(";"))
            self._at = (row - 1, column - 1)
        elif command == "G":
            self._at = (row, int(numbers or 1) - 1)
        elif command in {"J", "K"}:
            for place in [row] if command == "K" else range(self.rows):
                if place < self.rows:
                    self._cells[place] = [(" ", "0")] * self.columns
        elif command == "m":
            self._look = numbers or "0"
        else:
            assert command in {"h", "l"}, (numbers, command)
