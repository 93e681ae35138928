"""Splits requests into parts or files, since a message has at most 1 MiB."""

import json
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from opdbus import errors
from opdbus.bus import paths

T = TypeVar("T")
# The limit of a call's texts and of a reply's paths: the daemon's 1 MiB.
_BYTES_A_CALL: Final = 1 << 20


@contextmanager
def as_file(texts: Iterable[str] | Path) -> Iterator[BinaryIO]:
    """Open a file of texts, or write texts to a file in memory; raise InvalidArgs."""
    try:
        if isinstance(texts, Path):
            file: BinaryIO = texts.open("rb")
        else:
            file = os.fdopen(os.memfd_create("op-dbus-texts"), "w+b")
    except OSError as error:
        raise errors.InvalidArgs(f"cannot open the texts: {error}") from None
    with file:
        if not isinstance(texts, Path):
            file.writelines(json.dumps(text).encode() + b"\n" for text in texts)
            file.flush()
        yield file


def pages(items: Sequence[T], most: int, size_of: Callable[[T], int]) -> list[list[T]]:
    """Split items into parts of at most `most` items and, unless it is one item, 1 MiB."""
    parts: list[list[T]] = []
    size = 0
    for item in items:
        more = size_of(item)
        if not parts or len(parts[-1]) == most or size + more > _BYTES_A_CALL:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += more
    return parts


async def answered(ask: Callable[[int], Awaitable[T]], most: int) -> tuple[T, int]:
    """Request `most` rows, and fewer while the reply would be too large.

    Names and values can be very long. Return the answer and the number of requested rows; raise
    LimitsExceeded if a single row is too large.
    """
    while True:
        try:
            return await ask(most), most
        except errors.LimitsExceeded:
            if most == 1:
                raise
            most = max(1, most // 8)


def text_size(text: str) -> int:
    """Return the bytes of a text."""
    # a lone surrogate is refused later, when it is sent
    return len(text.encode(errors="replace"))


def path_size(item: Sequence[Any]) -> int:
    """Return an upper bound of the bytes of an object's path: (plugin, kind, name, ...)."""
    # an escaped byte takes three characters
    return len(paths.STATE) + 16 + 3 * sum(text_size(part) for part in item[:3])
