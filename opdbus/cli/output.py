"""Output of commands: tables for people, JSON for programs, colours only on a terminal."""

import json
import math
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, TextIO

from opdbus.errors import InvalidArgs
from opdbus.platform import name_lists, regular_files, timestamps
from opdbus.platform.lines import HIDDEN, join_words
from opdbus.platform.lines import escape_hidden as escape_hidden  # noqa: PLC0414 -- a part of this

# columns that are wrapped first
_PROSE: Final = frozenset({"text", "fields", "value", "device"})
# minimum width of those columns, and of others
_LEAST: Final = (20, 4)
# longer values of fields are cut
_LONGEST_VALUE: Final = 60
_CAPITAL: Final = re.compile(r"(?<=[a-z])[A-Z]")
_HASH: Final = re.compile(r"\b[0-9a-f]{32,}\b")
_SHOWN_OF_HASH: Final = 12
_WORD: Final = re.compile(r"(?<!\s)(\s*)(\S+)")
# Unicode categories of characters without a column; East Asian wide characters take two.
_NO_WIDTH: Final = frozenset({"Mn", "Me", "Cf"})
_WIDE: Final = frozenset({"W", "F"})


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json_text(value, indent=2))


def print_json_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows as a list of JSON objects with the columns as keys."""
    print_json(as_dicts(columns, rows))


def as_dicts(keys: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return each row as a dict."""
    return [dict(zip(keys, row, strict=True)) for row in rows]


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON: NaN, which JSON lacks, as null, and hidden characters as escapes."""
    text = json.dumps(without_nan(value), ensure_ascii=False, indent=indent)
    return "\n".join(
        HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], line) for line in text.split("\n")
    )


def terminal_width(stream: TextIO) -> int:
    """Return the columns of a terminal; 0 for a pipe, whose lines are whole."""
    return shutil.get_terminal_size().columns if stream.isatty() else 0


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under headings; into a pipe, full lines without colours.

    On a terminal, a line that is too wide is wrapped: prose first, other columns only if needed.
    """
    texts = [map(join_words, map(name_lists.format_value, row)) for row in (columns, *rows)]
    cells = [[*map(escape_hidden, row)] for row in texts]
    widths = [max(map(width_of, column)) for column in zip(*cells, strict=True)]
    if sys.stdout.isatty() and not rows:
        print("nothing found")
        return
    if room := terminal_width(sys.stdout):
        _narrow(columns, widths, room)
    for number, row in enumerate(cells):
        parts = map(wrap, row, widths)
        for line in zip_longest(*parts, fillvalue=""):
            text = "  ".join(map(pad, line, widths)).rstrip()
            print(add_style(text, "bold") if not number else text)


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


def print_pairs(values: Mapping[str, object]) -> None:
    """Print names and values, one pair a line, long values indented below.

    On a terminal, hashes are shortened.
    """
    shown = {escape_hidden(name): value for name, value in values.items()}
    columns = max(map(width_of, shown), default=0)
    for name, value in shown.items():
        label = add_style(pad(name, columns), "cyan")
        print_labelled(label, columns, shorten_hashes(name_lists.format_value(value)))


def print_section(title: str, values: Mapping[str, str]) -> None:
    """Print a title and, below it, the names that have a value; nothing if none has."""
    if said := {name: value for name, value in values.items() if value}:
        print(f"\n{add_style(title, 'bold')}")
        print_pairs(said)


def print_labelled(label: str, columns: int, text: str, look: str = "") -> None:
    """Print a text beside a label of the given width; on a terminal, long lines are wrapped."""
    lines = _split_lines(text)
    if width := terminal_width(sys.stdout):
        room = max(_LEAST[0], width - columns - 2)
        lines = [part for line in lines for part in wrap(line, room)]
    print(f"{label}  {add_style(lines[0], look)}".rstrip())
    for line in lines[1:]:
        print(" " * (columns + 2) + add_style(line, look))


def print_paragraph(text: str) -> None:
    """Print a text; on a terminal, long lines are wrapped."""
    room = terminal_width(sys.stdout)
    print("\n".join(wrap(text, room) if room else [text]))


def print_note(text: str) -> None:
    """Print a remark on stderr; on a terminal, long lines are wrapped."""
    lines = _split_lines(text)
    if sys.stderr is None:  # closed by the parent process
        return
    if room := terminal_width(sys.stderr):
        lines = [part for line in lines for part in wrap(line, room)]
    # flush stdout first, so that the order is kept if both go into one pipe
    if sys.stdout is not None:
        sys.stdout.flush()
    print("\n".join(lines), file=sys.stderr, flush=True)


def shorten_hashes(text: str) -> str:
    """Shorten the hashes in a text if stdout is a terminal."""
    if not sys.stdout.isatty():
        return text
    return type(text)(_HASH.sub(lambda match: f"{match[0][:_SHOWN_OF_HASH]}...", text))


class Lines(str):
    """Lines that were escaped each by itself: of any other text, a newline is escaped as well."""

    __slots__ = ()


def join_lines(lines: Iterable[str]) -> Lines:
    """Return lines that are printed one below the other."""
    return Lines("\n".join(map(escape_hidden, lines)))


def _split_lines(text: str) -> list[str]:
    return text.split("\n") if isinstance(text, Lines) else [escape_hidden(text)]


def add_style(text: str, look: str) -> str:
    """Add a colour or bold to a text on a terminal; an empty look changes nothing."""
    if not look or not sys.stdout.isatty():
        return text
    import click

    return click.style(text, bold=True) if look == "bold" else click.style(text, fg=look)


def format_time(seconds: float) -> str:
    """Format a time, in seconds since 1970, in the local time zone."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def format_age(seconds: float) -> str:
    """Return the age of a time in seconds since 1970; into a pipe, the time itself."""
    age = time.time() - seconds
    return timestamps.ago(age) if sys.stdout.isatty() and age >= 0 else format_time(seconds)


def split_capitals(name: str) -> str:
    """Return the name of a property as words: `Requested provider`."""
    return _CAPITAL.sub(lambda match: f" {match[0].lower()}", name)


def format_json(text: str) -> str:
    """Format a JSON value of a field for people, cut to 60 characters."""
    value = json.loads(text)
    # these strings would read as no value
    if value in ("no", "none", "yes"):
        return text
    return name_lists.shorten(name_lists.format_value(value), _LONGEST_VALUE)


def field_in_words(name: str) -> str:
    """Return the last part of a field's name as words: on_hold becomes on hold."""
    return name.rpartition(".")[2].replace("_", " ")


def without_nan(value: Any) -> Any:
    """Replace NaN, which JSON lacks, by None."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


def width_of(text: str) -> int:
    """Return the width of a text in columns."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def pad(text: str, columns: int) -> str:
    """Pad a text with spaces to a width."""
    return text + " " * (columns - width_of(text))


def wrap(text: str, room: int) -> list[str]:
    """Wrap a text between words; a word is broken only if it is longer than a line.

    Later lines have the indentation of the first.
    """
    if width_of(text) <= room:
        return [text]
    indent = text[: len(text) - len(text.lstrip())]
    if len(indent) > room // 2:
        indent, text = "", text.lstrip()
    lines = [""]
    for gap, word in _WORD.findall(text):
        first, *more = _break_word(word, room - len(indent))
        if not lines[-1].strip() or width_of(lines[-1] + gap + first) <= room:
            lines[-1] += gap + first
        else:
            lines.append(indent + first)
        lines += [indent + piece for piece in more]
    return lines


def _columns(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


def _break_word(word: str, room: int) -> Iterator[str]:
    """Yield a word, in parts if it is wider than the room."""
    start = used = 0
    for at, character in enumerate(word):
        columns = _columns(character)
        if used + columns > room and at > start:
            yield word[start:at]
            start, used = at, 0
        used += columns
    yield word[start:]


def replace_file(path: Path, text: str, like: os.stat_result | None = None) -> None:
    """Replace a file at once, readable by all unless it is to be `like` another.

    Raises InvalidArgs.
    """
    try:
        regular_files.replace_file(path, text, mode=0o644, like=like)
    except OSError as error:
        raise InvalidArgs(f"cannot write {path}: {error.strerror}") from None
