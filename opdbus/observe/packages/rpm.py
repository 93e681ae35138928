"""List of packages by the program rpm, the only reader of its database."""

import asyncio
import os
import re
from collections.abc import Iterable, Iterator
from typing import Final

from opdbus.observe.core.report import LostSource
from opdbus.observe.core.skipped import Skipped
from opdbus.platform.tasks import end_child

_SECONDS: Final = 60.0
# 10,000 packages take 2 MB.
_MAX_BYTES: Final = 32 << 20
_TAGS: Final = {
    "name": "NAME", "epoch": "EPOCHNUM", "version": "VERSION", "release": "RELEASE",
    "architecture": "ARCH", "size": "LONGSIZE", "source": "SOURCERPM", "section": "GROUP",
    "homepage": "URL", "summary": "SUMMARY",
}  # fmt: skip
# Capabilities of packages of which several versions stay installed, as in dnf and zypper, and the
# name of all keys of signers.
_BESIDE: Final = (
    "kernel", "installonlypkg(kernel)", "installonlypkg(kernel-module)", "installonlypkg(vm)",
    "multiversion(kernel)",
)  # fmt: skip
_KEY: Final = "gpg-pubkey"
_IDENTIFYING: Final = ("name", "version", "release", "architecture")
# A field in a `query_format`; numbers and missing values have no quotes.
_FIELD: Final = re.compile(r"(?:'([^']*(?:'\\''[^']*)*)'|(\(none\)|\d+))[\t\n]")
# The files of all formats of the database, newest first.
DATABASE_FILES: Final = ("rpmdb.sqlite", "rpmdb.sqlite-wal", "Packages.db", "Packages")


async def list_packages(
    program: str, skipped: Skipped, seconds: float = _SECONDS
) -> list[dict[str, str]]:
    """Return the fields of each package; raises LostSource.

    `beside` is empty unless other versions of the package may be installed beside it.
    """
    short = query_format(_TAGS[field] for field in _IDENTIFYING)
    try:
        async with asyncio.timeout(seconds):
            text = await _run(program, "-qa", "--queryformat", query_format(_TAGS.values()))
            # ends with the number of those that no package provides
            query = ("-q", "--queryformat", short, "--whatprovides", *_BESIDE)
            providers = await _run(program, *query, most_failed=len(_BESIDE))
    except TimeoutError:
        raise LostSource(f"{program} -qa took more than {seconds:g} s") from None
    except OSError as error:
        raise LostSource(f"cannot run {program}: {error.strerror}") from None
    beside = {tuple(row) for row in parse_rows(providers)}
    found = []
    number = 0
    for number, row in enumerate(parse_rows(text), 1):
        if len(row) != len(_TAGS):
            skipped.row(f"{number} of {program} -qa")
            continue
        fields = dict(zip(_TAGS, row, strict=True))
        key = tuple(fields[name] for name in _IDENTIFYING)
        fields["beside"] = "yes" if key in beside or key[0] == _KEY else ""
        found.append(fields)
    if number and not found:
        raise LostSource(f"{program} -qa said what is no list of packages")
    return found


def query_format(tags: Iterable[str]) -> str:
    """Return an rpm query format in which the text of a package cannot end a field or row."""
    return "\t".join(f"%{{{tag}:shescape}}" for tag in tags) + "\n"


def parse_rows(text: str) -> Iterator[list[str]]:
    """Yield the fields of each row in a `query_format`; none for other lines.

    rpm prints such a line if no package owns a file.
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


async def _run(*command: str, most_failed: int = 0) -> str:
    """Return what a program prints; raises LostSource if it ends with more than `most_failed`."""
    child = await asyncio.create_subprocess_exec(
        *command,
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert child.stdout is not None  # noqa: S101 -- it is a pipe
        content = bytearray()
        while more := await child.stdout.read(1 << 16):
            content += more
            if len(content) > _MAX_BYTES:
                raise LostSource(f"{command[0]} {command[1]} said more than {_MAX_BYTES >> 20} MiB")
        code = await child.wait()
    finally:
        await end_child(child)
    if not 0 <= code <= most_failed:
        raise LostSource(f"{command[0]} {command[1]} ended with code {code}")
    return content.decode(errors="replace")
