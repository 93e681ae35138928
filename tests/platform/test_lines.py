"""Text of a host that is printed: one function escapes all that is no visible sign of its line."""

import fcntl
import io
import os
import unicodedata

import pytest

from opdbus.platform import lines
from opdbus.platform.lines import escape_hidden


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nforged", r"a\nforged"),
        ("a\r\nforged", r"a\r\nforged"),
        ("a\x0b\x0c\x1c\x85b", r"a\x0b\x0c\x1c\x85b"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("a\tb", r"a\tb"),
        ("\x1b[2Kred", r"\x1b[2Kred"),
        ("a\u202eb\u2066", r"a\u202eb\u2066"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("half \ud800", r"half \ud800"),
        ("tag \U000e0041", r"tag \U000e0041"),
        ("M\u00fcller \u65e5\u672c \u2764\ufe0f", "M\u00fcller \u65e5\u672c \u2764\ufe0f"),
    ],
)
def test_hidden_characters_are_escaped(text: str, shown: str) -> None:
    """Escape what ends a line, moves the cursor, or is not visible, and nothing else."""
    assert escape_hidden(text) == shown


def test_no_character_ends_a_line() -> None:
    """Leave no character by which any program splits lines, and no control character."""
    every = "".join(map(chr, range(0x110000)))
    shown = escape_hidden(every)
    assert len(shown.splitlines()) == 1
    assert not {each for each in shown if unicodedata.category(each) in {"Cc", "Zl", "Zp", "Cs"}}


def test_a_line_that_nobody_can_take_ends_no_program() -> None:
    """Lose a line on a full disk and in a pipe without a reader, with nothing left to flush."""
    reader, writer = os.pipe()
    os.close(reader)
    for number in (os.open("/dev/full", os.O_WRONLY), writer):
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            lines.write_line("listening", stream)
    memory = io.StringIO()
    lines.write_line("listening", memory)
    assert memory.getvalue() == "listening\n"


def test_a_pipe_that_nobody_reads_stops_no_program() -> None:
    """Lose lines while a pipe is full, and write again once somebody has read."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as read, os.fdopen(writer, "w", encoding="utf-8") as stream:
        size = fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)
        for _ in range(size // 1000 + 10):
            lines.write_line("x" * 999, stream)
        read.read1(size)
        lines.write_line("again", stream)
        assert read.read1(size).endswith(b"again\n")
