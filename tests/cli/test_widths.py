"""Texts broken into lines by the columns that they take, and ages in words."""

import pytest

from opdbus.cli.output import pad, width_of, wrap
from opdbus.platform.timestamps import ago


@pytest.mark.parametrize(
    ("text", "room", "lines"),
    [
        ("a few words", 20, ["a few words"]),
        ("a few words", 6, ["a few", "words"]),
        ("  in two lines", 8, ["  in two", "  lines"]),
        ("see /a/long/path here", 10, ["see", "/a/long/pa", "th here"]),
        ("\u6570\u636e\u5e93\u670d", 5, ["\u6570\u636e", "\u5e93\u670d"]),
        ("a  b", 3, ["a", "b"]),
        ("\u6570\u636e", 1, ["\u6570", "\u636e"]),
        (" " * 9 + "word", 8, ["word"]),
        ("", 8, [""]),
    ],
)
def test_long_lines_are_folded(text: str, room: int, lines: list[str]) -> None:
    """Break between words, words only where they are longer than a line; nothing is lost."""
    assert wrap(text, room) == lines


def test_wide_characters_take_two_columns() -> None:
    """Count columns, not characters: marks take none."""
    assert (width_of("caf\u00e9"), width_of("cafe\u0301"), width_of("\u6570a")) == (4, 4, 3)
    assert pad("\u6570", 4) == "\u6570  "


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "just now"),
        (59, "59 s ago"),
        (200, "3 min ago"),
        (3600, "1 h ago"),
        (47 * 3600, "47 h ago"),
        (49 * 3600, "2 days ago"),
        (61 * 86400, "2 months ago"),
        (800 * 86400, "2 years ago"),
    ],
)
def test_ages_are_said_in_one_unit(seconds: float, said: str) -> None:
    """Say how long ago something was, never as one of days, months or years."""
    assert ago(seconds) == said
