"""How much one call may bring and take away, so that no caller stops the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opdbus.errors import LimitsExceeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.bus.wire import Plain

# About a second of tokenizing.
MAX_TEXT_BYTES: Final = 1 << 20
# About a second of checking and redacting.
MAX_OBJECTS: Final = 10_000
# A larger reply could throw the service off the bus: dbus-daemon ends a sender of 32 MiB.
MAX_REPLY_BYTES: Final = 1 << 20
# Of one bulk call: hours of computing.
MAX_BULK_TEXTS: Final = 1_000_000
MAX_BULK_FILE: Final = 1 << 30
# Vectors of bulk calls are memory of ours until the caller closes their file: of one call, and of
# all that run.
MAX_BULK_BYTES: Final = 512 << 20
MAX_BULK_BYTES_RUNNING: Final = 1 << 30
MAX_BULK_CALLS: Final = 2
MAX_BULK_CALLS_RUNNING: Final = 8


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
    """Raise LimitsExceeded for an answer that is too large to be sent."""
    size = _size(values)
    if size > MAX_REPLY_BYTES:
        is_list = any(isinstance(value, list | tuple) and len(value) > 1 for value in values)
        advice = "ask for fewer at a time" if is_list else "it is one thing, and cannot be split"
        raise LimitsExceeded(
            f"the answer would be {size / (1 << 20):.1f} MiB, past the limit of 1 MiB: {advice}"
        )


def _size(value: Plain) -> int:
    """Estimate the bytes that a value takes on the wire."""
    if isinstance(value, str):
        return len(value.encode()) + 5
    if isinstance(value, bytes):
        return len(value) + 4
    if isinstance(value, dict):
        return 8 + sum(_size(key) + _size(item) + 8 for key, item in value.items())
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], float):
            return 8 + 8 * len(value)
        return 8 + sum(map(_size, value))
    return 8
