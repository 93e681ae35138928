"""Commands that find objects: by a query, by similarity, by field values."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from opdbus.cli import completing, hits, output, rows
from opdbus.cli.asking import ask, chosen, fields_of, path_of, tell_unknown, tell_unmet
from opdbus.cli.questions import route_of
from opdbus.cli.root import MOST, as_json, count, kind, level_names, number, plugin, root, where_of
from opdbus.cli.status import STARTING
from opdbus.errors import InvalidArgs
from opdbus.language import routes
from opdbus.platform import name_lists

if TYPE_CHECKING:
    from opdbus.cli.rows import Form, Row
    from opdbus.client import Client

    # (path, score, details) of each
    Hits: TypeAlias = list[list[Any]]

# exit code of a search without hits
NOTHING: Final = 12
# number of further hits to count, as far as the daemon returns them
_AHEAD: Final = 100
# number of observers to name
_MOST_NAMES: Final = 3
_KEYS: Final = ("path", "plugin", "kind", "name")

limit = click.option(
    "-n", "--limit", type=count, metavar="N", default=10, help="How many at most. [10]"
)
where = where_of("Only objects with such a field: active_state=failed, used_percent>90.")
offset = click.option(
    "--offset", type=number, metavar="N", default=0, help="Skip so many of the first. [0]"
)


@root.command()
@click.argument("query", nargs=-1, required=True)
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
@offset
@click.option(
    "--rerank",
    metavar="LEVEL",
    help="Put the best in the order of another level.",
    shell_complete=level_names,
)
@click.option("--all", is_flag=True, help="List weak hits as well, marked so.")
@click.option("--explain", is_flag=True, help="Say why each was found, and what ranked it.")
@rows.formed
def search(
    query: tuple[str, ...],
    limit: int,
    form: Form,
    **options: Any,  # noqa: ANN401 -- click's values
) -> int:
    """Find the objects that answer QUERY.

    QUERY is a question in plain words, or words of the objects. It may have conditions in it, such
    as state:failed or kind:unit. The exit code is 12 if nothing here is about that.
    """
    if options["explain"] and (form.is_quiet or form.columns):
        raise InvalidArgs("--explain is about whole hits: leave out -q and --columns")
    asked, question = chosen(**options), " ".join(query)
    if form.is_for_people and not form.columns:
        # to show the fields that matched
        asked["explain"] = True

    async def found(client: Client, most: int, offset: int, **more: bool) -> Hits:
        return await client.search(question, most, asked | {"offset": offset} | more)

    is_answered = _answer(form, found, limit, options)
    if form.is_for_people and (route := route_of(question)).name != routes.OBJECTS:
        output.note(f"that is a question for `{route.command(question)}`")
    if is_answered:
        return 0
    if form.is_for_people and not _is_past_the_last(found, options["offset"]):
        tell_unmet(options["where"], question)
        weak = [] if options["all"] else ask(lambda client: found(client, 1, 0, all=True))
        hint = "; --all lists what comes nearest" if weak else ""
        output.note(f"nothing here is about that{hint}")
        _tell_so_far()
    return NOTHING


@root.command()
@click.argument("object", shell_complete=completing.objects)
@limit
@plugin
@kind
@where
@offset
@rows.formed
def similar(
    object: str,  # noqa: A002 -- the name in the usage
    limit: int,
    form: Form,
    **options: Any,  # noqa: ANN401 -- click's values
) -> int:
    """Find the objects most like OBJECT.

    OBJECT is PLUGIN/KIND/NAME, as `list` prints it, a D-Bus path, or a short name. The exit
    code is 12 if nothing is found.
    """
    # include reasons if the output has room for them
    asked = chosen(**options, explain=not (form.is_quiet or form.columns))

    path = ask(lambda client: path_of(client, object))

    async def found(client: Client, most: int, offset: int, **more: bool) -> Hits:
        return await client.similar(path, most, asked | {"offset": offset} | more)

    if _answer(form, found, limit, options):
        return 0
    if form.is_for_people and not _is_past_the_last(found, options["offset"]):
        tell_unmet(options["where"])
        output.note("nothing here is like that")
    return NOTHING


def _tell_so_far() -> None:
    """Print on stderr the observers that have not read the host yet, if any."""
    observers = ask(lambda client: client.state())["Observers"]
    if names := [name for name, state, *_ in observers if state == STARTING]:
        read = name_lists.first(names, _MOST_NAMES)
        output.note(f"the host is still being read ({read}): that is the answer so far")


def _is_past_the_last(found: Callable[..., Awaitable[Hits]], offset: int) -> bool:
    """Return whether a page begins past the last hit, and if so print that on stderr."""
    is_past = offset > 0 and bool(ask(lambda client: found(client, 1, 0)))
    if is_past:
        output.note(f"there are no more than {offset:,} hits: give a smaller --offset")
    return is_past


def _answer(
    form: Form,
    question: Callable[..., Awaitable[Hits]],
    limit: int,
    options: dict[str, Any],
) -> bool:
    """Print the hits of a query and the number of further ones; return true if there are any."""
    offset = options["offset"]

    async def found(client: Client) -> tuple[list[Row], Sequence[Row], int]:
        found = await question(client, limit, offset)
        best = [
            {"path": path, "score": score, **more, **_sides(more)} for path, score, more in found
        ]
        is_cut = form.is_for_people and len(best) == limit and offset + limit <= MOST
        more: Hits = []
        if is_cut:
            # count them, without reasons
            more = await question(client, _AHEAD, offset + limit, explain=False)
        return best, await form.fill(client, best), len(more)

    best, shown, more = ask(found)
    if form.is_json:
        output.as_json(shown)
    elif shown:
        form.print(shown, partial(hits.show, is_explained=options.get("explain", False)))
    else:
        tell_unknown(fields_of(options["where"]))
    if form.is_for_people:
        _tell_of(best, more, offset + limit)
    return bool(shown)


def _sides(details: dict[str, Any]) -> dict[str, Any]:
    """Parse the declared and observed values of a hit; older daemons omit them."""
    return {
        side: {name: json.loads(text) for name, text in details.get(side, {}).items()}
        for side in ("declared", "observed")
    }


def _tell_of(best: Sequence[Row], more: int, offset: int) -> None:
    """Print on stderr the number of first-stage hits and of further hits."""
    by_static = sum(hit["stage"] == "static" for hit in best)
    if 0 < by_static < len(best):
        output.note(f"the last {by_static} have no vectors of the level yet")
    if any(hit.get("so_far") for hit in best):
        _tell_so_far()
    if more:
        rows.tell_more(f"{more}" if more < _AHEAD else f"at least {more}", offset)


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


@root.command(name="list")
@plugin
@kind
@click.option(
    "--source", metavar="NAME", help="Only objects of this source, such as file or publish:NAME."
)
@click.option("--name", metavar="NAME", help="Only objects of this name.")
@where
@click.option("-n", "--limit", type=count, metavar="N", help="How many at most; all, if not given.")
@offset
@rows.formed
def list_(
    limit: int | None,
    offset: int,
    form: Form,
    **wanted: Any,  # noqa: ANN401 -- click's values
) -> None:
    """List the state objects."""
    if form.is_for_people and not form.columns:
        form = form._replace(columns=_columns(wanted["where"]))

    async def found(client: Client) -> tuple[int, Sequence[Row]]:
        total, page = await client.pages(chosen(**wanted), offset, limit)
        listed: list[Row] = [dict(zip(_KEYS, row, strict=True)) for row in page]
        return total, await form.fill(client, listed)

    total, shown = ask(found)
    if form.is_json:
        output.as_json({"total": total, "objects": shown})
    elif shown:
        form.print(shown)
    elif form.is_for_people:
        past = f"{total:,} such objects, and none of them is on this page"
        output.note(f"there are {past}" if total else "nothing to list")
        if not total:
            tell_unmet(wanted["where"])
    if not total:
        tell_unknown(fields_of(wanted["where"]))
    more = total - offset - len(shown)
    if form.is_for_people and shown and more:
        rows.tell_more(f"{more:,}", offset + len(shown))


def _columns(where: str) -> tuple[str, ...]:
    """Return the columns of a list: the names of objects, and the fields in the conditions."""
    return tuple(dict.fromkeys((*_KEYS[1:], *fields_of(where))))
