"""Text of a host: how it is split, and how it is printed."""

import ast
import fcntl
import io
import os
import re
import unicodedata
from collections.abc import Iterator
from functools import cache

import pytest
from conftest import ROOT

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


ODD = "a\x0bb\x0cc\x1cd\x85e\u2028f\xa0g\rh"


def test_lines_and_words_are_those_of_the_kernel() -> None:
    """Split at newlines, and at blanks and tabs, and at nothing else."""
    assert lines.split_lines(f"{ODD}\n\n{ODD}\n") == [ODD, "", ODD]
    assert lines.split_lines("") == []
    assert lines.split_words(f" \t{ODD} \t {ODD}\n") == [ODD, ODD]
    assert lines.split_words(f"a\t b  {ODD} c \n", 2) == ["a", "b", f"{ODD} c"]
    assert lines.split_words(" \n") == lines.split_words("", 2) == []
    assert lines.strip_blanks(f"\t{ODD}\xa0 \n") == f"{ODD}\xa0"
    assert lines.join_words(f" {ODD}\n\t x") == f"{ODD} x"


PACKAGE = ROOT / "opdbus"
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
# Methods of texts that know a dozen characters besides blank, tab and newline, which names of
# files, units and packages may have: `opdbus/platform/lines.py` has others.
OF_ALL_SPACES = {"split", "rsplit", "splitlines", "strip", "lstrip", "rstrip"}
# Rooms that read what others wrote on the host: files, programs, the kernel, the bus.
READING = (
    "observe/",
    "settings/env_file.py",
    "systemd/unit.py",
    "engine/cpus.py",
    "history/checkpoint.py",
)
# These have the syntax of systemd, with lines of its own.
APART = ("observe/systemd/unit_files.py", "observe/systemd/unit_syntax.py")
# What of these is our own text, or a format that takes them all for blanks.
EXCUSED = {
    # five fields of a schedule, joined by blanks
    "observe/host/crontab.py: when.split()",
    # names in a table of ours
    "observe/dbus/mirror_table.py: names.split()",
    # lines of our own tables and texts, of what we print, or of which one is shown to a person
    "cli/measure_engine.py: captured.get().splitlines()",
    "cli/models.py: file.read_text(encoding='utf-8').splitlines()",
    "cli/top/terminal.py: text.splitlines()",
    "engine/provider.py: str(error).strip().splitlines()",
    "history/change_sentence.py: text.splitlines()",
    "models/child.py: stderr.decode(errors='replace').strip().splitlines()",
    "models/pull_hub.py: (str(error).strip() or type(error).__name__).splitlines()",
    "models/pull_packages.py: said.splitlines()",
    "picture/scene.py: tensors['objects'].tobytes().splitlines()",
    "language/tables.py: _file(name).read_text('utf-8').splitlines()",
}
# Patterns may have such a class where it stands for what the format itself takes for blanks.
EXCUSED_PATTERNS = {
    "observe/packages/documents.py",  # roff
    "observe/dbus/mirror.py",  # XML
}


def is_of_the_host(name: str) -> bool:
    """Return whether a file of ours reads what others wrote on the host."""
    return name.startswith(READING) and not name.startswith(APART)


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """Parse a file of ours."""
    return tuple(ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))))


def splits(name: str) -> Iterator[tuple[str, str]]:
    """Yield how a text is split or stripped at every white space there is, with the method."""
    for node in nodes(name):
        match node:
            case ast.Call(ast.Attribute(value, method), args) if method in OF_ALL_SPACES:
                separator = args[0] if args else ast.Constant(None)
                is_none = isinstance(separator, ast.Constant) and separator.value is None
                is_ours = isinstance(value, ast.Constant)
                if (is_none or method == "splitlines") and not is_ours:
                    yield method, ast.unparse(node)
            case ast.Attribute(ast.Name("str"), method) if method in OF_ALL_SPACES:
                yield method, ast.unparse(node)


def test_what_others_wrote_is_split_at_blanks_and_newlines_alone() -> None:
    """Split no text of the host at characters that are part of names; no text at all at lines."""
    found = {
        f"{name}: {call}"
        for name in FILES
        for method, call in splits(name)
        if is_of_the_host(name) or (method == "splitlines" and name not in APART)
    }
    assert found - EXCUSED == set()
    assert {call for call in EXCUSED if is_of_the_host(call)} <= found


def test_patterns_have_no_class_of_all_white_space() -> None:
    """Name blanks and tabs in a pattern for what others wrote: a name may have the others."""
    found = set()
    for name in filter(is_of_the_host, FILES):
        statements = (node.value for node in nodes(name) if isinstance(node, ast.Expr))
        prose = {id(node) for node in statements if isinstance(node, ast.Constant)}
        for node in nodes(name):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in prose and re.search(r"\\[sS]", node.value):
                found.add(name)
    assert found == EXCUSED_PATTERNS


def test_text_files_of_the_host_are_read_as_they_are() -> None:
    """Decode bytes: reading as text makes lines of returns, which are part of names, too."""
    as_text = re.compile(r"\.read_text\(|\.open\((?!'rb'|os\.|[^)]*os\.O_)")
    found = {
        f"{name}: {call}"
        for name in FILES
        if name.startswith("observe/") and name not in APART
        for call in (ast.unparse(node) for node in nodes(name) if isinstance(node, ast.Call))
        if as_text.search(call)
    }
    assert found == set()
