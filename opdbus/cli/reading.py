"""The commands that read from the daemon: each asks one thing and prints the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opdbus.cli import output
from opdbus.cli.asking import ask, path_of
from opdbus.cli.root import as_json, root

if TYPE_CHECKING:
    from opdbus.client import Client

# what the accuracy gate measured of each precision
_GRADES = (
    "level",
    "provider",
    "precision",
    "chosen",
    "mean_cosine",
    "min_cosine",
    "rank",
    "texts_per_second",
    "refused",
)


@root.command()
@click.option("--detail", is_flag=True, help="Show what the accuracy gate measured.")
@as_json
def levels(detail: bool, json_: bool) -> None:  # noqa: FBT001
    """List the levels and their models."""
    columns: Sequence[str] = ("level", "model", "dimension", "status", "detail")
    if detail:
        columns = _GRADES
        found = ask(lambda client: client.accuracy())
        rows = [[grade[name] for name in columns] for grade in found]
    else:
        rows = ask(lambda client: client.levels())
    if json_:
        output.as_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    # a reason is too long for a column
    headings = [name.replace("_", " ") for name in columns[:-1]]
    output.table(headings, [row[:-1] for row in rows])
    keys = 3 if detail else 1
    output.section(columns[-1], {" ".join(map(str, row[:keys])): row[-1] for row in rows})


@root.command()
@click.argument("object")
@as_json
def show(object: str, json_: bool) -> None:  # noqa: FBT001, A002
    """Show everything about OBJECT.

    OBJECT is PLUGIN/KIND/NAME, as `list` prints it, a D-Bus path, or a name that is unique: `sshd`
    for systemd/unit/sshd.service.
    """

    async def found(client: Client) -> tuple[str, dict[str, Any]]:
        path = await path_of(client, object)
        return path, await client.show(path)

    path, values = ask(found)
    for side in ("Declared", "Observed"):
        values[side] = json.loads(values[side]) if values[side] else None
    if json_:
        output.as_json({"Path": path, **values})
        return
    for side in ("Declared", "Observed"):
        if values[side] is not None:
            values[side] = json.dumps(values[side], indent=2, ensure_ascii=False)
    values["UpdatedAt"] = output.moment(values["UpdatedAt"])
    # what there is not, such as a distance from what nobody observed, is left out
    output.pairs({"Path": path} | {k: v for k, v in values.items() if output.said(v)})
