"""Conversion of PID 1's values to JSON values; most wrong types raise TypeError."""

from datetime import UTC, datetime
from typing import Final

from opdbus.bus.transport.values import Plain

# PID 1 sends this for an unset number.
NO_NUMBER: Final = (1 << 64) - 1
_SECONDS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def as_text(value: Plain) -> str:
    """Return a string unchanged; raise TypeError for other types."""
    if not isinstance(value, str):
        raise TypeError
    return value


def as_texts(value: Plain) -> list[str]:
    """Return the strings, sorted; raise TypeError if one is not a string."""
    return sorted(map(as_text, value))


def as_time(microseconds: Plain) -> str | None:
    """Format microseconds since 1970 as a UTC time; None for zero or an unset number."""
    if not 0 < microseconds < NO_NUMBER:
        return None
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def as_span(microseconds: int) -> str:
    """Format microseconds as a duration such as `1 h 30 min`."""
    left, parts = round(microseconds / 1_000_000), []
    for unit, seconds in _SECONDS:
        if left >= seconds:
            parts.append(f"{left // seconds} {unit}")
            left %= seconds
    return " ".join(parts) or "0 s"


def as_number(value: Plain) -> int | None:
    """Return the number; None for zero or an unset number."""
    return int(value) if 0 < value < NO_NUMBER else None


def if_true(value: Plain) -> bool | None:
    """Return True, or None, which leaves the field out."""
    return True if value is True else None
