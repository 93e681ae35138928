"""Texts in files: each line a JSON string, read with nothing believed about the file."""

import os
import pty
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
from harness.bulky import in_memory, lines
from hypothesis import given
from hypothesis import strategies as st

from opdbus.bus.admission.limits import MAX_TEXT_BYTES
from opdbus.bus.service.bulk_files import WINDOW_TEXTS, TextFile, parse_text_line
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.errors import InvalidArgs, LimitsExceeded


def all_of(file: TextFile) -> list[str]:
    """Read a file to its end."""
    file.count_lines()
    found: list[str] = []
    while window := file.window():
        assert len(window) <= WINDOW_TEXTS
        found += window
    assert file.window() == []
    return found


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=50), max_size=50))
def test_every_text_comes_back(texts: list[str]) -> None:
    """Give every text as it was, in order, with or without a newline at the end."""
    content = lines(texts)
    assert all_of(TextFile(in_memory(content))) == texts
    assert all_of(TextFile(in_memory(content.removesuffix(b"\n")))) == texts


def test_texts_are_found_across_blocks_and_windows() -> None:
    """Put lines together that lie across the blocks that are read."""
    texts = [f"{number} " + "x" * (number % 700) for number in range(5000)]
    assert all_of(TextFile(in_memory(lines(texts)))) == texts


def test_a_window_is_bounded_by_bytes_too() -> None:
    """Hold about 1 MiB of long texts at a time, not 2048 of them."""
    file = TextFile(in_memory(lines(["x" * 300_000] * 10)))
    assert file.count_lines() == 10
    assert [len(file.window()) for _ in range(3)] == [4, 4, 2]


@pytest.mark.parametrize(
    ("line", "column", "reason"),
    [
        (b"", 1, "must begin here"),
        (b"plain", 1, "must begin here"),
        (b"  17", 3, "must begin here"),
        (b'["a"]', 1, "must begin here"),
        (b"[" * 500_000, 1, "must begin here"),
        (b'"a" "b"', 5, "Extra data"),
        (b'"a', 1, "Unterminated string"),
        (b'"a\\x"', 3, "Invalid"),
        (b'"a\tb"', 3, "Invalid control character"),
        ('"ä'.encode() + b'\xff"', 3, "not UTF-8"),
        (b'"\\ud800"', 1, "half of a surrogate pair"),
        ("\ufeff".encode() + b'"a"', 1, "must begin here"),
    ],
)
def test_a_fault_is_told_by_line_and_column(line: bytes, column: int, reason: str) -> None:
    """Say where a line is no JSON string, and why, without its words."""
    with pytest.raises(InvalidArgs, match=rf"^line 3, column {column} of the texts: .*{reason}"):
        all_of(TextFile(in_memory(b'"fine"\n"fine"\n' + line + b'\n"fine"\n')))


def test_what_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse a file by its size: a sparse one may be of any."""
    monkeypatch.delattr(TextFile, "_read")
    for size in ((1 << 30) + 1, 1 << 40):
        file = in_memory(b"")
        os.ftruncate(file.fileno(), size)
        with pytest.raises(LimitsExceeded, match=r"past the limit of .* 1024 MiB: split it"):
            TextFile(file).count_lines()


def test_spaces_and_carriage_returns_around_a_string_are_json() -> None:
    """Take what JSON allows around a string."""
    assert parse_text_line(b' \t"a"\r', 1) == "a"
    assert parse_text_line(b'"\\u00e4\\ud83d\\ude00"', 1) == "ä😀"


def test_a_line_too_long_is_refused() -> None:
    """Hold no endless line: one byte past 1 MiB is refused, 1 MiB is not."""
    fits = lines(["x" * (MAX_TEXT_BYTES - 2)])
    assert len(all_of(TextFile(in_memory(fits)))) == 1
    with pytest.raises(LimitsExceeded, match="line 2 of the texts is longer than 1048576"):
        all_of(TextFile(in_memory(fits + lines(["x" * (MAX_TEXT_BYTES - 1)]))))
    with pytest.raises(LimitsExceeded, match="line 1 "):
        all_of(TextFile(in_memory(b'"' + b"x" * (4 << 20))))


def test_a_file_is_read_from_its_beginning_and_left_where_it_stands(tmp_path: Path) -> None:
    """Read by offset: the position, which the caller shares, is neither used nor moved."""
    path = tmp_path / "texts"
    path.write_bytes(lines(["a", "b"]))
    with path.open("rb") as file:
        file.seek(3)
        assert all_of(TextFile(Descriptor.copy_of(file))) == ["a", "b"]
        assert file.tell() == 3


def test_what_is_appended_later_is_not_read() -> None:
    """End where the file ended when its lines were counted."""
    file = in_memory(lines(["a", "b"]))
    source = TextFile(file)
    assert source.count_lines() == 2
    os.write(file.fileno(), lines(["c"] * 100_000))
    assert source.window() == ["a", "b"]
    assert source.window() == []


def test_a_file_that_shrinks_just_ends() -> None:
    """Give what is still there of a file that is cut, here between lines, while it is read."""
    file = in_memory(lines([f"{number:05d}" for number in range(100_000)]))
    source = TextFile(file)
    assert source.count_lines() == 100_000
    assert len(source.window()) == WINDOW_TEXTS
    os.ftruncate(file.fileno(), 0)
    more = source.window()  # of what had been read already
    while rest := source.window():
        more += rest
    assert len(more) < 60_000


@pytest.mark.parametrize("size", [(1 << 30) + 1, 1 << 40, 1 << 30, 100 << 20])
def test_a_sparse_file_is_refused_before_it_is_read(size: int, monkeypatch: Any) -> None:
    """Refuse a file that is too large by its size, and a hole where a line may end no more."""
    sparse = in_memory(lines(["first"]))
    os.ftruncate(sparse.fileno(), size)
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *given: read.append(given[1]) or pread(*given))
    with pytest.raises(LimitsExceeded, match=r"limit of|line 2 of the texts is longer"):
        TextFile(sparse).count_lines()
    assert len(read) * (256 << 10) <= 2 << 20


def test_too_much_is_refused_before_it_is_read() -> None:
    """Raise LimitsExceeded for more texts or bytes than a call may bring."""
    with pytest.raises(LimitsExceeded, match="1000000 texts or 1024 MiB"):
        TextFile(in_memory(b"\n" * 1_000_001)).count_lines()
    sparse = in_memory(b"")
    os.ftruncate(sparse.fileno(), (1 << 30) + 1)
    with pytest.raises(LimitsExceeded, match="1000000 texts or 1024 MiB"):
        TextFile(sparse).count_lines()
    assert TextFile(in_memory(b"\n" * 1_000_000)).count_lines() == 1_000_000


def test_only_files_that_can_be_read_by_offset_are_taken(tmp_path: Path) -> None:
    """Refuse every other kind of file, and say what it is."""
    reader, writer = os.pipe()
    one, other = socket.socketpair()
    master, slave = pty.openpty()
    plain = tmp_path / "plain"
    plain.write_text("")
    (tmp_path / "link").symlink_to(plain)
    opened = {
        "a pipe": reader,
        "a socket": one.fileno(),
        "a terminal": slave,
        "a character device": os.open("/dev/zero", os.O_RDONLY),
        "a directory": os.open(tmp_path, os.O_RDONLY),
        "a file that is not open": os.open(plain, os.O_PATH),
        "a symbolic link": os.open(tmp_path / "link", os.O_PATH | os.O_NOFOLLOW),
        "a file that is open for writing only": os.open(plain, os.O_WRONLY),
        "no file at all": os.eventfd(0),
    }
    try:
        for what, number in opened.items():
            with pytest.raises(InvalidArgs, match=f"this is {what}"):
                TextFile(Descriptor.copy_of(number))
    finally:
        for number in {*opened.values(), writer, master} - {one.fileno()}:
            os.close(number)
        one.close()
        other.close()


def test_a_file_that_cannot_be_read_is_the_callers_fault() -> None:
    """Raise InvalidArgs where reading fails, with the system's reason."""
    with (
        open("/proc/self/mem", "rb") as memory,  # noqa: PTH123 -- page 0 of it cannot be read
        pytest.raises(InvalidArgs, match=r"cannot be read: .*Input/output"),
    ):
        TextFile(Descriptor.copy_of(memory)).count_lines()


def test_memory_stays_bounded() -> None:
    """Read 200 MB of texts in less than 30 MB of memory."""
    file = in_memory(lines(["x" * 2000]) * 100_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source = TextFile(file)
    source.count_lines()
    count = 0
    while window := source.window():
        count += len(window)
    assert count == 100_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000
