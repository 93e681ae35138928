"""Lines and words as the kernel, the C library, cron and systemd delimit them.

`str.splitlines`, `str.split` and `str.strip` have a dozen more delimiters, which may be part of
names.
"""

import re
from typing import Final

BLANKS: Final = " \t"
# isspace(3) in the locale C.
C_SPACES: Final = " \t\n\v\f\r"
_GAP: Final = re.compile("[ \t\n]+")


def split_lines(text: str) -> list[str]:
    """Split text at newlines only; a trailing newline begins no further line."""
    return text.removesuffix("\n").split("\n") if text else []


def split_words(text: str, most: int = 0) -> list[str]:
    """Split text at blanks, tabs and newlines only, at most `most` times (0: no limit)."""
    plain = text.strip(" \t\n")
    if not plain:
        return []
    if most:
        return _GAP.split(plain, most)
    return [word for word in plain.replace("\t", " ").replace("\n", " ").split(" ") if word]


def strip_blanks(text: str) -> str:
    """Return text without surrounding blanks, tabs and newlines."""
    return text.strip(" \t\n")


def join_words(text: str) -> str:
    """Return text on one line, with single blanks between its words."""
    return " ".join(split_words(text))
