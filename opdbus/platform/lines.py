"""Lines and words as the kernel, the C library, cron and systemd delimit them.

`str.splitlines`, `str.split` and `str.strip` have a dozen more delimiters, which may be part of
names.
"""

import os
import re
import select
from contextlib import suppress
from typing import Final, TextIO

BLANKS: Final = " \t"
# isspace(3) in the locale C.
C_SPACES: Final = " \t\n\v\f\r"
_GAP: Final = re.compile("[ \t\n]+")
# Control characters, and characters that are invisible, change the direction, or begin a line:
# Unicode's Default_Ignorable_Code_Point, U+FFF9 to U+FFFB, and lone surrogates. Variation selectors
# are allowed after symbols.
HIDDEN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0"
    r"\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    r"|(?<![\u2010-\u27bf\u2900-\u2bff\u3000-\u32ff\U0001f000-\U0001faff])[\ufe0e\ufe0f]"
)


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


def escape_hidden(text: str) -> str:
    """Escape control and hidden characters, so that no name can command a terminal.

    Nor can a name begin a line, look like another one, or hide a part of itself. All that prints a
    host's text calls this, or `clean` of the MCP server, which leaves such characters out.
    """
    return HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def write_line(text: str, stream: TextIO) -> None:
    """Write a line of a program that serves.

    A full disk or a closed pipe must not end it, nor a pipe that nobody reads stop it: the line is
    lost.
    """
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # a stream in memory
        stream.write(f"{text}\n")
        return
    room = select.poll()
    room.register(number, select.POLLOUT)
    with suppress(OSError):
        if room.poll(0):
            os.write(number, f"{text}\n".encode(errors="backslashreplace"))
