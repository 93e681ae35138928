"""Command `op-dbus map`: a host's objects as a picture in a file for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from opdbus.cli import output
from opdbus.cli.asking import ask, chosen
from opdbus.cli.finding import where
from opdbus.cli.history import moment_of
from opdbus.cli.root import as_json, kind, number, plugin, root
from opdbus.errors import InvalidArgs, LimitsExceeded

if TYPE_CHECKING:
    from opdbus.cli.map_scene import MapData
    from opdbus.client import Client
    from opdbus.picture.scene import Scene
    from opdbus.picture.table import Table

_MOST: Final = 50_000
_USUAL: Final = "op-dbus-map.html"
_TOPICS: Final = 64
# Objects of each topic if names are very long.
_FEW: Final = 10
# Number of newest changes that are marked.
_CHANGES: Final = 2000


@root.command(name="map")
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Where it goes: FILE.html, to search and zoom in, or FILE.svg, a picture. [{_USUAL}]",
)
@plugin
@kind
@where
@click.option(
    "--since", metavar="TIME", default="-24h", help="Mark what changed from then on. [-24h]"
)
@click.option(
    "-n",
    "--limit",
    type=number,
    metavar="N",
    default=20_000,
    help="So many objects at most, evenly chosen. [20000]",
)
@as_json
def map_(
    target: Path | None,
    since: str,
    limit: int,
    json_: bool,  # noqa: FBT001 -- click passes flags so
    **wanted: Any,  # noqa: ANN401 -- click's values
) -> None:
    """Draw all objects as a map on which near means alike.

    Each plugin has a colour; what drifted or changed has another shape. FILE.html is one file that
    a browser opens without a network; a table beside the map says the same in words. A new FILE may
    be read by you only, since it tells much of the host.
    """
    from opdbus.cli import map_scene
    from opdbus.picture import page, svg, table

    drawers = {".html": page.draw, ".svg": svg.draw}
    if not target and Path(_USUAL).exists():
        raise InvalidArgs(f"{_USUAL} is there already: `-o {_USUAL}` replaces it")
    target = target or Path(_USUAL)
    if target.suffix not in drawers:
        raise InvalidArgs(f"{target} is neither FILE.html nor FILE.svg: give one of these")
    if not 1 <= limit <= _MOST:
        raise InvalidArgs(f"--limit must be from 1 to {_MOST}, not {limit}")
    asked, began = chosen(**wanted), moment_of(since)
    known = ask(lambda client: _ask(client, asked, limit, began))
    with known.vectors:
        found = table.read(known.vectors)
        if not found.rows:
            why = f"{found.waiting} wait for their vectors" if found.waiting else "none matches"
            raise InvalidArgs(f"there are no objects to draw: {why}; see `op-dbus status`")
        scene = map_scene.scene(known, found)
    content = drawers[target.suffix](scene).encode(errors="replace")
    _write(target, content)
    # with conditions, the daemon's drift count is of other objects
    drifted = None if "where" in asked else len(known.drifts)
    _tell(target, scene, found, len(content), drifted, json_=json_)


async def _ask(client: Client, wanted: dict[str, Any], limit: int, since: int) -> MapData:
    from opdbus.cli.map_scene import TYPICAL, MapData

    vectors = await client.vectors({**wanted, "sample": limit, "dtype": "float16"})
    sort: dict[str, Any] = {key: wanted[key] for key in ("plugin", "kind") if key in wanted}
    drifts = await client.drift(sort)
    changes = await client.changes({**sort, "since": since}, _CHANGES)
    if len(changes) == _CHANGES:
        since = changes[-1]["at"]
    try:
        topics = await client.clusters(_TOPICS, {**wanted, "objects": TYPICAL})
    except LimitsExceeded:
        topics = await client.clusters(_TOPICS, {**wanted, "objects": _FEW})
    return MapData(vectors, drifts, changes, since, topics)


def _write(target: Path, content: bytes) -> None:
    try:
        target.touch(0o600)
        target.write_bytes(content)
    except OSError as error:
        raise InvalidArgs(f"cannot write {target}: {error.strerror}") from None


def _tell(
    target: Path, scene: Scene, table: Table, size: int, drifted: int | None, *, json_: bool
) -> None:
    marked = {sign.key: sign.many for sign in scene.legend()}
    counts = {
        "objects": len(scene.rows),
        "labels": len(scene.labels()),
        "drifted": marked.get("drifted", 0) if drifted is None else drifted,
        "changed": marked.get("changed", 0),
    }
    if json_:
        rest = {"total": table.total, "waiting": table.waiting, "bytes": size}
        output.as_json({"file": str(target), **counts, **rest})
        return
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    print(f"{output.visible(str(target))}: {said}; {size / 1024:,.0f} KiB")
    if table.waiting:
        output.note(f"{table.waiting:,} more objects wait for their vectors")
