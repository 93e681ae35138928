"""Commands that read from the daemon: levels and show."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from opdbus.cli import completing, grades, output
from opdbus.cli.asking import ask, path_of
from opdbus.cli.root import as_json, root

if TYPE_CHECKING:
    from opdbus.client import Client

_SIDES: Final = ("Observed", "Declared")


@root.command()
@click.option("--detail", is_flag=True, help="Show what the accuracy gate measured.")
@as_json
def levels(detail: bool, json_: bool) -> None:  # noqa: FBT001
    """List the levels and their models."""
    if detail:
        found = ask(lambda client: client.accuracy())
        output.as_json(found) if json_ else grades.show(found)
        return
    columns = ("level", "model", "dimension", "status", "detail")
    rows = ask(lambda client: client.levels())
    if json_:
        output.as_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    # the reason is too long for a column
    output.table(
        columns[:-1], [(*names, dimension or "", status) for *names, dimension, status, _ in rows]
    )
    output.section(columns[-1], {row[0]: row[-1] for row in rows})


@root.command()
@click.argument("object", shell_complete=completing.objects)
@as_json
def show(object: str, json_: bool) -> None:  # noqa: FBT001, A002
    """Show everything about OBJECT.

    OBJECT is PLUGIN/KIND/NAME, as `list` prints it, a D-Bus path, or a short name: `sshd` for
    systemd/unit/sshd.service. Of several objects of a name, a unit is shown, else a package.
    """

    async def found(client: Client) -> tuple[str, dict[str, Any]]:
        path = await path_of(client, object)
        return path, await client.show(path)

    path, values = ask(found)
    if json_:
        output.as_json({"Path": path, **_parsed(values)})
        return
    output.pairs(described(path, values))


def described(
    path: str, values: Mapping[str, Any], told: Callable[[float], str] = output.since
) -> dict[str, str]:
    """Return an object's properties for people; `told` formats the time of the last change."""
    shown = {"Path": path, **_parsed(values)}
    for side in _SIDES:
        if shown[side] is not None:
            shown[side] = json.dumps(shown[side], indent=2, ensure_ascii=False)
    shown["Updated"] = told(shown.pop("UpdatedAt"))
    # properties without a value, such as the distance of an unobserved object, are omitted
    said = {output.in_words(name): output.said(value) for name, value in shown.items()}
    return {name: text for name, text in said.items() if text}


def _parsed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {**values, **{side: json.loads(values[side] or "null") for side in _SIDES}}
