"""Commands that find objects on all hosts: search, show and which-hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opdbus.cli import output
from opdbus.cli.find_objects import NO_HITS, limit_option, offset_option, where_filter
from opdbus.cli.fleet import fleet, run_with_database
from opdbus.cli.fleet.fleet_printer import (
    describe_field,
    host_option,
    print_below,
    print_head,
    print_remarks,
    tag_option,
)
from opdbus.cli.output import format_json
from opdbus.cli.root import as_json, load_settings
from opdbus.cli.show_history import parse_time
from opdbus.errors import InvalidArgs
from opdbus.platform import name_lists

if TYPE_CHECKING:
    import asyncpg

    from opdbus.fleet.questions.fleet_scope import Scope
    from opdbus.fleet.questions.fleet_search import SearchAnswer
    from opdbus.fleet.questions.one_object import ObjectAnswer
    from opdbus.fleet.questions.past_search import PastAnswer

_MOST_STATES = 5


@fleet.command()
@click.argument("question", nargs=-1, required=True)
@limit_option
@offset_option
@where_filter
@click.option("--at", metavar="TIME", help="Search in what was at TIME, such as yesterday.")
@host_option
@tag_option
@as_json
@click.pass_context
def search(
    context: click.Context,
    question: tuple[str, ...],
    limit: int,
    offset: int,
    where: str,
    at: str | None,
    hosts: tuple[str, ...],
    tags: tuple[str, ...],
    json_: bool,
) -> int:
    """Find objects on all hosts: in words, by conditions, or both.

    QUESTION may have conditions, such as state:failed or size>5, and host:NAME and tag:TAG, whose
    names may have *. Each object is one hit, with the hosts that have it and the values in which
    they differ. The exit code is 12 if nothing fits.
    """
    from opdbus.state.conditions import parse

    text, met = " ".join(question), parse(where)
    if not text.strip() and not met:
        raise InvalidArgs("the question is empty: ask in words, or by conditions")
    if at is not None:
        return _search_past(context, text, parse_time(at), where, (hosts, tags), limit, json_=json_)

    async def ask(connection: asyncpg.Connection) -> SearchAnswer:
        from opdbus.fleet.questions import fleet_search
        from opdbus.fleet.questions.question_vectors import QuestionVectors

        vectors = QuestionVectors(load_settings(context.obj))
        try:
            return await fleet_search.search(
                connection,
                text,
                embed=vectors.embed,
                where=met,
                scope=scope_of(hosts, tags),
                limit=limit,
                offset=offset,
            )
        finally:
            await vectors.close()

    answer = run_with_database(context, ask)
    if json_:
        print_plain(answer)
    else:
        _print_hits(answer, offset)
    return 0 if answer.hits else NO_HITS


def scope_of(hosts: tuple[str, ...], tags: tuple[str, ...]) -> Scope:
    """Return the hosts that options name."""
    from opdbus.fleet.questions.fleet_scope import Scope

    return Scope(hosts, tags)


def print_plain(answer: Any) -> None:
    """Print an answer as JSON."""
    from opdbus.fleet.questions.plain_values import plain

    output.print_json(plain(answer))


def _print_hits(answer: SearchAnswer, offset: int) -> None:
    print_head(answer.hosts, *answer.notes)
    print_remarks([f"{asked} was looked for as {meant}" for asked, meant in answer.corrected])
    if answer.verdict:
        output.print_labelled("", 0, answer.verdict)
    for hit in answer.hits:
        alike = hit.found.alike - 1
        name = "/".join(hit.found.object_id) + (f" and {alike:,} alike" if alike else "")
        score = f"{hit.confidence:.3f}"
        output.print_labelled(score, len(score), name, "bold")
        several = len(hit.found.texts) > 1
        print_below([str(hit.found.where)], 4)
        for each in hit.found.texts[:_MOST_STATES]:
            line = each.text.partition("\n")[0]
            print_below([f"{line} ({each.where})" if several else line], 4)
        print_below([describe_field(each) for each in hit.found.differing], 4)
    more = answer.total - offset - len(answer.hits)
    if not answer.hits:
        output.print_note("nothing fits on these hosts")
    elif more > 0:
        output.print_note(f"... {more:,} more: --limit N gives more")


def _search_past(
    context: click.Context,
    question: str,
    at: int,
    where: str,
    named: tuple[tuple[str, ...], tuple[str, ...]],
    limit: int,
    *,
    json_: bool,
) -> int:
    from opdbus.state.conditions import parse

    async def ask(connection: asyncpg.Connection) -> PastAnswer:
        from opdbus.fleet.questions import past_search

        return await past_search.search_past(
            connection, question, at, where=parse(where), scope=scope_of(*named), limit=limit
        )

    answer = run_with_database(context, ask)
    if json_:
        print_plain(answer)
    else:
        print_head(answer.hosts, *_describe_past(answer.not_reaching))
        print(f"at {output.format_time(at / 1e6)}: {answer.total:,} objects")
        for hit in answer.hits:
            print(output.add_style(output.escape_hidden("/".join(hit.object_id)), "bold"))
            print_below([str(hit.where), hit.text.partition("\n")[0]], 4)
        if answer.unknown:
            output.print_note(f"{answer.unknown:,} objects have changes whose values are not kept")
    return 0 if answer.hits else NO_HITS


def _describe_past(not_reaching: tuple[str, ...]) -> list[str]:
    names = name_lists.join_first(not_reaching, _MOST_STATES)
    return [f"the history of {names} does not go back so far, or is not all sent"] if names else []


@fleet.command()
@click.argument("object")
@click.option("--at", metavar="TIME", help="Show OBJECT as it was at TIME.")
@host_option
@tag_option
@as_json
@click.pass_context
def show(
    context: click.Context,
    object: str,
    at: str | None,
    hosts: tuple[str, ...],
    tags: tuple[str, ...],
    json_: bool,
) -> None:
    """Show OBJECT on all hosts: who has it, and where its fields differ.

    OBJECT is PLUGIN/KIND/NAME or a name, such as nginx.
    """

    async def ask(connection: asyncpg.Connection) -> ObjectAnswer:
        from opdbus.fleet.questions import one_object

        moment = parse_time(at) if at is not None else 0
        return await one_object.show(connection, object, scope=scope_of(hosts, tags), at=moment)

    answer = run_with_database(context, ask)
    if json_:
        print_plain(answer)
        return
    from opdbus.fleet.questions.one_object import name_others

    unknown = name_lists.join_first(answer.unknown, _MOST_STATES)
    print_head(
        answer.hosts,
        *_describe_past(answer.not_reaching),
        f"not known of {unknown}: values are not kept" if unknown else "",
        name_others(answer),
    )
    when = {"At": output.format_time(answer.at / 1e6)} if answer.at else {}
    head = {"Object": "/".join(answer.object_id), **when, "Where": str(answer.where)}
    output.print_pairs(head)
    if answer.differing:
        print(output.add_style("\nHosts differ in", "bold"))
        print_below([describe_field(each) for each in answer.differing], 4)
    for state in answer.states[:1]:
        title = "All have" if len(answer.states) == 1 else f"Most have ({len(state.hosts):,})"
        output.print_section(
            title,
            {
                key: format_json(output.json_text(value)) or "(empty)"
                for key, value in state.state.items()
            },
        )


@fleet.command(name="which-hosts")
@click.argument("condition", nargs=-1, required=True)
@host_option
@tag_option
@as_json
@click.pass_context
def which_hosts(
    context: click.Context,
    condition: tuple[str, ...],
    hosts: tuple[str, ...],
    tags: tuple[str, ...],
    json_: bool,
) -> int:
    """Name the hosts that meet each CONDITION, perhaps on different objects.

    CONDITION is [not] [KIND] [NAME] [where FIELD=VALUE, ...], such as 'package nginx', 'unit
    nginx.service where active_state=failed' or 'not unit fail2ban.service'; KIND NAME may also be
    PLUGIN/KIND/NAME, and NAME may have *. The exit code is 12 if no host meets all.
    """

    async def ask(connection: asyncpg.Connection) -> Any:
        from opdbus.fleet.questions import one_object

        return await one_object.which_hosts(connection, condition, scope_of(hosts, tags))

    answer = run_with_database(context, ask)
    if json_:
        print_plain(answer)
    else:
        print_head(answer.hosts)
        for test in answer.tests:
            print(f"{output.escape_hidden(test.text)}: {test.met}")
        print("\n".join(answer.met.on) if answer.met.on else "no host meets all")
    return 0 if answer.met.on else NO_HITS
