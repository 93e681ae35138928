"""Packages as the program rpm lists them, which alone can read its database."""

import asyncio
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from opdbus.observe.core.report import LostSource
from opdbus.observe.core.skipped import Skipped

_SECONDS: Final = 60.0
# 10,000 packages have 2 MB.
_MAX_BYTES: Final = 32 << 20
_TAGS: Final = {
    "name": "NAME", "epoch": "EPOCHNUM", "version": "VERSION", "release": "RELEASE",
    "architecture": "ARCH", "size": "LONGSIZE", "source": "SOURCERPM", "section": "GROUP",
    "homepage": "URL", "summary": "SUMMARY",
}  # fmt: skip
# A field as `query_format` has it; numbers and what is not there have no quotes.
_FIELD: Final = re.compile(r"(?:'([^']*(?:'\\''[^']*)*)'|(\(none\)|\d+))[\t\n]")
# Of all formats of its database, newest first.
_FILES: Final = ("rpmdb.sqlite", "rpmdb.sqlite-wal", "Packages.db", "Packages")


def files(databases: Iterable[Path]) -> list[Path]:
    """Return the files whose change may mean that a package came or went."""
    return [folder / name for folder in databases for name in _FILES]


async def listed(program: str, skipped: Skipped, seconds: float = _SECONDS) -> list[dict[str, str]]:
    """Return the fields of each package; raises LostSource."""
    try:
        async with asyncio.timeout(seconds):
            text = await _text(program, "-qa", "--queryformat", query_format(_TAGS.values()))
    except TimeoutError:
        raise LostSource(f"{program} -qa took more than {seconds:g} s") from None
    except OSError as error:
        raise LostSource(f"cannot run {program}: {error.strerror}") from None
    found = []
    for number, row in enumerate(rows(text), 1):
        if row:
            found.append(row)
        else:
            skipped.row(f"{number} of {program} -qa")
    if any(len(row) != len(_TAGS) for row in found):
        raise LostSource(f"{program} -qa said what is no list of packages")
    return [dict(zip(_TAGS, row, strict=True)) for row in found]


def query_format(tags: Iterable[str]) -> str:
    """Return a format of rpm in which no text of a package can end a field or a row."""
    return "\t".join(f"%{{{tag}:shescape}}" for tag in tags) + "\n"


def rows(text: str) -> Iterator[list[str]]:
    """Yield the fields of each row that was printed in a `query_format`.

    A line that is no row, such as that no package owns a file, has no fields.
    """
    at = 0
    row: list[str] = []
    while at < len(text):
        if match := _FIELD.match(text, at):
            row.append(match[2] or match[1].replace("'\\''", "'"))
            at = match.end()
        else:
            row = []
            at = text.find("\n", at) + 1 or len(text)
        if text[at - 1] == "\n":
            yield row
            row = []


async def _text(*command: str) -> str:
    child = await asyncio.create_subprocess_exec(
        *command,
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        content = await _read(child)
        code = await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if code:
        raise LostSource(f"{command[0]} -qa ended with code {code}")
    return content.decode(errors="replace")


async def _read(child: asyncio.subprocess.Process) -> bytes:
    assert child.stdout is not None  # noqa: S101 -- it is a pipe
    content = bytearray()
    while more := await child.stdout.read(1 << 16):
        content += more
        if len(content) > _MAX_BYTES:
            raise LostSource(f"rpm -qa said more than {_MAX_BYTES >> 20} MiB")
    return bytes(content)
