"""Data of the host's map: positions of objects, drift and changes as marks, topics as labels."""

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, NamedTuple

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import LimitsExceeded
from opdbus.gateway.http_errors import HttpError
from opdbus.picture import page, svg
from opdbus.picture.scene import CHANGED, DRIFTED, Mark, Scene, Table, Topic, read_table
from opdbus.platform.lines import escape_hidden

_TOPICS: Final = 64
# Objects of a topic from which its label's position is computed; fewer if names are very long.
_TYPICAL: Final = (100, 10)
# Number of newest changes that are marked, and of a mark's fields.
_CHANGES: Final = 2000
_FIELDS: Final = 4
# Longer names and texts are cut.
_LONGEST: Final = 240
_HAPPENED: Final = frozenset({"appeared", "changed", "event"})


class MapData(NamedTuple):
    """Answers of the daemon: a file of vectors, drift, changes since a time, and topics."""

    vectors: BinaryIO
    drifts: Sequence[Sequence[Any]]
    changes: Sequence[Mapping[str, Any]]
    # in microseconds since 1970
    since: int
    topics: Sequence[Sequence[Any]]


async def read_map_data(client: Client, wanted: dict[str, Any], limit: int, since: int) -> MapData:
    """Read what the map shows; `since` becomes later if there are too many changes."""
    wanted.pop("format", None)
    vectors = await client.vectors({**wanted, "sample": limit, "dtype": "float16"})
    try:
        kind: dict[str, Any] = {key: wanted[key] for key in ("plugin", "kind") if key in wanted}
        drifts = await client.drift(kind)
        changes = await client.changes({**kind, "since": since}, _CHANGES)
        since = changes[-1]["at"] if len(changes) == _CHANGES else since
        try:
            topics = await client.clusters(_TOPICS, {**wanted, "objects": _TYPICAL[0]})
        except LimitsExceeded:
            topics = await client.clusters(_TOPICS, {**wanted, "objects": _TYPICAL[1]})
    except BaseException:
        vectors.close()
        raise
    return MapData(vectors, drifts, changes, since, topics)


def draw(known: MapData, form: str) -> tuple[str, str]:
    """Return the map's content and its media type; closes the file."""
    with known.vectors:
        table = read_table(known.vectors)
    if not table.rows:
        why = f"{table.waiting} wait for their vectors" if table.waiting else "none matches"
        raise HttpError(404, f"there are no objects to draw: {why}")
    scene = _make_scene(known, table)
    if form == "svg":
        return svg.draw(scene), "image/svg+xml"
    about = {"title": scene.title, "about": scene.about}
    counts = {"total": table.total, "waiting": table.waiting}
    return json.dumps({**about, **counts, **page.script_data(scene)}), "application/json"


def _make_scene(known: MapData, table: Table) -> Scene:
    # imported late, because numpy is slow to import
    from opdbus.picture.layout import place

    number_of: dict[tuple[str, ...], int] = {row[:3]: n for n, row in enumerate(table.rows)}
    for declared, observed in table.renamed.items():
        if (number := number_of.get(paths.parse(observed))) is not None:
            number_of[paths.parse(declared)] = number
    topics = []
    for name, size, more in known.topics:
        found = (number_of.get(paths.parse(path)) for path, _ in more["objects"])
        topics.append(Topic(_one_line(name), size, [row for row in found if row is not None]))
    began = datetime.fromtimestamp(known.since / 1e6, UTC).astimezone()
    return Scene(
        title=f"Map of {_one_line(platform.node())}",
        about=f"{len(table.rows):,} of {table.total:,} objects. Near means alike."
        f" Changed: since {began:%Y-%m-%d %H:%M}.",
        rows=[type(row)(*map(_one_line, row)) for row in table.rows],
        places=[(x, y) for x, y in place(table.vectors).tolist()],
        marks=_find_marks(known, number_of),
        topics=topics,
    )


def _find_marks(known: MapData, number_of: Mapping[tuple[str, ...], int]) -> dict[int, Mark]:
    """Mark changed and drifted objects; drift has precedence."""
    found: dict[int, Mark] = {}
    for change in known.changes:
        row = number_of.get((change["plugin"], change["kind"], change["name"]))
        if row is not None and change["what"] in _HAPPENED and change["cause"] != "first":
            # the newest comes first
            found.setdefault(row, Mark(CHANGED, _one_line(change["sentence"])))
    for path, _, severity, _, _, fields in known.drifts:
        if (row := number_of.get(paths.parse(path))) is not None:
            whys = [
                f"{name} {observed or 'missing'}, declared {declared or 'absent'}"
                for name, declared, observed, _ in fields[:_FIELDS]
            ]
            found[row] = Mark(DRIFTED, _one_line(f"{severity}: {'; '.join(whys)}"))
    return found


def _one_line(text: str) -> str:
    """Return a text in one line, with hidden characters escaped, cut to 240."""
    return escape_hidden(" ".join(text.split())[:_LONGEST])
