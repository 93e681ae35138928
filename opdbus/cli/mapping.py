"""Command `op-dbus map`: a host's objects as a picture in a file for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from opdbus.cli import output
from opdbus.cli.daemon_calls import ask, without_empty
from opdbus.cli.find_objects import where_filter
from opdbus.cli.root import NUMBER, as_json, kind, plugin, root
from opdbus.cli.show_history import parse_time
from opdbus.errors import InvalidArgs

if TYPE_CHECKING:
    from opdbus.picture.scene import Scene, Table

_MOST_OBJECTS: Final = 50_000
_DEFAULT_FILE: Final = "op-dbus-map.html"


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
    from opdbus.picture import host_scene, page, svg
    from opdbus.picture.scene import read_table

    drawers = {".html": page.draw, ".svg": svg.draw}
    if not target and Path(_DEFAULT_FILE).exists():
        raise InvalidArgs(f"{_DEFAULT_FILE} is there already: `-o {_DEFAULT_FILE}` replaces it")
    target = target or Path(_DEFAULT_FILE)
    if target.suffix not in drawers:
        raise InvalidArgs(f"{target} is neither FILE.html nor FILE.svg: give one of these")
    if not 1 <= limit <= _MOST_OBJECTS:
        raise InvalidArgs(f"--limit must be from 1 to {_MOST_OBJECTS}, not {limit}")
    asked, began = without_empty(**wanted), parse_time(since)
    known = ask(lambda client: host_scene.read_map_data(client, asked, limit, began))
    with known.vectors:
        found = read_table(known.vectors)
        if not found.rows:
            raise InvalidArgs(f"{found.why_empty}; see `op-dbus status`")
    scene = host_scene.make_scene(known, found)
    content = drawers[target.suffix](scene).encode(errors="replace")
    try:
        target.touch(0o600)
        target.write_bytes(content)
    except OSError as error:
        raise InvalidArgs(f"cannot write {target}: {error.strerror}") from None
    # with conditions, the daemon's drift count is of other objects
    drifted = None if "where" in asked else len(known.drifts)
    _print_summary(target, scene, found, len(content), drifted, json_=json_)


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
