"""The first of many names, and of long ones, as messages give them."""

from collections.abc import Sequence


def first(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Join names; of more than `most` the first, and how many more there are."""
    more = len(names) - most
    return between.join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def shortened(text: str, most: int) -> str:
    """Cut a text of more than `most` characters to so many, the last of which say that."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
