"""A host's map: a position, a text and a mark for each object, read from the daemon."""

import platform
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import LimitsExceeded, OpDbusError
from opdbus.picture.scene import CHANGED, DRIFTED, Mark, Row, Scene, Table, Topic
from opdbus.platform.lines import escape_hidden
from opdbus.wording.change_words import describe_change, plural
from opdbus.wording.drift_words import describe_row

# the row of each object on the map
Numbers: TypeAlias = Mapping[tuple[str, ...], int]

_TOPICS: Final = 64
# Objects of a topic from which its label's position is computed; fewer if names are very long.
_TYPICAL: Final = (100, 10)
# Number of newest changes that are marked.
_CHANGES: Final = 2000
# Longer names and texts are cut; `op-dbus show` and `op-dbus changes` have all of them.
_LONGEST: Final = 240
_LONGEST_NOUN: Final = 40
# Prefix in the text of an object that is only declared.
_MARK: Final = re.compile(r"^declared(, missing:)? ")
_HAPPENED: Final = frozenset({"appeared", "changed", "event"})


class MapData(NamedTuple):
    """Answers of the daemon: a file of vectors, drift, changes since a time, and topics."""

    vectors: BinaryIO
    drifts: Sequence[Sequence[Any]]
    changes: Sequence[dict[str, Any]]
    # in microseconds since 1970
    since: int
    topics: Sequence[Sequence[Any]]


async def read_map_data(client: Client, wanted: dict[str, Any], limit: int, since: int) -> MapData:
    """Read what the map shows; `since` becomes later if there are too many changes."""
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


def make_scene(known: MapData, table: Table) -> Scene:
    """Make the scene: a position, text and mark for each object."""
    number_of: dict[tuple[str, ...], int] = {row[:3]: n for n, row in enumerate(table.rows)}
    for declared, observed in table.renamed.items():
        if (number := number_of.get(paths.parse(observed))) is not None:
            number_of[paths.parse(declared)] = number
    count = f"{len(table.rows):,}{f' of {table.total:,}' if table.total > len(table.rows) else ''}"
    now, began = (
        datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
        for at in (time.time(), known.since / 1e6)
    )
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
    return escape_hidden(" ".join(text.split()))[:_LONGEST]


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
        object_id = paths.parse(drift[0])
        row = number_of.get(object_id)
        if row is not None:
            whys = [f"{severity}, {text}" for severity, text in describe_row(object_id, drift)]
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
        Topic(_one_line(plural(noun)), len(of), of[:: -(-len(of) // _TYPICAL[0])])
        for (_, noun), of in found.items()
    ]
