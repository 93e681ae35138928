"""Parser of files for EnvironmentFile= of systemd; see systemd.exec(5)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.platform.lines import split_lines, strip_blanks

_COMMENTS: Final = ("#", ";")
# A backslash at its end continues a line.
_CONTINUED: Final = "\\"
_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class Assignment(NamedTuple):
    """One line's assignment; the name is empty if systemd would ignore the line."""

    name: str
    value: str
    # FILE:LINE, counted from 1
    where: str


def read_assignments(file: Path) -> Iterator[Assignment]:
    """Yield the assignments in order; raises OSError, and ValueError if the file is not UTF-8."""
    # a carriage return ends a line, too
    text = file.read_bytes().decode().replace("\r\n", "\n").replace("\r", "\n")
    lines = enumerate(split_lines(text), 1)
    for number, line in lines:
        parts = [line]
        while parts[-1].endswith(_CONTINUED):
            parts[-1] = parts[-1].removesuffix(_CONTINUED)
            parts.append(next(lines, (0, ""))[1])
        text = "".join(parts)
        if not strip_blanks(text) or strip_blanks(text).startswith(_COMMENTS):
            continue
        name, is_given, value = text.partition("=")
        name = strip_blanks(name)
        is_name = bool(is_given and _NAME.fullmatch(name))
        yield Assignment(name if is_name else "", _unquoted(value), f"{file}:{number}")


def _unquoted(value: str) -> str:
    text = strip_blanks(value)
    is_quoted = text[:1] in {"'", '"'} and text.endswith(text[0]) and text[1:]
    return text[1:-1] if is_quoted else text
