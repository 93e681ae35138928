"""Commands for changes of the host and past states of objects."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import click

from opdbus.cli import completing, output
from opdbus.cli.change_printer import ChangePrinter, print_lines
from opdbus.cli.daemon_calls import (
    ask,
    describe_storage_error,
    fields_of,
    find_unknown,
    path_of,
    without_empty,
)
from opdbus.cli.find_objects import NO_HITS
from opdbus.cli.root import COUNT, COUNT_OR_ZERO, as_json, kind, plugin, root, where_option
from opdbus.errors import BusError, InvalidArgs, NotKept, ShuttingDown, UnknownObject
from opdbus.platform import timestamps
from opdbus.settings.parsing import decimal

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from opdbus.client import Client

_MOST: Final = 1000
# limit for a first listing, which is one line
_MOST_LISTED: Final = 50_000
# changes printed before those that are waited for, as in journalctl
_MOST_BEFORE_WATCHING: Final = 10
# The best answers come first, so few are needed.
_MOST_ANSWERS: Final = 10
_BEFORE_THIS: Final = "what may have led to this, the likeliest first:"
_NOTHING_LIKE: Final = "nothing like it is known to have happened"
_LIKE_THIS: Final = "what was like this, the most alike first, and what followed within 10 minutes:"


def _parse_meaning(about: str | None, before: str | None, like: str | None) -> dict[str, str]:
    """Return the semantic query of the options, empty if there is none; raises InvalidArgs.

    It is a question `about` a topic, a `before_event` in words, or a change that others are `like`.
    """
    event = before if before and timestamps.is_event(before) else None
    given = {"--about": about, "--before EVENT": event, "--like": like}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidArgs(f"{' and '.join(named)} ask for different things: give one of them")
    values = without_empty(about=about, before_event=event, like=like)
    if named and not any(value.strip() for value in values.values()):
        raise InvalidArgs(f"{named[0]} needs words")
    return values


async def _print_by_meaning(
    client: Client, query: dict[str, str], asked: dict[str, Any], limit: int, printer: ChangePrinter
) -> int:
    """Print the best answers first, below the change that they are compared with.

    Return the exit code: NO_HITS if no change answers.
    """
    like, nothing = {}, "no change answers this"
    if "like" in query:
        like, nothing = await _parse_like(client, query["like"]), _NOTHING_LIKE
        near = await client.nearest({**asked, **like}, limit)
        rows = [{**row, "followed": after} for row, after in near]
    else:
        try:
            rows = await client.changes_by_meaning({**asked, **query}, limit)
        except NotKept as error:  # the event never happened, which is an answer
            rows, nothing = [], str(error)
    if not rows:
        await _require_fields(client, asked)
        # the change that others are compared with, if it is one
        same = {"after": like["seq"] - 1, "below": like["seq"] + 1} if "seq" in like else dict(like)
        if not printer.is_json and same.keys() & {"below", "object"}:
            for row in await client.changes(same, 1):
                print_lines([row], f" [row {row['seq']}]")
        output.print_note(nothing)
    elif printer.is_json:
        printer.print(rows)
    else:
        if note := rows[0].get("note"):
            print(output.add_style(output.escape_hidden(note), "bold"))
        compared = rows[0].get("event", 0)
        if compared:
            event = await client.change(compared)
            print_lines([event] if event else [], f" [row {compared}]")
            print(output.add_style(_LIKE_THIS if like else _BEFORE_THIS, "bold"))
        _print_with_followers(rows, {compared})
        if (more := rows[0].get("total", 0) - len(rows)) > 0:
            output.print_note(f"... {more:,} more: --limit N gives more")
    return 0 if rows else NO_HITS


async def _require_fields(client: Client, asked: dict[str, Any]) -> None:
    """Raise InvalidArgs if conditions name a field that neither an object nor a change has."""
    where = asked.get("where", "")
    known = [path for path, _ in await client.fields({})] if where else ()
    for field, advice in find_unknown(fields_of(where), known):
        if not await client.changes({"where": f'{field}~""'}, 1):
            raise InvalidArgs(f"no row of history has a field {field}{advice}")


def _print_with_followers(rows: Sequence[dict[str, Any]], printed: set[int]) -> None:
    """Print changes, and below each what followed; rows in `printed` are omitted."""
    for row in rows:
        if row["seq"] in printed:
            continue
        # how often a change happened, and other objects with a similar change
        times = f" [one of {row['count']:,} such changes]" if row["count"] > 1 else ""
        others = f" [and {row['others']:,} others likewise]" if row.get("others") else ""
        print_lines([row], times + others)
        printed.add(row["seq"])
        new = [each for each in row.get("followed", ()) if each["seq"] not in printed]
        print_lines(new, after=row["at"])
        printed |= {each["seq"] for each in new}


async def _parse_like(client: Client, said: str) -> dict[str, Any]:
    """Parse the reference of --like: a row number, an object's name, or words."""
    if (number := decimal(said)) is not None:
        return {"seq": number}
    try:
        return {"object": await path_of(client, said, past=True)}
    except (InvalidArgs, UnknownObject):
        if " " not in said.strip():
            raise
    return {"about": said}


@root.command()
@click.option("--since", metavar="TIME", help="From then on: yesterday, -2h, 03:10, boot.")
@click.option(
    "--before",
    metavar="TIME|EVENT",
    help="Before then, or what may have led to an EVENT, such as 'nginx failed'.",
)
@click.option("--until", metavar="TIME", help="With --before EVENT: the EVENT was before then.")
@click.option("--within", metavar="SPAN", help="So long before --before, else after --since: 30m.")
@click.option(
    "--by", type=click.Choice(["cause"]), metavar="cause", help="Put together what has one cause."
)
@click.option(
    "--about", metavar="QUESTION", help="What answers it, best first: 'name resolution', 'crashes'."
)
@click.option(
    "--like",
    metavar="ROW|OBJECT|WORDS",
    help="Has it happened before? What was like it, and what followed.",
)
@click.option(
    "--around",
    metavar="OBJECT",
    help="Only of OBJECT and what is connected with it.",
    shell_complete=completing.complete_objects,
)
@plugin
@kind
@where_option("Only where such a field changed: state=failed, after.version~2.1.")
@click.option("--cause", metavar="TEXT", help="Only of causes that begin so: job:4711, apt, boot.")
@click.option("--what", metavar="WORD", help="Only appeared, changed, gone, event, drift...")
@click.option(
    "-n", "--limit", type=COUNT_OR_ZERO, metavar="N", help=f"How many, of the newest. [{_MOST}]"
)
@click.option("--watch", is_flag=True, help="Go on with what changes from now on.")
@click.option("--json", "json_", is_flag=True, help="Print JSON, one object a line.")
def changes(
    limit: int | None,
    by: str | None,
    about: str | None,
    like: str | None,
    around: str | None,
    watch: bool,
    json_: bool,
    **given: Any,
) -> int:
    """Tell what changed on this host, the newest last.

    Many alike changes of one cause are one line; --json tells each. TIME is yesterday, today, now,
    boot, 2 hours ago, 03:10, 2026-11-22 or 2026-11-22 03:10, or as systemctl and journalctl print
    it; SPAN is 30m, 2 hours or 1d. As in systemd.time(7), 1m is a minute and 1M a month. The exit
    code is 12 if no change answers --about, --before EVENT or --like.
    """
    if watch and (by or given["before"]):
        raise InvalidArgs("--watch goes on with what is new: without --by and --before")
    by_meaning = _parse_meaning(about, given["before"], like)
    if by_meaning and (watch or by):
        raise InvalidArgs("what is found by its meaning is neither watched nor put together")
    times = _time_limits(*(given.pop(key) for key in ("since", "before", "within", "until")))
    asked = without_empty(**given, **times)
    is_narrow = bool(given["where"] or around)
    printer = ChangePrinter(is_json=json_, is_by_cause=bool(by), is_narrow=is_narrow)

    async def print_changes(client: Client) -> int:
        if fault := describe_storage_error(await client.storage_error()):
            output.print_note(f"op-dbus: {fault}")
        if around:
            asked["around"] = await path_of(client, around, past=True)
        usual = _MOST_ANSWERS if by_meaning else _MOST_BEFORE_WATCHING if watch else _MOST
        most = usual if limit is None else limit
        if by_meaning:
            return await _print_by_meaning(client, by_meaning, asked, most, printer)
        if watch:
            await _watch(client, asked, most, printer)
        else:
            await _print_newest(client, asked, most, printer)
        return 0

    return ask(print_changes)


class Objects(click.Group):
    """A group whose first word may be an object, which then goes to `show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Prefix arguments that begin with no subcommand by `show`."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the subcommands, and the objects whose names begin with the text."""
        names = completing.complete_objects(ctx, None, incomplete) if incomplete else []
        return [*super().shell_complete(ctx, incomplete), *names]


@root.group(cls=Objects)
def history() -> None:
    """Tell what happened to an object; prove or forget history.

    `op-dbus history OBJECT` is short for `op-dbus history show OBJECT`, which an object with the
    name of a command needs.
    """


@history.command(name="show")
@click.argument("object", shell_complete=completing.complete_objects)
@click.option("--at", metavar="TIME", help="Show OBJECT as it was then.")
@click.option(
    "-n", "--limit", type=COUNT, metavar="N", default=_MOST, help=f"How many changes. [{_MOST}]"
)
@as_json
def history_show(object: str, at: str | None, limit: int, json_: bool) -> None:
    """Tell what happened to OBJECT, or show it as it was.

    OBJECT is PLUGIN/KIND/NAME, a D-Bus path, or a short name; it may be gone. TIME is as of
    `op-dbus changes`.
    """
    if at is not None:
        _show_at(object, parse_time(at), json_=json_)
        return
    printer = ChangePrinter(is_json=json_, is_narrow=True)

    async def print_changes(client: Client) -> None:
        path = await path_of(client, object, past=True)
        await _print_newest(client, {"object": path}, limit, printer)

    ask(print_changes)


def _show_at(name: str, moment: int, *, json_: bool) -> None:
    """Show an object as it was at a moment, in microseconds since 1970."""

    async def found(client: Client) -> dict[str, Any]:
        return await client.object_at(await path_of(client, name, past=True), moment)

    values = ask(found)
    if json_:
        output.print_json({"at": moment, **values})
        return
    whole = "/".join(values.pop(key) for key in ("plugin", "kind", "name"))
    sides = {
        side.capitalize(): output.join_lines(
            json.dumps(values[side], indent=2, ensure_ascii=False).split("\n")
        )
        for side in ("declared", "observed")
        if values[side] is not None
    }
    head = {"Object": whole, "At": output.format_time(moment / 1e6), "Source": values["source"]}
    output.print_pairs({**head, **sides})


async def _print_newest(
    client: Client, asked: dict[str, Any], limit: int, printer: ChangePrinter
) -> None:
    """Print the newest changes, the newest last, and whether there are more."""
    if not limit:
        raise InvalidArgs("-n 0 asks for no changes: give 1 or more, or --watch for those to come")
    rows, is_cut = await read_newest(client, asked, limit, is_whole=not printer.is_json)
    printer.print(rows[::-1], is_cut=is_cut)
    if not rows:
        await _require_fields(client, asked)
        output.print_note("nothing is known to have changed")
    elif is_cut:
        those = f"newest {len(rows):,} changes" if len(rows) > 1 else "newest change"
        output.print_note(f"the {those}: -n N gives more")


async def read_newest(
    client: Client, asked: dict[str, Any], limit: int, *, is_whole: bool
) -> tuple[list[dict[str, Any]], bool]:
    """Return the newest changes, and whether there are more.

    With `is_whole`, a first listing is not cut, because it is printed as one line.
    """
    rows = await client.changes(asked, limit + 1)
    more = rows[limit:]
    if not more or not (is_whole and _are_first_listing(rows[limit - 1 :])):
        return rows[:limit], bool(more)
    while more and _are_first_listing(more) and len(rows) < _MOST_LISTED:
        more = await client.changes({**asked, "below": rows[-1]["seq"]}, _MOST)
        rows += more
    later = (n for n in range(limit, len(rows)) if not _are_first_listing(rows[n : n + 1]))
    return rows[: next(later, len(rows))], bool(more)


def _are_first_listing(rows: Sequence[dict[str, Any]]) -> bool:
    return all(row["cause"] == "first" for row in rows)


async def _watch(client: Client, asked: dict[str, Any], limit: int, printer: ChangePrinter) -> None:
    """Print the last changes and then each new one; continue after a restart of op-dbus."""
    last = await client.last_row()
    printer.print((await client.changes({**asked, "below": last + 1}, limit))[::-1])
    async with aclosing(client.new_rows()) as recorded:
        async for _ in recorded:
            try:
                # a call would start a service that was stopped
                if await client.is_served():
                    last = await _print_new(client, asked, last, printer)
            except (BusError, ShuttingDown):
                continue


async def _print_new(
    client: Client, asked: dict[str, Any], last: int, printer: ChangePrinter
) -> int:
    """Print the rows after `last`, and return the number of the newest row."""
    newest = await client.last_row()
    if newest < last:
        output.print_note("history began anew")
        last = 0
    new = {**asked, "after": last, "below": newest + 1, "order": "oldest"}
    printer.print(await client.changes(new, newest - last))
    return newest


def _time_limits(
    since: str | None, before: str | None, within: str | None, until: str | None
) -> dict[str, int]:
    """Return the limits of History1.Changes in microseconds since 1970; raises InvalidArgs."""
    if before and timestamps.is_event(before):
        first, last = parse_time(since), parse_time(until, may_come=True)
        return {"since": first, "before": last, "within": timestamps.span(within) if within else 0}
    if until:
        raise InvalidArgs("--until goes with --before EVENT: of a time --before is enough")
    first, last = parse_time(since), parse_time(before, may_come=True)
    if before and since and last < first:
        raise InvalidArgs(f"--before {before} is earlier than --since {since}")
    if within and since and not before:
        last = first + timestamps.span(within)
    elif within:
        # if both limits are given, the later one holds
        first = max(first, (last or int(time.time() * 1e6)) - timestamps.span(within))
    return {"since": first, "before": last}


def parse_time(text: str | None, *, may_come: bool = False) -> int:
    """Return a time in microseconds since 1970, 0 if none is given; raises InvalidArgs.

    A future time is refused unless `may_come`.
    """
    if text is None:
        return 0
    found = timestamps.moment_here(text)
    # `now` itself is rounded to a microsecond
    if found > time.time() * 1e6 + 1 and not may_come:
        raise InvalidArgs(f"{text} is yet to come: give a time that is past")
    return found
