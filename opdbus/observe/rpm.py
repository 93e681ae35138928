"""Packages as the program rpm lists them, which alone can read its database."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from opdbus.observe.report import LostSource

_SECONDS: Final = 60.0
# 10,000 packages have 2 MB.
_MAX_BYTES: Final = 32 << 20
_TAGS: Final = {
    "name": "NAME", "epoch": "EPOCHNUM", "version": "VERSION", "release": "RELEASE",
    "architecture": "ARCH", "size": "LONGSIZE", "source": "SOURCERPM", "section": "GROUP",
    "homepage": "URL", "summary": "SUMMARY",
}  # fmt: skip
_FORMAT: Final = "\t".join(f"%{{{tag}}}" for tag in _TAGS.values()) + "\n"
# Of all formats of its database, newest first.
_FILES: Final = ("rpmdb.sqlite", "rpmdb.sqlite-wal", "Packages.db", "Packages")


def files(databases: Iterable[Path]) -> list[Path]:
    """Return the files whose change may mean that a package came or went."""
    return [folder / name for folder in databases for name in _FILES]


async def listed(program: str, seconds: float = _SECONDS) -> list[dict[str, str]]:
    """Return the fields of each package; raises LostSource."""
    try:
        async with asyncio.timeout(seconds):
            lines = await _lines(program, "-qa", "--queryformat", _FORMAT)
    except TimeoutError:
        raise LostSource(f"{program} -qa took more than {seconds:g} s") from None
    except OSError as error:
        raise LostSource(f"cannot run {program}: {error.strerror}") from None
    rows = (line.split("\t") for line in lines)
    # a summary may have lines of its own
    return [dict(zip(_TAGS, row, strict=True)) for row in rows if len(row) == len(_TAGS)]


async def _lines(*command: str) -> list[str]:
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
    return content.decode(errors="replace").split("\n")


async def _read(child: asyncio.subprocess.Process) -> bytes:
    assert child.stdout is not None  # noqa: S101 -- it is a pipe
    content = bytearray()
    while more := await child.stdout.read(1 << 16):
        content += more
        if len(content) > _MAX_BYTES:
            raise LostSource(f"rpm -qa said more than {_MAX_BYTES >> 20} MiB")
    return bytes(content)
