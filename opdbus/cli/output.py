"""Output of commands: tables for people, JSON for programs, colours only on a terminal."""

import json
import math
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Final

from opdbus.cli.widths import fold, pad, width
from opdbus.platform import timestamps
from opdbus.platform.lines import join_words

# columns that are wrapped first
_PROSE: Final = frozenset({"text", "fields", "value", "device"})
# minimum width of those columns, and of others
_LEAST: Final = (20, 4)
# larger numbers are printed in scientific notation
_LONG: Final = 1e15
_CAPITAL: Final = re.compile(r"(?<=[a-z])[A-Z]")
_HASH: Final = re.compile(r"\b[0-9a-f]{32,}\b")
_SHOWN_OF_HASH: Final = 12
# Control characters, and characters that are invisible, change the direction, or begin a line:
# Unicode's Default_Ignorable_Code_Point, U+FFF9 to U+FFFB, and lone surrogates. Variation selectors
# are allowed after symbols.
_HIDDEN: Final = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0"
    r"\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    r"|(?<![\u2010-\u27bf\u2900-\u2bff\u3000-\u32ff\U0001f000-\U0001faff])[\ufe0e\ufe0f]"
)


def as_json(value: Any) -> None:  # noqa: ANN401 -- any JSON
    """Print a value as JSON."""
    print(json_text(value, indent=2))


def json_text(value: Any, indent: int | None = None) -> str:  # noqa: ANN401 -- any JSON
    """Return a value as JSON: NaN, which JSON lacks, as null, and hidden characters as escapes."""
    text = json.dumps(without_nan(value), ensure_ascii=False, indent=indent)
    return _HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under headings; into a pipe, full lines without colours.

    On a terminal, a line that is too wide is wrapped: prose first, other columns only if needed.
    """
    cells = [[visible(join_words(said(cell))) for cell in row] for row in (columns, *rows)]
    widths = [max(map(width, column)) for column in zip(*cells, strict=True)]
    if sys.stdout.isatty():
        if not rows:
            print("nothing found")
            return
        _narrow(columns, widths, shutil.get_terminal_size().columns)
    for number, row in enumerate(cells):
        for line in _lines(row, widths):
            print(style(line, "bold") if not number else line)


def _narrow(columns: Sequence[str], widths: list[int], room: int) -> None:
    """Reduce column widths to the room: prose columns first, then the widest columns."""
    widths[:] = [min(each, room) for each in widths]
    prose = [place for place, column in enumerate(columns) if column in _PROSE]
    for places, least in zip((prose, range(len(widths))), _LEAST, strict=True):
        for _ in range(sum(widths) + 2 * (len(widths) - 1) - room):
            widest = max(places, key=widths.__getitem__, default=0)
            if not places or widths[widest] <= least:
                break
            widths[widest] -= 1


def _lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a row, with long cells wrapped."""
    parts = [fold(cell, room) for cell, room in zip(row, widths, strict=True)]
    for cells in zip_longest(*parts, fillvalue=""):
        yield "  ".join(map(pad, cells, widths)).rstrip()


def pairs(values: Mapping[str, object]) -> None:
    """Print names and values, one pair a line, long values indented below.

    On a terminal, hashes are shortened.
    """
    shown = {visible(name): value for name, value in values.items()}
    columns = max(map(width, shown), default=0)
    for name, value in shown.items():
        labelled(style(pad(name, columns), "cyan"), columns, short_hashes(said(value)))


def section(title: str, values: Mapping[str, str]) -> None:
    """Print a title and, below it, the names that have a value; nothing if none has."""
    if said := {name: value for name, value in values.items() if value}:
        print(f"\n{style(title, 'bold')}")
        pairs(said)


def labelled(label: str, columns: int, text: str, look: str = "") -> None:
    """Print a text beside a label of the given width; on a terminal, long lines are wrapped."""
    lines = visible(text.removesuffix("\n")).split("\n")
    if sys.stdout.isatty():
        room = max(_LEAST[0], shutil.get_terminal_size().columns - columns - 2)
        lines = [part for line in lines for part in fold(line, room)]
    print(f"{label}  {style(lines[0], look)}".rstrip())
    for line in lines[1:]:
        print(" " * (columns + 2) + style(line, look))


def paragraph(text: str) -> None:
    """Print a text; on a terminal, long lines are wrapped."""
    room = shutil.get_terminal_size().columns
    print("\n".join(fold(text, room) if sys.stdout.isatty() else [text]))


def note(text: str) -> None:
    """Print a remark on stderr; on a terminal, long lines are wrapped."""
    lines = visible(text).split("\n")
    if sys.stderr is None:  # closed by the parent process
        return
    if sys.stderr.isatty():
        room = shutil.get_terminal_size().columns
        lines = [part for line in lines for part in fold(line, room)]
    # flush stdout first, so that the order is kept if both go into one pipe
    if sys.stdout is not None:
        sys.stdout.flush()
    print("\n".join(lines), file=sys.stderr, flush=True)


def short_hashes(text: str) -> str:
    """Shorten the hashes in a text if stdout is a terminal."""
    if not sys.stdout.isatty():
        return text
    return _HASH.sub(lambda match: f"{match[0][:_SHOWN_OF_HASH]}...", text)


def visible(text: str) -> str:
    """Escape control and hidden characters, so that no name can command the terminal.

    Nor can a name look like another one, or hide a part of itself.
    """
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def style(text: str, look: str) -> str:
    """Add a colour or bold to a text on a terminal; an empty look changes nothing."""
    if not look or not sys.stdout.isatty():
        return text
    import click

    return click.style(text, bold=True) if look == "bold" else click.style(text, fg=look)


def moment(seconds: float) -> str:
    """Format a time, in seconds since 1970, in the local time zone."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def since(seconds: float) -> str:
    """Return the age of a time in seconds since 1970; into a pipe, the time itself."""
    age = time.time() - seconds
    return timestamps.ago(age) if sys.stdout.isatty() and age >= 0 else moment(seconds)


def in_words(name: str) -> str:
    """Return the name of a property as words: `Requested provider`."""
    return _CAPITAL.sub(lambda match: f" {match[0].lower()}", name)


def said(value: object) -> str:
    """Format a value for people; None and NaN are empty."""
    if isinstance(value, list):
        return ", ".join(map(said, value))
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        is_whole = 1000 <= abs(value) < _LONG
        return "" if math.isnan(value) else f"{value:.0f}" if is_whole else f"{value:.4g}"
    return str(value)


def without_nan(value: Any) -> Any:  # noqa: ANN401 -- any JSON
    """Replace NaN, which JSON lacks, by None."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value
