"""Scene of `op-dbus map`, made from the daemon's answers."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import time
from array import array
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from opdbus.bus import paths
from opdbus.cli import drifting, output
from opdbus.cli.telling import plural, tell
from opdbus.errors import OpDbusError
from opdbus.picture.scene import CHANGED, DRIFTED, Mark, Scene, Topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from opdbus.picture.table import Row, Table

    # the row of each object on the map
    Numbers: TypeAlias = Mapping[tuple[str, ...], int]

# Number of objects of a topic from which its label's position is computed.
TYPICAL: Final = 100
# Longer names and texts are cut; `op-dbus show` and `op-dbus changes` have all of them.
_LONGEST: Final = 240
_SHORT: Final = 40
# Prefix in the text of an object that is only declared.
_MARK: Final = re.compile(r"^declared(, missing:)? ")
# Length of date, hour and minute in a timestamp.
_MINUTES: Final = 16
_HAPPENED: Final = frozenset({"appeared", "changed", "event"})
_FIRST: Final = "first"


class MapData(NamedTuple):
    """Answers of the daemon: a file of vectors, drift, changes since a time, and topics."""

    vectors: BinaryIO
    drifts: Sequence[Sequence[Any]]
    changes: Sequence[dict[str, Any]]
    # in microseconds since 1970
    since: int
    topics: Sequence[Sequence[Any]]


def scene(known: MapData, table: Table) -> Scene:
    """Make the scene: a position, text and mark for each object."""
    number_of: dict[tuple[str, ...], int] = {row[:3]: n for n, row in enumerate(table.rows)}
    for declared, observed in table.renamed.items():
        if (number := number_of.get(paths.parse(observed))) is not None:
            number_of[paths.parse(declared)] = number
    return Scene(
        title=f"Map of {_shown(platform.node())}",
        about=_about(table, known.since),
        rows=[_told(row) for row in table.rows],
        places=_places(known.vectors),
        marks=_marks(known, number_of),
        topics=[*_topics(known.topics, number_of), *_sorts(table.rows)],
    )


def _about(table: Table, since: int) -> str:
    count, now, began = len(table.rows), output.moment(time.time()), output.moment(since / 1e6)
    of = f" of {table.total:,}" if table.total > count else ""
    marked = f"Changed: since {began[:_MINUTES]}."
    return f"{count:,}{of} objects, {now[:_MINUTES]}. Near means alike. {marked}"


def _told(row: Row) -> Row:
    """Return an object's row for display, without the name if its text repeats it."""
    what = row.text.partition(f"{row.name}: ")[2]
    mark = _MARK.match(row.text) if what else None
    what = f"{mark[0].rstrip(': ')}: {what}" if mark else what or row.text
    return type(row)(*map(_shown, row._replace(text=what)))


def _shown(text: str) -> str:
    """Return a text in one line, with control and hidden characters escaped, cut to 240."""
    return output.visible(" ".join(text.split()))[:_LONGEST]


def _places(vectors: BinaryIO) -> list[tuple[float, float]]:
    """Compute a position for each vector in a child process with numpy, which reads the file."""
    command = (sys.executable, "-P", "-m", "opdbus.picture")
    done = subprocess.run(  # noqa: S603 -- our own module
        command, stdin=vectors, capture_output=True, check=False
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"its process ended with code {done.returncode}"
        raise OpDbusError(f"the map cannot be laid out: {why}")
    flat = array("f", done.stdout)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _marks(known: MapData, number_of: Numbers) -> dict[int, Mark]:
    """Mark changed and drifted objects; drift has precedence."""
    found: dict[int, Mark] = {}
    for change in known.changes:
        row = number_of.get((change["plugin"], change["kind"], change["name"]))
        is_told = change["what"] in _HAPPENED and change["cause"] != _FIRST
        if row is not None and is_told:
            # the newest comes first
            found.setdefault(row, Mark(CHANGED, _shown(str(tell(change)))))
    for drift in known.drifts:
        row = number_of.get(tuple(paths.parse(drift[0])))
        if row is not None:
            said = "; ".join(f"{severity}, {text}" for severity, text in drifting.told(drift))
            # an object may be declared under two names
            known_why = found[row].why if row in found and found[row].what == DRIFTED else ""
            found[row] = Mark(DRIFTED, _shown("; ".join(filter(None, (known_why, said)))))
    return found


def _topics(topics: Sequence[Sequence[Any]], number_of: Numbers) -> list[Topic]:
    found = []
    for name, size, more in topics:
        rows = (number_of.get(tuple(paths.parse(path))) for path, _ in more["objects"])
        found.append(Topic(_shown(name), size, [row for row in rows if row is not None]))
    return found


def _sorts(rows: Sequence[Row]) -> list[Topic]:
    """Return each kind as a topic of its own, because objects of a kind often lie together."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(rows):
        # a text begins with the kind: service ssh.service, user group adm
        text = _MARK.sub("", row.text)
        noun = text.partition(f" {row.name}")[0].partition(",")[0]
        is_noun = 0 < len(noun) < _SHORT and len(noun) < len(text)
        found.setdefault((row.plugin, noun if is_noun else row.kind), []).append(number)
    return [
        Topic(_shown(plural(noun)), len(of), of[:: -(-len(of) // TYPICAL)])
        for (_, noun), of in found.items()
    ]
