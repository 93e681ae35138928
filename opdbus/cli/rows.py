"""Objects as rows: which columns are printed, or names alone, and the command for what is next."""

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
    # of an object: its path, plugin, kind and name at least
    Row: TypeAlias = dict[str, Any]

# what the value of an object stands below that nothing observes, and if it is not there
DECLARED: Final = "declared"
_MARKS: Final = frozenset({DECLARED, "declared absent", "declared missing"})
# in click's context: the arguments of the command that `op-dbus ask` took
ASKED: Final = "opdbus.asked"
# never shortened, to be copied
_NAMES: Final = frozenset({"object", "path", "name"})
# characters of a command that is printed to be pasted, where there is no terminal
_MOST_SAID: Final = 500

_quiet = click.option("-q", "--quiet", is_flag=True, help="Print names only, one a line.")
_columns = click.option(
    "--columns",
    metavar="A,B,...",
    help="Print these: object, plugin, kind, name, or fields, such as active_state.",
)


class Form(NamedTuple):
    """How rows are printed: names alone, some columns, or as JSON."""

    is_quiet: bool
    columns: tuple[str, ...]
    is_json: bool

    @property
    def is_for_people(self) -> bool:
        """Whether more is said than the rows."""
        return not (self.is_quiet or self.is_json)

    async def fill(self, client: Client, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the columns of rows: what a row has itself, or else a field of its object.

        What is declared, and not there, is marked; it is no row of names alone. Hits say that
        themselves.
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
        """Print rows for people, in the usual way unless columns were asked for."""
        if self.is_quiet:
            for row in rows:
                print(output.visible(name_of(row)))
        elif self.columns:
            empty = [name for name in self.columns if all(row[name] is None for row in rows)]
            names = dict.fromkeys((*self.columns, *chain.from_iterable(rows)))
            # lines of nothing would say less than why they are empty
            if not rows or len(empty) < len(self.columns):
                cells = [[_cell(name, row.get(name)) for name in names] for row in rows]
                output.table([*names], cells)
            tell_unknown(empty if rows else [])
        elif usual:
            usual(rows)


def formed(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command the options that say how rows are printed, which it takes as its `form`."""

    @wraps(command)
    def run(*, quiet: bool, columns: str | None, json_: bool, **given: Any) -> T:  # noqa: ANN401 -- click's values
        return command(form=_form(quiet=quiet, columns=columns, json_=json_), **given)

    return _quiet(_columns(as_json(run)))


def _form(*, quiet: bool, columns: str | None, json_: bool) -> Form:
    """Read how rows are to be printed; raises InvalidArgs."""
    names = tuple(name.strip() for name in columns.split(",")) if columns is not None else ()
    if not all(names):
        raise InvalidArgs(f"--columns {columns!r} lacks a name: give names with commas between")
    if quiet and (json_ or names):
        raise InvalidArgs("-q prints names alone: leave out --columns and --json")
    return Form(quiet, names, json_)


async def _marks(client: Client, rows: Sequence[Row]) -> list[str]:
    """Return of each object that is declared and not there `absent` or `missing`, else nothing."""
    paths = [row["path"] for row in rows]
    values = await client.values(paths, ["name"], marked=True) if paths else []
    keys = (next(iter(name)) if isinstance(name, dict) else "" for (name,) in values)
    return [key.removeprefix(DECLARED).strip() for key in keys]


def _marked(row: Row, mark: str) -> Row:
    return {**row, DECLARED: mark} if mark else row


def _text(row: Row) -> dict[str, Any]:
    # of objects in a list it is a field, if anything
    return {"text": row["snippet"]} if "snippet" in row else {}


def _cell(name: str, value: Any) -> str:  # noqa: ANN401 -- any JSON
    # as hits are listed: so many digits of a score say something
    if isinstance(value, dict) and value and value.keys() <= _MARKS:
        return " ".join(f"{mark} {_cell(name, inner)}" for mark, inner in value.items())
    said = f"{value:.3f}" if name == "score" and isinstance(value, float) else output.said(value)
    return said if name in _NAMES else output.short_hashes(said)


def name_of(row: Row) -> str:
    """Give the PLUGIN/KIND/NAME of an object, in one line."""
    return "/".join((row["plugin"], row["kind"], row["name"])).replace("\n", r"\n")


def tell_more(count: str, offset: int) -> None:
    """Say on stderr how many more there are, and the command that prints those that come next."""
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
    # a command that is broken into lines could not be pasted
    output.note(said if width(said) <= room else f"{count} more: add --offset {offset}")
