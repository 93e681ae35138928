"""Times of history as text."""

from datetime import UTC, datetime


def said(at: int) -> str:
    """Return a time, in microseconds since 1970, as `op-dbus changes --since` reads it."""
    try:
        return f"{datetime.fromtimestamp(at / 1e6, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
