"""Objects as rows: columns or names to print, and the command for the next page."""

from __future__ import annotations

import shlex
import shutil
import sys
from functools import wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import click

from opdbus.cli import output
from opdbus.cli.asking import tell_unknown
from opdbus.cli.root import as_json
from opdbus.cli.widths import width
from opdbus.errors import InvalidArgs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opdbus.client import Client

    T = TypeVar("T")
    # an object with at least path, plugin, kind and name
    Row: TypeAlias = dict[str, Any]

# key around a value that is declared and not observed, and variants for a missing object
DECLARED: Final = "declared"
_MARKS: Final = frozenset({DECLARED, "declared absent", "declared missing"})
# key in click's context: the arguments of the command that `op-dbus ask` chose
ASKED: Final = "opdbus.asked"
# never shortened, so that they can be copied
_NAMES: Final = frozenset({"object", "path", "name"})
# longest command that is printed to be pasted if there is no terminal
_MOST_SAID: Final = 500

_quiet = click.option("-q", "--quiet", is_flag=True, help="Print names only, one a line.")
_columns = click.option(
    "--columns",
    metavar="A,B,...",
    help="Print these: object, plugin, kind, name, or fields, such as active_state.",
)


class Form(NamedTuple):
    """Output format of rows: names alone, selected columns, or JSON."""

    is_quiet: bool
    columns: tuple[str, ...]
    is_json: bool

    @property
    def is_for_people(self) -> bool:
        """True if remarks are printed beside the rows."""
        return not (self.is_quiet or self.is_json)

    async def fill(self, client: Client, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows with their columns, read from the row or else from the object's fields.

        Declared objects that are absent are marked, and left out of names alone. Hits are not
        marked, since their text has it already.
        """
        is_listed = self.is_quiet or self.columns or "snippet" not in next(iter(rows), {})
        marks = await _marks(client, rows) if is_listed else [""] * len(rows)
        if self.is_quiet:
            return [row for row, mark in zip(rows, marks, strict=True) if not mark]
        if not self.columns:
            return [_marked(row, mark) for row, mark in zip(rows, marks, strict=True)]
        known = [{**row, "object": name_of(row), **_text(row)} for row in rows]
        fields = [name for name in self.columns if known and name not in known[0]]
        paths = [row["path"] for row in rows]
        found = await client.values(paths, fields, marked=True) if fields else [[]] * len(rows)
        for row, values in zip(known, found, strict=True):
            row.update(zip(fields, values, strict=True))
        shown = ({name: row[name] for name in self.columns} for row in known)
        return [_marked(row, mark) for row, mark in zip(shown, marks, strict=True)]

    def print(
        self, rows: Sequence[Row], usual: Callable[[Sequence[Row]], None] | None = None
    ) -> None:
        """Print rows for people: the columns if given, else by `usual`."""
        if self.is_quiet:
            for row in rows:
                print(output.visible(name_of(row)))
        elif self.columns:
            empty = [name for name in self.columns if all(row[name] is None for row in rows)]
            names = dict.fromkeys((*self.columns, *chain.from_iterable(rows)))
            # print no table of empty columns; the note below gives the reason
            if not rows or len(empty) < len(self.columns):
                cells = [[_cell(name, row.get(name)) for name in names] for row in rows]
                output.table([*names], cells)
            tell_unknown(empty if rows else [])
        elif usual:
            usual(rows)


def formed(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options for the output format to a command, which gets them as its `form`."""

    @wraps(command)
    def run(*, quiet: bool, columns: str | None, json_: bool, **given: Any) -> T:  # noqa: ANN401 -- click's values
        return command(form=_form(quiet=quiet, columns=columns, json_=json_), **given)

    return _quiet(_columns(as_json(run)))


def _form(*, quiet: bool, columns: str | None, json_: bool) -> Form:
    """Parse the output format; raises InvalidArgs."""
    names = tuple(name.strip() for name in columns.split(",")) if columns is not None else ()
    if not all(names):
        raise InvalidArgs(f"--columns {columns!r} lacks a name: give names with commas between")
    if quiet and (json_ or names):
        raise InvalidArgs("-q prints names alone: leave out --columns and --json")
    return Form(quiet, names, json_)


async def _marks(client: Client, rows: Sequence[Row]) -> list[str]:
    """Return `absent` or `missing` for each object that is declared and not observed, else ""."""
    paths = [row["path"] for row in rows]
    values = await client.values(paths, ["name"], marked=True) if paths else []
    keys = (next(iter(name)) if isinstance(name, dict) else "" for (name,) in values)
    return [key.removeprefix(DECLARED).strip() for key in keys]


def _marked(row: Row, mark: str) -> Row:
    return {**row, DECLARED: mark} if mark else row


def _text(row: Row) -> dict[str, Any]:
    # for objects in a list, `text` is a field, if anything
    return {"text": row["snippet"]} if "snippet" in row else {}


def _cell(name: str, value: Any) -> str:  # noqa: ANN401 -- any JSON
    # a score has three significant decimals, as in the list of hits
    if isinstance(value, dict) and value and value.keys() <= _MARKS:
        return " ".join(f"{mark} {_cell(name, inner)}" for mark, inner in value.items())
    said = f"{value:.3f}" if name == "score" and isinstance(value, float) else output.said(value)
    return said if name in _NAMES else output.short_hashes(said)


def name_of(row: Row) -> str:
    """Return the PLUGIN/KIND/NAME of an object, in one line."""
    return "/".join((row["plugin"], row["kind"], row["name"])).replace("\n", r"\n")


def tell_more(count: str, offset: int) -> None:
    """Print on stderr the number of further rows, and the command for the next page."""
    asked = click.get_current_context().meta.get(ASKED, sys.argv[1:])
    at = asked.index("--") if "--" in asked else len(asked)
    words, given = [], iter(asked[:at])
    for word in given:
        if word == "--offset":
            next(given, None)
        elif not word.startswith("--offset="):
            words.append(word)
    command = shlex.join(["op-dbus", *words, "--offset", str(offset), *asked[at:]])
    said = f"{count} more: {command}"
    room = shutil.get_terminal_size().columns if sys.stderr.isatty() else _MOST_SAID
    # a wrapped command could not be pasted
    output.note(said if width(said) <= room else f"{count} more: add --offset {offset}")
