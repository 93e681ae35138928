"""Commands for changes of the host and past states of objects."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import click

from opdbus.cli import completing, meaning, output
from opdbus.cli.asking import ask, chosen, path_of
from opdbus.cli.printing import Printer
from opdbus.cli.root import as_json, count, count_or_none, kind, plugin, root, where_of
from opdbus.errors import BusError, InvalidArgs, ShuttingDown
from opdbus.platform import timestamps

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from opdbus.client import Client

_MOST: Final = 1000
# limit for a first listing, which is one line
_MOST_LISTED: Final = 50_000
# changes printed before those that are waited for, as in journalctl
_MOST_BEFORE_WATCHING: Final = 10
as_lines = click.option("--json", "json_", is_flag=True, help="Print JSON, one object a line.")


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
    shell_complete=completing.objects,
)
@plugin
@kind
@where_of("Only where such a field changed: state=failed, after.version~2.1.")
@click.option("--cause", metavar="TEXT", help="Only of causes that begin so: job:4711, apt, boot.")
@click.option("--what", metavar="WORD", help="Only appeared, changed, gone, event, drift...")
@click.option(
    "-n", "--limit", type=count_or_none, metavar="N", help=f"How many, of the newest. [{_MOST}]"
)
@click.option("--watch", is_flag=True, help="Go on with what changes from now on.")
@as_lines
def changes(
    limit: int | None,
    by: str | None,
    about: str | None,
    like: str | None,
    around: str | None,
    watch: bool,  # noqa: FBT001 -- click passes flags so
    json_: bool,  # noqa: FBT001 -- click passes flags so
    **given: Any,  # noqa: ANN401 -- click's values
) -> None:
    """Tell what changed on this host, the newest last.

    Many alike changes of one cause are one line; --json tells each. TIME is yesterday, today, now,
    boot, 2 hours ago, 03:10, 2026-11-22 or 2026-11-22 03:10, or as systemctl and journalctl print
    it; SPAN is 30m, 2 hours or 1d. As in systemd.time(7), 1m is a minute and 1M a month.
    """
    if watch and (by or given["before"]):
        raise InvalidArgs("--watch goes on with what is new: without --by and --before")
    by_meaning = meaning.read(about, given["before"], like)
    if by_meaning and (watch or by):
        raise InvalidArgs("what is found by its meaning is neither watched nor put together")
    times = _times(*(given.pop(key) for key in ("since", "before", "within", "until")))
    asked = chosen(**given, **times)
    printer = Printer(is_json=json_, is_by_cause=bool(by), is_narrow=bool(given["where"] or around))

    async def told(client: Client) -> None:
        if around:
            asked["around"] = await path_of(client, around, past=True)
        usual = meaning.MOST if by_meaning else _MOST_BEFORE_WATCHING if watch else _MOST
        most = usual if limit is None else limit
        if by_meaning:
            await meaning.tell(client, by_meaning, asked, most, printer)
        elif watch:
            await _watch(client, asked, most, printer)
        else:
            await _tell(client, asked, most, printer)

    ask(told)


class Objects(click.Group):
    """A group whose first word may be an object, which then goes to `show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Prefix arguments that begin with no subcommand by `show`."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the subcommands, and the objects whose names begin with the text."""
        names = completing.objects(ctx, None, incomplete) if incomplete else []
        return [*super().shell_complete(ctx, incomplete), *names]


@root.group(cls=Objects)
def history() -> None:
    """Tell what happened to an object; prove or forget history.

    `op-dbus history OBJECT` is short for `op-dbus history show OBJECT`, which an object with the
    name of a command needs.
    """


@history.command()
@click.argument("object", shell_complete=completing.objects)
@click.option("--at", metavar="TIME", help="Show OBJECT as it was then.")
@click.option(
    "-n", "--limit", type=count, metavar="N", default=_MOST, help=f"How many changes. [{_MOST}]"
)
@as_json
def show(object: str, at: str | None, limit: int, json_: bool) -> None:  # noqa: A002, FBT001
    """Tell what happened to OBJECT, or show it as it was.

    OBJECT is PLUGIN/KIND/NAME, a D-Bus path, or a short name; it may be gone. TIME is as of
    `op-dbus changes`.
    """
    if at is not None:
        _show_at(object, moment_of(at), json_=json_)
        return
    printer = Printer(is_json=json_, is_narrow=True)

    async def told(client: Client) -> None:
        path = await path_of(client, object, past=True)
        await _tell(client, {"object": path}, limit, printer)

    ask(told)


def _show_at(name: str, moment: int, *, json_: bool) -> None:
    """Show an object as it was at a moment, in microseconds since 1970."""

    async def found(client: Client) -> dict[str, Any]:
        return await client.object_at(await path_of(client, name, past=True), moment)

    values = ask(found)
    if json_:
        output.as_json({"at": moment, **values})
        return
    whole = "/".join(values.pop(key) for key in ("plugin", "kind", "name"))
    sides = {
        side.capitalize(): json.dumps(values[side], indent=2, ensure_ascii=False)
        for side in ("declared", "observed")
        if values[side] is not None
    }
    output.pairs(
        {"Object": whole, "At": output.moment(moment / 1e6), "Source": values["source"], **sides}
    )


async def _tell(client: Client, asked: dict[str, Any], limit: int, printer: Printer) -> None:
    if not limit:
        raise InvalidArgs("-n 0 asks for no changes: give 1 or more, or --watch for those to come")
    rows, is_cut = await newest(client, asked, limit, is_whole=not printer.is_json)
    printer.print(rows[::-1], is_cut=is_cut)
    if not rows:
        await meaning.require_fields(client, asked)
        output.note("nothing is known to have changed")
    elif is_cut:
        those = f"newest {len(rows):,} changes" if len(rows) > 1 else "newest change"
        output.note(f"the {those}: -n N gives more")


async def newest(
    client: Client, asked: dict[str, Any], limit: int, *, is_whole: bool
) -> tuple[list[dict[str, Any]], bool]:
    """Return the newest changes, and whether there are more.

    With `is_whole`, a first listing is not cut, because it is printed as one line.
    """
    rows = await client.changes(asked, limit + 1)
    more = rows[limit:]
    if not more or not (is_whole and _are_listed(rows[limit - 1 :])):
        return rows[:limit], bool(more)
    while more and _are_listed(more) and len(rows) < _MOST_LISTED:
        more = await client.changes({**asked, "below": rows[-1]["seq"]}, _MOST)
        rows += more
    later = (n for n in range(limit, len(rows)) if not _are_listed(rows[n : n + 1]))
    return rows[: next(later, len(rows))], bool(more)


def _are_listed(rows: Sequence[dict[str, Any]]) -> bool:
    return all(row["cause"] == "first" for row in rows)


async def _watch(client: Client, asked: dict[str, Any], limit: int, printer: Printer) -> None:
    """Print the last changes and then each new one; continue after a restart of op-dbus."""
    last = await client.last_row()
    printer.print((await client.changes({**asked, "below": last + 1}, limit))[::-1])
    async with aclosing(client.recorded()) as recorded:
        async for _ in recorded:
            try:
                # a call would start a service that was stopped
                if await client.is_served():
                    last = await _print_new(client, asked, last, printer)
            except (BusError, ShuttingDown):
                continue


async def _print_new(client: Client, asked: dict[str, Any], last: int, printer: Printer) -> int:
    """Print the rows after `last`, and return the number of the newest row."""
    newest = await client.last_row()
    if newest < last:
        output.note("history began anew")
        last = 0
    new = {**asked, "after": last, "below": newest + 1, "order": "oldest"}
    printer.print(await client.changes(new, newest - last))
    return newest


def _times(
    since: str | None, before: str | None, within: str | None, until: str | None
) -> dict[str, int]:
    if before and timestamps.is_event(before):
        first, last = moment_of(since), moment_of(until, may_come=True)
        return {"since": first, "before": last, "within": timestamps.span(within) if within else 0}
    if until:
        raise InvalidArgs("--until goes with --before EVENT: of a time --before is enough")
    first, last = moment_of(since), moment_of(before, may_come=True)
    if before and since and last < first:
        raise InvalidArgs(f"--before {before} is earlier than --since {since}")
    if within and since and not before:
        last = first + timestamps.span(within)
    elif within:
        # if both limits are given, the later one holds
        first = max(first, (last or _now()) - timestamps.span(within))
    return {"since": first, "before": last}


def moment_of(text: str | None, *, may_come: bool = False) -> int:
    """Return a time in microseconds since 1970, 0 if none is given; raises InvalidArgs.

    A future time is refused unless `may_come`.
    """
    if text is None:
        return 0
    now = time.time()
    found = timestamps.moment(text, now, now - time.clock_gettime(time.CLOCK_BOOTTIME))
    # `now` itself is rounded to a microsecond
    if found > now * 1e6 + 1 and not may_come:
        raise InvalidArgs(f"{text} is yet to come: give a time that is past")
    return found


def _now() -> int:
    return int(time.time() * 1e6)
