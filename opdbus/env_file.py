"""The variables of a file that systemd reads under EnvironmentFile=, systemd.exec(5)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_COMMENTS: Final = ("#", ";")
# a line goes on after a backslash
_CONTINUED: Final = "\\"
_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class Assignment(NamedTuple):
    """What a line gives; the name is empty where systemd makes nothing of it and goes on."""

    name: str
    value: str
    # FILE:LINE, counted from 1
    where: str


def read(file: Path) -> Iterator[Assignment]:
    """Yield what the lines give, in their order; raises OSError and ValueError."""
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    for number, line in lines:
        parts = [line]
        while parts[-1].endswith(_CONTINUED):
            parts[-1] = parts[-1].removesuffix(_CONTINUED)
            parts.append(next(lines, (0, ""))[1])
        text = "".join(parts)
        if not text.strip() or text.strip().startswith(_COMMENTS):
            continue
        name, is_given, value = text.partition("=")
        is_name = bool(is_given and _NAME.fullmatch(name.strip()))
        yield Assignment(name.strip() if is_name else "", _unquoted(value), f"{file}:{number}")


def _unquoted(value: str) -> str:
    text = value.strip()
    is_quoted = text[:1] in {"'", '"'} and text.endswith(text[0]) and text[1:]
    return text[1:-1] if is_quoted else text
