"""Limits of calls, replies and bulk calls, so that no client blocks the others."""

from collections.abc import Iterable, Sequence
from typing import Final

from opdbus.bus.transport.values import Plain
from opdbus.errors import LimitsExceeded

# Larger calls and replies count by the byte; only callers that ask for them get larger replies.
SMALL_BYTES: Final = 64 << 10
# A larger call is refused before it is decoded, which takes up to 0.3 s a MiB.
MAX_CALL_BYTES: Final = 4 << 20
# Concurrent calls, and their bytes. A connection's first calls are exempt from the limit of calls.
MAX_CALLS: Final = {"connection": 128, "user": 512, "total": 2048}
MAX_CALLS_BYTES: Final = {"connection": 8 << 20, "user": 32 << 20, "total": 128 << 20}
CALLS_ALWAYS_LET_IN: Final = 2
# Open files of calls: the service may have 8192, and a message on the system bus 16.
MAX_FILES: Final = {"connection": 32, "user": 128, "total": 1024}
# Queued texts of a user: the engine's queue has room for all users.
MAX_TEXTS_OF_A_USER: Final = 16384
# Text of a call: about a second of tokenizing.
MAX_TEXT_BYTES: Final = 1 << 20
# Objects of a call: about a second of validation and redaction.
MAX_OBJECTS: Final = 10_000
# A reply: dbus-daemon disconnects a sender at 32 MiB.
MAX_REPLY_BYTES: Final = 1 << 20
# Unread replies: dbus-daemon holds 127 MiB of them. 256 connections of each of four users can still
# have a small one.
MAX_UNREAD: Final = {"connection": 4 << 20, "user": 16 << 20, "total": 40 << 20}
# Replies held in memory until their clients read earlier ones.
MAX_WAITING: Final = {"connection": 32 << 20, "user": 48 << 20, "total": 96 << 20}
# One bulk call: hours of computation.
MAX_BULK_TEXTS: Final = 1_000_000
MAX_BULK_FILE: Final = 1 << 30
# Vectors of bulk calls are our memory until the caller closes their file.
MAX_BULK_BYTES: Final = {"user": 512 << 20, "total": 1 << 30}
# Concurrent bulk calls.
MAX_BULK_CALLS: Final = {"connection": 2, "user": 4, "total": 8}
# Types that take eight bytes.
_PLAIN: Final = frozenset((int, float, bool))


def require_text(texts: Sequence[str]) -> None:
    """Raise LimitsExceeded for more text than a call may have."""
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_TEXT_BYTES:
        raise LimitsExceeded(
            f"the call brings {size} bytes of text, past the limit of {MAX_TEXT_BYTES}: send less"
            " at a time"
        )


def require_objects(count: int) -> None:
    """Raise LimitsExceeded for more objects than a call may have."""
    if count > MAX_OBJECTS:
        raise LimitsExceeded(
            f"the call brings {count} objects, past the limit of {MAX_OBJECTS}: send fewer at a"
            " time"
        )


def require_reply(values: Sequence[Plain]) -> None:
    """Raise LimitsExceeded for a reply that is too large to send."""
    require_reply_bytes(sum(_size(value, MAX_REPLY_BYTES) for value in values), values)


def require_reply_bytes(size: int, values: Sequence[Plain]) -> None:
    """Raise LimitsExceeded for a reply of too many bytes; `values` choose the advice."""
    if size > MAX_REPLY_BYTES:
        is_list = any(isinstance(value, list | tuple) and len(value) > 1 for value in values)
        advice = "ask for fewer at a time" if is_list else "it is one thing, and cannot be split"
        raise LimitsExceeded(f"the answer would be larger than the limit of 1 MiB: {advice}")


def is_large(value: Plain) -> bool:
    """Return whether a reply is larger than SMALL_BYTES."""
    return _size(value, SMALL_BYTES) > SMALL_BYTES


def require_small(value: Plain, advice: str) -> None:
    """Raise LimitsExceeded for a large reply that the caller did not ask for."""
    if is_large(value):
        raise LimitsExceeded(
            f"the answer would be larger than {SMALL_BYTES >> 10} KiB, and a larger"
            f" one is sent only where it is asked for: {advice}"
        )


def _size(value: Plain, most: int) -> int:
    """Estimate the encoded bytes of a value; counting stops at `most`."""
    if isinstance(value, str):
        return len(value.encode()) + 5
    if isinstance(value, bytes):
        return len(value) + 4
    if isinstance(value, dict):
        return _sum(value.items(), most)
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], float):
            return 8 + 8 * len(value)
        return _sum(value, most)
    return 8


def _sum(values: Iterable[Plain], most: int) -> int:
    size = 8
    for value in values:
        # most values are strings or numbers
        kind = type(value)
        if kind is str and value.isascii():
            size += len(value) + 5
        elif kind in _PLAIN:
            size += 8
        else:
            size += _size(value, most - size)
        if size > most:
            break
    return size
