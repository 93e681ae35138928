"""Answers over all hosts, printed: the hosts' ages first, then one line or block for each part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from opdbus.cli import output
from opdbus.cli.output import format_json
from opdbus.platform import name_lists

if TYPE_CHECKING:
    from opdbus.fleet.questions.fleet_comparison import FieldPair
    from opdbus.fleet.questions.fleet_scope import Hosts
    from opdbus.fleet.questions.where_found import DifferingField, ValueOn

MOST_NAMED: Final = 5

host_option = click.option(
    "--host", "hosts", metavar="NAME", multiple=True, help="Only hosts of this name, with * too."
)
tag_option = click.option(
    "--tag", "tags", metavar="TAG", multiple=True, help="Only hosts with this tag."
)


def print_head(hosts: Hosts, *more: str) -> None:
    """Print how many hosts were asked, how old their parts are, and what is wrong with them."""
    print(output.add_style(output.escape_hidden(hosts.headline), "bold"))
    print_remarks([*hosts.remarks, *more])


def print_remarks(remarks: Sequence[str]) -> None:
    """Print what an answer lacks, on standard error."""
    for each in filter(None, remarks):
        output.print_note(each)


def print_below(lines: Sequence[str], indent: int = 2) -> None:
    """Print lines below another one."""
    for line in lines:
        output.print_labelled(" " * (indent - 2), indent - 2, line)


def describe_field(each: DifferingField) -> str:
    """Return a field in which hosts differ: `version: 9.9 on 39 hosts; 9.2 on web7`."""
    values = [_describe_value(value) for value in each.values]
    more = each.distinct - len(values)
    return f"{each.field}: {'; '.join(values)}{f'; and {more:,} other values' if more else ''}"


def _describe_value(each: ValueOn) -> str:
    value = format_json(each.value) if each.value else "not there"
    if len(each.hosts) > MOST_NAMED:
        return f"{value or '(empty)'} on {len(each.hosts):,} hosts"
    return f"{value or '(empty)'} on {', '.join(each.hosts)}"


def describe_values(values: Sequence[ValueOn]) -> str:
    """Return values with their hosts; one value alone without them."""
    if len(values) == 1:
        return format_json(values[0].value) if values[0].value else "nothing"
    return "; ".join(map(_describe_value, values))


def describe_pair(each: FieldPair) -> str:
    """Return a field with its two values, cut where they differ."""
    sides = [format_json(text) if text else "not there" for text in each[1:]]
    first, second = name_lists.show_difference(sides[0], sides[1], 60)
    return f"{each.field}: {first} / {second}"
