"""The limits of calls, replies and bulk calls, so that no client stops the others."""

from collections.abc import Iterable, Sequence
from typing import Final

from opdbus.bus.transport.values import Entries, Plain
from opdbus.errors import LimitsExceeded

# Larger calls and replies count by the byte; a caller gets larger replies only if it asks for them.
SMALL_BYTES: Final = 64 << 10
# A larger call is refused before it is decoded, which takes up to 0.3 s a MiB.
MAX_CALL_BYTES: Final = 4 << 20
# Calls that run at once, and their bytes. A connection's first calls pass the limit of calls.
MAX_CALLS: Final = {"connection": 128, "user": 512, "total": 2048}
MAX_CALLS_BYTES: Final = {"connection": 8 << 20, "user": 32 << 20, "total": 128 << 20}
CALLS_ALWAYS_LET_IN: Final = 2
# Open files that came with them: the service may have 8192, and a message of the system bus 16.
MAX_FILES: Final = {"connection": 32, "user": 128, "total": 1024}
# Texts that wait for the model: the queue has room for all users.
MAX_TEXTS_OF_A_USER: Final = 16384
# About a second of tokenizing.
MAX_TEXT_BYTES: Final = 1 << 20
# About a second of checking and redacting.
MAX_OBJECTS: Final = 10_000
# A larger reply could throw the service off the bus: dbus-daemon ends a sender of 32 MiB.
MAX_REPLY_BYTES: Final = 1 << 20
# Of replies that are not read: dbus-daemon holds 127 MiB of them, of which 256 connections of each
# of four users may always have a small one.
MAX_UNREAD: Final = {"connection": 4 << 20, "user": 16 << 20, "total": 40 << 20}
# Of replies held in memory until their clients read those before them.
MAX_WAITING: Final = {"connection": 32 << 20, "user": 48 << 20, "total": 96 << 20}
# Of one bulk call: hours of computing.
MAX_BULK_TEXTS: Final = 1_000_000
MAX_BULK_FILE: Final = 1 << 30
# Vectors of bulk calls are memory of ours until the caller closes their file.
MAX_BULK_BYTES: Final = {"user": 512 << 20, "total": 1 << 30}
# That run at once.
MAX_BULK_CALLS: Final = {"connection": 2, "user": 4, "total": 8}
# Types of eight bytes each.
_PLAIN: Final = frozenset((int, float, bool))


def require_text(texts: Sequence[str]) -> None:
    """Raise LimitsExceeded for more text than a call may bring."""
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_TEXT_BYTES:
        raise LimitsExceeded(
            f"the call brings {size} bytes of text, past the limit of {MAX_TEXT_BYTES}: send less"
            " at a time"
        )


def require_objects(count: int) -> None:
    """Raise LimitsExceeded for more objects than a call may bring."""
    if count > MAX_OBJECTS:
        raise LimitsExceeded(
            f"the call brings {count} objects, past the limit of {MAX_OBJECTS}: send fewer at a"
            " time"
        )


def require_reply(values: Sequence[Plain]) -> None:
    """Raise LimitsExceeded for a reply that is too large to be sent."""
    require_reply_bytes(sum(_size(value, MAX_REPLY_BYTES) for value in values), values)


def require_reply_bytes(size: int, values: Sequence[Plain]) -> None:
    """Raise LimitsExceeded for a reply of too many bytes."""
    if size > MAX_REPLY_BYTES:
        is_list = any(isinstance(value, list | tuple) and len(value) > 1 for value in values)
        advice = "ask for fewer at a time" if is_list else "it is one thing, and cannot be split"
        raise LimitsExceeded(f"the answer would be larger than the limit of 1 MiB: {advice}")


def is_large(value: Plain) -> bool:
    """Return whether a reply is large."""
    return _size(value, SMALL_BYTES) > SMALL_BYTES


def require_small(value: Plain, advice: str) -> None:
    """Raise LimitsExceeded for a large reply that the caller did not ask for."""
    if is_large(value):
        raise LimitsExceeded(
            f"the answer would be larger than {SMALL_BYTES >> 10} KiB, and a larger"
            f" one is sent only where it is asked for: {advice}"
        )


def _size(value: Plain, most: int) -> int:
    """Estimate the bytes that a value takes on the wire; counting ends at `most`."""
    if isinstance(value, str):
        return len(value.encode()) + 5
    if isinstance(value, bytes):
        return len(value) + 4
    if isinstance(value, Entries):
        return 8 + len(value.data)
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
        # most values are plain
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
