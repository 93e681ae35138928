"""The commands that find objects: by a question, by likeness, by what their fields hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opdbus.cli import output
from opdbus.cli.asking import ask, chosen, path_of
from opdbus.cli.root import as_json, kind, number, plugin, root
from opdbus.errors import LimitsExceeded
from opdbus.state import conditions

if TYPE_CHECKING:
    from opdbus.client import Client

limit = click.option(
    "-n", "--limit", type=number, metavar="N", default=10, help="How many at most. [10]"
)
where = click.option(
    "--where",
    metavar="COND",
    multiple=True,
    help="Only objects with such a field: active_state=failed, used_percent>90.",
)


@root.command()
@click.argument("query")
@limit
@plugin
@kind
@where
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "vector", "lexical"]),
    default="hybrid",
    help="By words and meaning, or by one of them. [hybrid]",
)
@click.option("--offset", type=number, metavar="N", default=0, help="Skip so many of the best. [0]")
@click.option("--rerank", metavar="LEVEL", help="Put the best in the order of another level.")
@as_json
def search(
    query: str,
    limit: int,
    json_: bool,  # noqa: FBT001 -- click passes flags so
    where: Sequence[str],
    **options: Any,  # noqa: ANN401 -- click's values
) -> None:
    """Find the objects that answer QUERY.

    QUERY is a question in plain words, or words of the objects. It may have conditions in it, such
    as state:failed or kind:unit.
    """
    options["where"] = ", ".join(where)
    hits = ask(lambda client: client.search(query, limit, chosen(**options)))
    _print_hits(hits, json_=json_)
    _hint(where, found=bool(hits))


@root.command()
@click.argument("object")
@limit
@plugin
@kind
@where
@as_json
def similar(
    object: str,  # noqa: A002 -- the name in the usage
    limit: int,
    json_: bool,  # noqa: FBT001 -- click passes flags so
    where: Sequence[str],
    **options: Any,  # noqa: ANN401 -- click's values
) -> None:
    """Find the objects most like OBJECT.

    OBJECT is PLUGIN/KIND/NAME, as `list` prints it, a D-Bus path, or a name that is unique.
    """
    options["where"] = ", ".join(where)

    async def found(client: Client) -> list[list[Any]]:
        return await client.similar(await path_of(client, object), limit, chosen(**options))

    hits = ask(found)
    _print_hits(hits, json_=json_)
    _hint(where, found=bool(hits))


@root.command()
@plugin
@kind
@as_json
def fields(json_: bool, **wanted: Any) -> None:  # noqa: FBT001, ANN401
    """List the fields that objects have, for --where."""
    rows = ask(lambda client: client.fields(chosen(**wanted)))
    if json_:
        output.as_json(dict(rows))
        return
    output.table(("field", "objects"), rows)


def _hint(where: Sequence[str], *, found: bool) -> None:
    """Say on stderr which fields are meant, if nothing was found and no object has those asked."""
    if found or not where:
        return
    import difflib

    known = [path for path, _ in ask(lambda client: client.fields({}))]
    for asked in conditions.parse(", ".join(where)):
        if conditions.AllOf([asked]).names.are_in(known):
            continue
        near = difflib.get_close_matches(asked.field, known, 3, 0.7)
        advice = f"; did you mean {', '.join(near)}?" if near else ""
        click.echo(f"no object has a field {asked.field}{advice}", err=True)


def _print_hits(hits: Sequence[Sequence[Any]], *, json_: bool) -> None:
    if json_:
        output.as_json([{"path": path, "score": score, **more} for path, score, more in hits])
        return
    rows = [
        (f"{score:.3f}", f"{more['plugin']}/{more['kind']}/{more['name']}", more["snippet"])
        for _, score, more in hits
    ]
    output.table(("score", "object", "text"), rows)


@root.command(name="list")
@plugin
@kind
@click.option(
    "--source", metavar="NAME", help="Only objects of this source, such as file or publish:NAME."
)
@click.option("--name", metavar="NAME", help="Only objects of this name.")
@where
@click.option(
    "-n", "--limit", type=number, metavar="N", help="How many at most; all, if not given."
)
@click.option(
    "--offset", type=number, metavar="N", default=0, help="Skip so many of the first. [0]"
)
@as_json
def list_(
    limit: int | None,
    offset: int,
    json_: bool,  # noqa: FBT001 -- click passes flags so
    where: Sequence[str],
    **wanted: Any,  # noqa: ANN401 -- click's values
) -> None:
    """List the state objects."""
    wanted["where"] = ", ".join(where)
    total, rows = ask(lambda client: _pages(client, chosen(**wanted), offset, limit))
    _hint(where, found=bool(total))
    if json_:
        keys = ("path", "plugin", "kind", "name")
        objects = [dict(zip(keys, row, strict=True)) for row in rows]
        output.as_json({"total": total, "objects": objects})
        return
    output.table(("plugin", "kind", "name"), [row[1:] for row in rows])
    if len(rows) < total - offset:
        click.echo(f"{len(rows)} of {total} objects", err=True)


async def _pages(
    client: Client, wanted: dict[str, Any], offset: int, limit: int | None
) -> tuple[int, list[list[str]]]:
    """Read page by page, since replies are limited."""
    page_size = 1000
    rows: list[list[str]] = []
    while True:
        ask = page_size if limit is None else min(page_size, limit - len(rows))
        try:
            total, page = await client.page(wanted, offset + len(rows), ask)
        except LimitsExceeded:  # names can be very long
            if page_size == 1:
                raise
            page_size = max(1, page_size // 10)
            continue
        rows += page
        if not page or len(rows) in {limit, total - offset}:
            return total, rows
