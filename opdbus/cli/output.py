"""What commands print: tables for people, JSON for programs, colours only on a terminal."""

import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def as_json(value: Any) -> None:  # noqa: ANN401 -- any JSON
    """Print a value as JSON; NaN, which JSON has not, as null."""
    print(json.dumps(_without_nan(value), ensure_ascii=False, indent=2))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under headings; into a pipe, full lines without borders or colours."""
    if not sys.stdout.isatty():
        _plain([columns, *rows])
        return
    # rich takes a third of the time that this command may start in, so only a terminal pays it
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(_Text(visible(str(cell))) for cell in row))
    Console(highlight=False).print(drawn)


def pairs(values: Mapping[str, object]) -> None:
    """Print names and values, one pair a line, long values indented below."""
    width = max(map(len, values), default=0)
    for name, value in values.items():
        labelled(style(name.ljust(width), "cyan"), width, str(value))


def section(title: str, values: Mapping[str, str]) -> None:
    """Print the names that have a value below a title, after what was printed before."""
    if said := {name: value for name, value in values.items() if value}:
        print(f"\n{style(title, 'bright_white')}")
        pairs(said)


def labelled(label: str, width: int, text: str) -> None:
    """Print a text beside a label of this width; on a terminal, long lines are broken."""
    lines = [visible(line) for line in text.splitlines()] or [""]
    if sys.stdout.isatty():
        room = max(20, shutil.get_terminal_size().columns - width - 2)
        lines = [part for line in lines for part in _broken(line, room)]
    print(f"{label}  {lines[0]}".rstrip())
    for line in lines[1:]:
        print(" " * (width + 2) + line)


def _broken(line: str, room: int) -> list[str]:
    """Break a line between words; paths and commands stay whole, to be copied."""
    if len(line) <= room:
        return [line]
    return textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)


def visible(text: str) -> str:
    """Show control characters as escapes: a name must not command the terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def style(text: str, colour: str) -> str:
    """Colour a text, on a terminal."""
    if not sys.stdout.isatty():
        return text
    import click

    return click.style(text, fg=colour)


def _Text(cell: str) -> Any:  # noqa: ANN401, N802 -- rich's own class, imported late
    from rich.text import Text

    return Text(cell)


def _plain(rows: Sequence[Sequence[object]]) -> None:
    cells = [[visible(" ".join(str(cell).split())) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(line.rstrip())


def _without_nan(value: Any) -> Any:  # noqa: ANN401 -- any JSON
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
