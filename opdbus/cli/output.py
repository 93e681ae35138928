"""What commands print: tables for people, JSON for programs, colours only on a terminal."""

import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Final

# columns that may be broken into lines, and how narrow they may get
_PROSE: Final = frozenset({"text", "fields", "value", "device"})
_LEAST: Final = 20
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def as_json(value: Any) -> None:  # noqa: ANN401 -- any JSON
    """Print a value as JSON; NaN, which JSON has not, as null."""
    print(json.dumps(without_nan(value), ensure_ascii=False, indent=2))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under headings; into a pipe, full lines without borders or colours.

    On a terminal only prose is broken into lines: a name stays whole, to be copied.
    """
    cells = [[visible(" ".join(said(cell).split())) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if sys.stdout.isatty():
        if not rows:
            print("nothing found")
            return
        _narrow(columns, widths, shutil.get_terminal_size().columns)
    for number, row in enumerate(cells):
        for line in _lines(row, widths):
            print(style(line, "bold") if not number else line)


def _narrow(columns: Sequence[str], widths: list[int], room: int) -> None:
    """Take from the widest prose what a line has too much."""
    prose = [place for place, column in enumerate(columns) if column in _PROSE]
    while (excess := sum(widths) + 2 * (len(widths) - 1) - room) > 0 and prose:
        widest = max(prose, key=widths.__getitem__)
        widths[widest] = max(_LEAST, widths[widest] - excess)
        if widths[widest] == _LEAST:
            prose.remove(widest)


def _lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a row whose long cells are broken."""
    parts = [
        textwrap.wrap(cell, width) if len(cell) > width else [cell]
        for cell, width in zip(row, widths, strict=True)
    ]
    for cells in zip_longest(*parts, fillvalue=""):
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        yield line.rstrip()


def pairs(values: Mapping[str, object]) -> None:
    """Print names and values, one pair a line, long values indented below."""
    width = max(map(len, values), default=0)
    for name, value in values.items():
        labelled(style(name.ljust(width), "cyan"), width, said(value))


def section(title: str, values: Mapping[str, str]) -> None:
    """Print the names that have a value below a title, after what was printed before."""
    if said := {name: value for name, value in values.items() if value}:
        print(f"\n{style(title, 'bright_white')}")
        pairs(said)


def labelled(label: str, width: int, text: str, look: str = "") -> None:
    """Print a text beside a label of this width; on a terminal, long lines are broken."""
    lines = [visible(line) for line in text.splitlines()] or [""]
    if sys.stdout.isatty():
        room = max(20, shutil.get_terminal_size().columns - width - 2)
        lines = [part for line in lines for part in _broken(line, room)]
    print(f"{label}  {style(lines[0], look)}".rstrip())
    for line in lines[1:]:
        print(" " * (width + 2) + style(line, look))


def _broken(line: str, room: int) -> list[str]:
    """Break a line between words; paths and commands stay whole, to be copied."""
    if len(line) <= room:
        return [line]
    return textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)


def visible(text: str) -> str:
    """Show control characters as escapes: a name must not command the terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def style(text: str, look: str) -> str:
    """Give a text a colour, or make it bold, on a terminal; no look leaves it as it is."""
    if not look or not sys.stdout.isatty():
        return text
    import click

    return click.style(text, bold=True) if look == "bold" else click.style(text, fg=look)


def moment(seconds: float) -> str:
    """Give a time, in seconds since 1970, as people write it here."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def said(value: object) -> str:
    """Give a value as people read it: what is not there is empty."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def without_nan(value: Any) -> Any:  # noqa: ANN401 -- any JSON
    """Replace NaN, which JSON has not, by None."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value
