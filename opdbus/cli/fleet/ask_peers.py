"""Commands that hold hosts against each other: compare, odd and missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from opdbus.cli import output
from opdbus.cli.fleet import fleet, run_with_database
from opdbus.cli.fleet.ask_fleet import print_plain, scope_of
from opdbus.cli.fleet.fleet_printer import (
    describe_pair,
    describe_values,
    host_option,
    print_below,
    print_head,
    tag_option,
)
from opdbus.cli.root import COUNT, as_json

if TYPE_CHECKING:
    import asyncpg

    from opdbus.fleet.questions.fleet_comparison import ComparisonAnswer, Difference
    from opdbus.fleet.questions.peers import Oddity

# Objects of a kind, and fields of an object, that are printed.
_MOST: Final = 10
_MOST_FIELDS: Final = 3


@fleet.command(name="compare")
@click.argument("first", metavar="HOST")
@click.argument("second", metavar="OTHER")
@click.option("--kind", "kinds", metavar="NAME", multiple=True, help="Only this kind or plugin.")
@click.option("-n", "--limit", type=COUNT, default=_MOST, help=f"Objects of a kind. [{_MOST}]")
@as_json
@click.pass_context
def compare_two(
    context: click.Context,
    first: str,
    second: str,
    kinds: tuple[str, ...],
    limit: int,
    json_: bool,
) -> None:
    """Compare two hosts: objects that one has, and fields in which they differ.

    What differs between any two hosts does not count: addresses, serial numbers, ids, times. What
    nearly all other hosts have as one of the two comes first; then objects that differ, before
    those of one host; then what differs in a state or a version. The kind of the first object comes
    first. Each kind has N objects and each object 3 fields; --json has all.
    """

    async def ask(connection: asyncpg.Connection) -> ComparisonAnswer:
        from opdbus.fleet.questions import fleet_comparison

        return await fleet_comparison.compare(connection, first, second, kinds)

    answer = run_with_database(context, ask)
    if json_:
        print_plain(answer)
        return
    names = [answer.first, answer.second]
    print_head(answer.hosts)
    print(f"{answer.equal:,} objects are equal, {answer.identities:,} differ in identities only")
    for group in answer.kinds:
        counts = group.counts
        said = (
            f"{counts['both']:,} differ" if counts["both"] else "",
            f"{counts['first']:,} only on {names[0]}" if counts["first"] else "",
            f"{counts['second']:,} only on {names[1]}" if counts["second"] else "",
        )
        title = f"{group.plugin}/{group.kind}: {', '.join(filter(None, said))}"
        print("\n" + output.add_style(output.escape_hidden(title), "bold"))
        for each in group.differences[:limit]:
            print_below([_describe_difference(each, names)], 4)
            print_below([describe_pair(field) for field in each.fields[:_MOST_FIELDS]], 6)
            if len(each.fields) > _MOST_FIELDS:
                print_below([f"and {len(each.fields) - _MOST_FIELDS:,} more fields"], 6)
        if len(group.differences) > limit:
            print_below([f"and {len(group.differences) - limit:,} more: -n N gives more"], 4)
    if not answer.kinds:
        print("they do not differ")


def _describe_difference(each: Difference, names: list[str]) -> str:
    if each.where == "both":
        return f"{each.object_id.name}{f' / {each.other}' if each.other else ''}"
    return f"{each.object_id.name} (only on {names[each.where == 'second']})"


@fleet.command()
@click.option("-n", "--limit", type=COUNT, default=_MOST, help=f"How many hosts. [{_MOST}]")
@host_option
@tag_option
@as_json
@click.pass_context
def odd(
    context: click.Context,
    limit: int,
    hosts: tuple[str, ...],
    tags: tuple[str, ...],
    json_: bool,
) -> None:
    """Rank hosts by how unlike their peers they are, with the objects that make them so.

    Peers are the hosts with --tag, or all. The score is in bits: the rarer what a host has, or
    lacks where most agree, the higher. Hosts that stand out are marked.
    """

    async def ask(connection: asyncpg.Connection) -> Any:
        from opdbus.fleet.questions import peers

        return await peers.find_odd(connection, scope_of(hosts, tags), limit)

    answer = run_with_database(context, ask)
    if json_:
        print_plain(answer)
        return
    print_head(answer.hosts)
    count = answer.standing_out
    said = "no host stands" if not count else "1 host stands" if count == 1 else f"{count:,} stand"
    print(f"{said} out; the median host has {answer.usual:.0f} bits")
    for each in answer.odd:
        mark = " (stands out)" if each.stands_out else ""
        title = f"{each.name}: {each.score:.0f} bits, {len(each.oddities):,} objects{mark}"
        print("\n" + output.add_style(title, "bold"))
        print_below([_describe_oddity(one) for one in each.oddities[:_MOST]], 4)
        if len(each.oddities) > _MOST:
            print_below([f"and {len(each.oddities) - _MOST:,} more"], 4)


def _describe_oddity(each: Oddity) -> str:
    name = f"{each.object_id.kind} {each.object_id.name}"
    if each.what == "missing":
        return f"no {name}: {each.agreeing:,} of {each.total:,} have it"
    if each.what == "extra":
        return f"{name}: on {each.having:,} of {each.total:,}"
    fields = []
    for field in each.fields[:_MOST_FIELDS]:
        # the group of the host is the smaller one, and comes last
        usual, *own = field.values
        fields.append(
            f"{field.field} {describe_values(own[:1])}; the others {describe_values([usual])}"
        )
    said = "; ".join(fields) or "in what is not shown"
    return f"{name} is otherwise on {each.having:,} of {each.total:,}: {said}"


@fleet.command()
@click.argument("host", required=False, default="")
@click.option("-n", "--limit", type=COUNT, default=50, help="How many objects. [50]")
@host_option
@tag_option
@as_json
@click.pass_context
def missing(
    context: click.Context,
    host: str,
    limit: int,
    hosts: tuple[str, ...],
    tags: tuple[str, ...],
    json_: bool,
) -> None:
    """List what most hosts with --tag, or all, have and HOST, or any of them, lacks."""

    async def ask(connection: asyncpg.Connection) -> Any:
        from opdbus.fleet.questions import peers

        return await peers.find_missing(connection, scope_of(hosts, tags), host)

    answer = run_with_database(context, ask)
    if json_:
        print_plain(answer)
        return
    print_head(answer.hosts)
    for each in answer.missing[:limit]:
        output.print_paragraph(output.escape_hidden(f"{'/'.join(each.object_id)} {each.where}"))
    if not answer.missing:
        print("nothing that most hosts have is missing")
    elif len(answer.missing) > limit:
        output.print_note(f"... {len(answer.missing) - limit:,} more: -n N gives more")
