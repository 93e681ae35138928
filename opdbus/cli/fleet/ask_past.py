"""Commands about changes and drift on all hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from opdbus.cli import output
from opdbus.cli.find_objects import NO_HITS
from opdbus.cli.fleet import fleet, run_with_database
from opdbus.cli.fleet.ask_fleet import print_plain, scope_of
from opdbus.cli.fleet.fleet_printer import (
    describe_values,
    host_option,
    print_below,
    print_head,
    tag_option,
)
from opdbus.cli.root import COUNT, as_json, load_settings
from opdbus.cli.root import kind as kind_option
from opdbus.cli.root import plugin as plugin_option
from opdbus.cli.show_history import parse_time
from opdbus.config import SEVERITIES
from opdbus.errors import InvalidArgs
from opdbus.wording.change_words import format_stamp

if TYPE_CHECKING:
    import asyncpg

    from opdbus.fleet.questions.fleet_changes import ChangeGroup, ChangesAnswer

_MOST: Final = 50
_STAMP: Final = 15


@fleet.command()
@click.option("--about", metavar="QUESTION", default="", help="Only what answers QUESTION.")
@click.option("--since", metavar="TIME", help="From then on: yesterday, -2h, 03:10.")
@click.option("--before", metavar="TIME", help="Before then.")
@plugin_option
@kind_option
@click.option("-n", "--limit", type=COUNT, default=_MOST, help=f"How many lines. [{_MOST}]")
@host_option
@tag_option
@as_json
@click.pass_context
def changes(
    context: click.Context,
    about: str,
    since: str | None,
    before: str | None,
    plugin: str | None,
    kind: str | None,
    limit: int,
    hosts: tuple[str, ...],
    tags: tuple[str, ...],
    json_: bool,
) -> int:
    """Tell what changed on all hosts; the same change on many hosts is one line.

    TIME is as of `op-dbus changes`. Times are those of the hosts' clocks. The exit code is 12 if no
    change answers --about.
    """
    first, last = parse_time(since), parse_time(before, may_come=True)
    if last and last < first:
        raise InvalidArgs(f"--before {before} is earlier than --since {since}")

    async def ask(connection: asyncpg.Connection) -> ChangesAnswer:
        from opdbus.fleet.questions import fleet_changes
        from opdbus.fleet.questions.question_vectors import QuestionVectors

        vectors = QuestionVectors(load_settings(context.obj))
        try:
            return await fleet_changes.find_changes(
                connection,
                about=about,
                between=fleet_changes.Between(first, last),
                scope=scope_of(hosts, tags),
                plugin=plugin or "",
                kind=kind or "",
                limit=limit,
                embed=vectors.embed if about else None,
            )
        finally:
            await vectors.close()

    answer = run_with_database(context, ask)
    if json_:
        print_plain(answer)
    else:
        _print_changes(answer)
    return 0 if answer.changes or not about else NO_HITS


def _print_changes(answer: ChangesAnswer) -> None:
    cut = "older changes were not read: --since and --before say which" if answer.is_cut else ""
    print_head(answer.hosts, cut)
    if answer.listed:
        names = ", ".join(answer.listed_on[:3]) if len(answer.listed_on) <= 3 else ""
        where = names or f"{len(answer.listed_on):,} hosts"
        print(f"first listing of {answer.listed:,} objects on {where}")
    for each in answer.changes:
        label = f"{format_stamp(each.last):{_STAMP}}"
        output.print_labelled(label, _STAMP, _describe_change(each))
    if not answer.changes:
        output.print_note(
            "no change answers this" if answer.asked.words else "nothing is known to have changed"
        )
    elif answer.total > len(answer.changes):
        more = answer.total - len(answer.changes)
        output.print_note(f"... {more:,} more: --limit N gives more")


def _describe_change(each: ChangeGroup) -> str:
    since = f" since {format_stamp(each.first)}" if each.count > 1 else ""
    times = f", {each.count:,} times{since}" if each.count > len(each.where.on) else since
    # the words of one row say it themselves
    by = f" by {', '.join(each.by[:3])}" if each.by and each.count > 1 else ""
    return f"{each.words}{by} {each.where}{times}"


@fleet.command()
@click.option(
    "--severity", type=click.Choice(SEVERITIES), default="info", help="Only what is so bad. [info]"
)
@plugin_option
@kind_option
@click.option("-n", "--limit", type=COUNT, default=_MOST, help=f"How many objects. [{_MOST}]")
@host_option
@tag_option
@as_json
@click.pass_context
def drift(
    context: click.Context,
    severity: str,
    plugin: str | None,
    kind: str | None,
    limit: int,
    hosts: tuple[str, ...],
    tags: tuple[str, ...],
    json_: bool,
) -> None:
    """List what is not as declared on all hosts, by object and fields, the worst first."""

    async def ask(connection: asyncpg.Connection) -> Any:
        from opdbus.fleet.questions import fleet_drift

        return await fleet_drift.find_drift(
            connection,
            severity=severity,
            scope=scope_of(hosts, tags),
            plugin=plugin or "",
            kind=kind or "",
        )

    answer = run_with_database(context, ask)
    if json_:
        print_plain(answer)
        return
    print_head(answer.hosts)
    for each in answer.drift[:limit]:
        title = f"{each.severity}  {'/'.join(each.object_id)} ({each.what}) {each.where}"
        output.print_paragraph(output.escape_hidden(title))
        print_below(
            [
                f"{field.field}: {describe_values(field.observed)}, declared"
                f" {describe_values(field.declared)}"
                for field in each.fields
            ],
            4,
        )
    if not answer.drift:
        print("no host drifted")
    elif len(answer.drift) > limit:
        output.print_note(f"... {len(answer.drift) - limit:,} more: -n N gives more")
