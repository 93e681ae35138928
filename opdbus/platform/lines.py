"""Lines and words as the kernel, the C library, cron and systemd delimit them.

`str.splitlines`, `str.split` and `str.strip` know a dozen more characters, which names may have.
"""

import re
from typing import Final

BLANKS: Final = " \t"
# isspace(3) in the locale C.
C_SPACES: Final = " \t\n\v\f\r"
_GAP: Final = re.compile("[ \t\n]+")


def split_lines(text: str) -> list[str]:
    """Split a text at newlines alone; a newline at the end begins no line."""
    return text.removesuffix("\n").split("\n") if text else []


def split_words(text: str, most: int = 0) -> list[str]:
    """Split a text at blanks, tabs and newlines alone, after `most` words no more (0: at all)."""
    plain = text.strip(" \t\n")
    if not plain:
        return []
    if most:
        return _GAP.split(plain, most)
    return [word for word in plain.replace("\t", " ").replace("\n", " ").split(" ") if word]


def strip_blanks(text: str) -> str:
    """Return a text without the blanks, tabs and newlines around it."""
    return text.strip(" \t\n")


def join_words(text: str) -> str:
    """Return a text on one line, with one blank for each gap between its words."""
    return " ".join(split_words(text))
