"""Command `op-dbus map`: a host's objects as a picture in a file for a browser."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, TypeAlias

import click

from opdbus.bus import paths
from opdbus.cli import drifting, output
from opdbus.cli.daemon_calls import ask, without_empty
from opdbus.cli.find_objects import where_filter
from opdbus.cli.root import NUMBER, as_json, kind, plugin, root
from opdbus.cli.show_history import parse_time
from opdbus.errors import InvalidArgs, LimitsExceeded, OpDbusError
from opdbus.picture.scene import CHANGED, DRIFTED, Mark, Scene, Topic, read_table
from opdbus.wording.change_words import describe_change, plural

if TYPE_CHECKING:
    from opdbus.client import Client
    from opdbus.picture.scene import Row, Table

# the row of each object on the map
Numbers: TypeAlias = Mapping[tuple[str, ...], int]

_MOST_OBJECTS: Final = 50_000
_DEFAULT_FILE: Final = "op-dbus-map.html"
_TOPICS: Final = 64
# Objects of each topic if names are very long.
_FEW_TYPICAL: Final = 10
# Number of newest changes that are marked.
_CHANGES: Final = 2000
# Number of objects of a topic from which its label's position is computed.
TYPICAL: Final = 100
# Longer names and texts are cut; `op-dbus show` and `op-dbus changes` have all of them.
_LONGEST: Final = 240
_LONGEST_NOUN: Final = 40
# Prefix in the text of an object that is only declared.
_MARK: Final = re.compile(r"^declared(, missing:)? ")
# Length of date, hour and minute in a timestamp.
_MINUTES: Final = 16
_HAPPENED: Final = frozenset({"appeared", "changed", "event"})


class MapData(NamedTuple):
    """Answers of the daemon: a file of vectors, drift, changes since a time, and topics."""

    vectors: BinaryIO
    drifts: Sequence[Sequence[Any]]
    changes: Sequence[dict[str, Any]]
    # in microseconds since 1970
    since: int
    topics: Sequence[Sequence[Any]]


def make_scene(known: MapData, table: Table) -> Scene:
    """Make the scene: a position, text and mark for each object."""
    number_of: dict[tuple[str, ...], int] = {row[:3]: n for n, row in enumerate(table.rows)}
    for declared, observed in table.renamed.items():
        if (number := number_of.get(paths.parse(observed))) is not None:
            number_of[paths.parse(declared)] = number
    count = f"{len(table.rows):,}{f' of {table.total:,}' if table.total > len(table.rows) else ''}"
    now, began = (output.format_time(at)[:_MINUTES] for at in (time.time(), known.since / 1e6))
    topics = []
    for name, size, more in known.topics:
        found = (number_of.get(tuple(paths.parse(path))) for path, _ in more["objects"])
        topics.append(Topic(_one_line(name), size, [row for row in found if row is not None]))
    return Scene(
        title=f"Map of {_one_line(platform.node())}",
        about=f"{count} objects, {now}. Near means alike. Changed: since {began}.",
        rows=[_shown_row(row) for row in table.rows],
        places=_place(table),
        marks=_find_marks(known, number_of),
        topics=[*topics, *_kinds_as_topics(table.rows)],
    )


def _shown_row(row: Row) -> Row:
    """Return an object's row for display, without the name if its text repeats it."""
    what = row.text.partition(f"{row.name}: ")[2]
    mark = _MARK.match(row.text) if what else None
    what = f"{mark[0].rstrip(': ')}: {what}" if mark else what or row.text
    return type(row)(*map(_one_line, row._replace(text=what)))


def _one_line(text: str) -> str:
    """Return a text in one line, with control and hidden characters escaped, cut to 240."""
    return output.escape_hidden(" ".join(text.split()))[:_LONGEST]


def _place(table: Table) -> list[tuple[float, float]]:
    """Return a position for each object."""
    # imported late, because numpy is slow to import
    from opdbus.picture.layout import place

    try:
        return [(x, y) for x, y in place(table.vectors).tolist()]
    except MemoryError as error:
        raise OpDbusError(f"the map cannot be laid out: {error}") from None


def _find_marks(known: MapData, number_of: Numbers) -> dict[int, Mark]:
    """Mark changed and drifted objects; drift has precedence."""
    found: dict[int, Mark] = {}
    for change in known.changes:
        row = number_of.get((change["plugin"], change["kind"], change["name"]))
        is_marked = change["what"] in _HAPPENED and change["cause"] != "first"
        if row is not None and is_marked:
            # the newest comes first
            found.setdefault(row, Mark(CHANGED, _one_line(str(describe_change(change)))))
    for drift in known.drifts:
        row = number_of.get(tuple(paths.parse(drift[0])))
        if row is not None:
            whys = [f"{severity}, {text}" for severity, text in drifting.describe_row(drift)]
            # an object may be declared under two names
            if row in found and found[row].what == DRIFTED and found[row].why:
                whys.insert(0, found[row].why)
            found[row] = Mark(DRIFTED, _one_line("; ".join(whys)))
    return found


def _kinds_as_topics(rows: Sequence[Row]) -> list[Topic]:
    """Return each kind as a topic of its own, because objects of a kind often lie together."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(rows):
        # a text begins with the kind: service ssh.service, user group adm
        text = _MARK.sub("", row.text)
        noun = text.partition(f" {row.name}")[0].partition(",")[0]
        is_noun = 0 < len(noun) < _LONGEST_NOUN and len(noun) < len(text)
        found.setdefault((row.plugin, noun if is_noun else row.kind), []).append(number)
    return [
        Topic(_one_line(plural(noun)), len(of), of[:: -(-len(of) // TYPICAL)])
        for (_, noun), of in found.items()
    ]


@root.command(name="map")
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where it goes: FILE.html, to search and zoom in, or FILE.svg, a picture."
    f" [{_DEFAULT_FILE}]",
)
@plugin
@kind
@where_filter
@click.option(
    "--since", metavar="TIME", default="-24h", help="Mark what changed from then on. [-24h]"
)
@click.option(
    "-n",
    "--limit",
    type=NUMBER,
    metavar="N",
    default=20_000,
    help="So many objects at most, evenly chosen. [20000]",
)
@as_json
def map_(target: Path | None, since: str, limit: int, json_: bool, **wanted: Any) -> None:
    """Draw all objects as a map on which near means alike.

    Each plugin has a colour; what drifted or changed has another shape. FILE.html is one file that
    a browser opens without a network; a table beside the map says the same in words. A new FILE may
    be read by you only, since it tells much of the host.
    """
    from opdbus.picture import page, svg

    drawers = {".html": page.draw, ".svg": svg.draw}
    if not target and Path(_DEFAULT_FILE).exists():
        raise InvalidArgs(f"{_DEFAULT_FILE} is there already: `-o {_DEFAULT_FILE}` replaces it")
    target = target or Path(_DEFAULT_FILE)
    if target.suffix not in drawers:
        raise InvalidArgs(f"{target} is neither FILE.html nor FILE.svg: give one of these")
    if not 1 <= limit <= _MOST_OBJECTS:
        raise InvalidArgs(f"--limit must be from 1 to {_MOST_OBJECTS}, not {limit}")
    asked, began = without_empty(**wanted), parse_time(since)
    known = ask(lambda client: _read_map_data(client, asked, limit, began))
    with known.vectors:
        found = read_table(known.vectors)
        if not found.rows:
            why = f"{found.waiting} wait for their vectors" if found.waiting else "none matches"
            raise InvalidArgs(f"there are no objects to draw: {why}; see `op-dbus status`")
    scene = make_scene(known, found)
    content = drawers[target.suffix](scene).encode(errors="replace")
    try:
        target.touch(0o600)
        target.write_bytes(content)
    except OSError as error:
        raise InvalidArgs(f"cannot write {target}: {error.strerror}") from None
    # with conditions, the daemon's drift count is of other objects
    drifted = None if "where" in asked else len(known.drifts)
    _print_summary(target, scene, found, len(content), drifted, json_=json_)


async def _read_map_data(client: Client, wanted: dict[str, Any], limit: int, since: int) -> MapData:
    """Read what the map shows; `since` becomes later if there are too many changes."""
    vectors = await client.vectors({**wanted, "sample": limit, "dtype": "float16"})
    kind_id: dict[str, Any] = {key: wanted[key] for key in ("plugin", "kind") if key in wanted}
    drifts = await client.drift(kind_id)
    changes = await client.changes({**kind_id, "since": since}, _CHANGES)
    if len(changes) == _CHANGES:
        since = changes[-1]["at"]
    try:
        topics = await client.clusters(_TOPICS, {**wanted, "objects": TYPICAL})
    except LimitsExceeded:
        topics = await client.clusters(_TOPICS, {**wanted, "objects": _FEW_TYPICAL})
    return MapData(vectors, drifts, changes, since, topics)


def _print_summary(
    target: Path, scene: Scene, table: Table, size: int, drifted: int | None, *, json_: bool
) -> None:
    """Print the numbers of what is drawn, and of objects that wait for vectors."""
    marked = {sign.key: sign.many for sign in scene.legend()}
    counts = {
        "objects": len(scene.rows),
        "labels": len(scene.labels()),
        "drifted": marked.get("drifted", 0) if drifted is None else drifted,
        "changed": marked.get("changed", 0),
    }
    if json_:
        rest = {"total": table.total, "waiting": table.waiting, "bytes": size}
        output.print_json({"file": str(target), **counts, **rest})
        return
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    print(f"{output.escape_hidden(str(target))}: {said}; {size / 1024:,.0f} KiB")
    if table.waiting:
        output.print_note(f"{table.waiting:,} more objects wait for their vectors")
