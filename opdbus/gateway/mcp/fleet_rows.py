"""Answers over all hosts as rows: an object, a change or a host in a line, and the same as data."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from opdbus.fleet.host_overview import HostOverview
from opdbus.fleet.questions.fleet_changes import ChangeGroup
from opdbus.fleet.questions.fleet_comparison import ComparisonAnswer, Difference, FieldPair
from opdbus.fleet.questions.fleet_drift import DriftGroup
from opdbus.fleet.questions.fleet_scope import Hosts, short_age
from opdbus.fleet.questions.one_object import ObjectAnswer
from opdbus.fleet.questions.peers import OddHost, Oddity
from opdbus.fleet.questions.where_found import DifferingField, FoundObject, ValueOn
from opdbus.gateway.mcp.change_rows import format_time
from opdbus.gateway.mcp.tool_answers import Row, json_text, make_note, make_row
from opdbus.state.object import ObjectId

# Hosts, fields and states that a row names.
_MOST_NAMED: Final = 5
_MOST_FIELDS: Final = 5
_MOST_VALUES: Final = 4
# Objects that a row of an odd host names.
_MOST_OBJECTS: Final = 8


def describe_hosts(hosts: Hosts, *own: str, quoted: Iterable[str] = ()) -> str:
    """Return the note of an answer: how old the hosts' parts are, and what is wrong with them.

    Names of hosts are an administrator's; all else that hosts wrote is quoted.
    """
    said = "\n".join(filter(None, (hosts.headline, *hosts.remarks, *own)))
    return make_note(said, [*filter(None, quoted)])


def object_row(found: FoundObject, confidence: float) -> Row:
    """Return an object with the hosts that have it, and the values in which they differ.

    `confidence` is the probability that it is what was asked for.
    """
    name = "/".join(found.object_id)
    line = found.text.partition("\n")[0]
    fields = [describe_field(each) for each in found.differing[:_MOST_FIELDS]]
    alike = f" and {found.alike - 1:,} alike" if found.alike > 1 else ""
    return make_row(
        "; ".join([f"{confidence:.2f} {name}{alike} {found.where}: {line}", *fields]),
        object=name,
        score=round(confidence, 2),
        alike=found.alike if alike else None,
        where=str(found.where),
        summary=line,
        differing=fields,
    )


def where_row(object_id: ObjectId, where: str, text: str = "") -> Row:
    """Return an object with the hosts that have it, and perhaps its text."""
    name, line = "/".join(object_id), text.partition("\n")[0]
    said = f"{name} {where}: {line}" if line else f"{name} {where}"
    return make_row(said, object=name, where=where, summary=line)


def host_row(host: HostOverview) -> Row:
    """Return a host with its ages, and what is wrong with it."""
    now = time.time()
    ages = {
        "seen": "never" if host.seen_at is None else f"{short_age(now - host.seen_at)} ago",
        "state": "none" if host.current_at is None else f"{short_age(now - host.current_at)} old",
    }
    findings = [*(["silent"] if host.is_silent else []), *host.findings()]
    tags = f" ({', '.join(host.tags)})" if host.tags else ""
    said = (
        f"{host.name}{tags}: seen {ages['seen']}, state {ages['state']}, {host.objects:,} objects,"
        f" {host.drifted:,} drifted"
    )
    return make_row(
        "; ".join([said, *findings]),
        host=host.name,
        tags=list(host.tags),
        **ages,
        objects=host.objects,
        drifted=host.drifted,
        findings=findings,
        version=host.version,
    )


def change_group_row(group: ChangeGroup) -> Row:
    """Return a change, with where and when it happened."""
    last, first = format_time(group.last), format_time(group.first)
    times = f", {group.count:,} times" if group.count > len(group.where.on) else ""
    since = f"{times} since {first}" if first != last else times
    # the words of a single row have who made it
    by = f" by {', '.join(group.by[:_MOST_NAMED])}" if group.by and group.count > 1 else ""
    return make_row(
        f"{last} {group.words}{by} {group.where}{since}",
        object="/".join(group.object_id),
        change=group.words,
        where=str(group.where),
        first=first,
        last=last,
        count=group.count,
        what=group.what,
        by=[*group.by[:_MOST_NAMED]],
        causes=[*group.causes[:_MOST_NAMED]],
    )


def drift_group_row(group: DriftGroup) -> Row:
    """Return an object that is not as declared on some hosts."""
    name = "/".join(group.object_id)
    fields = [
        f"{each.field} declared {_values(each.declared)}, observed {_values(each.observed)}"
        for each in group.fields[:_MOST_FIELDS]
    ]
    return make_row(
        f"{group.severity} {name} {group.where}: {'; '.join(fields)}",
        object=name,
        severity=group.severity,
        where=str(group.where),
        since=format_time(group.first * 1_000_000) if group.first else "",
        fields=fields,
        **{"class": group.what},
    )


def difference_row(each: Difference, answer: ComparisonAnswer) -> Row:
    """Return an object in which two hosts differ."""
    name = "/".join(each.object_id)
    if each.where != "both":
        host = answer.first if each.where == "first" else answer.second
        return make_row(f"{name}: only on {host}", object=name, only_on=host)
    fields = [_pair(field) for field in each.fields[:_MOST_FIELDS]]
    more = len(each.fields) - len(fields)
    said = [*fields, *([f"and {more:,} more fields"] if more > 0 else [])]
    return make_row(f"{name}: {'; '.join(said)}", object=name, other=each.other, fields=said)


def odd_row(host: OddHost) -> Row:
    """Return a host with the objects that make it odd."""
    said = [_oddity(each) for each in host.oddities[:_MOST_OBJECTS]]
    more = len(host.oddities) - len(said)
    mark = " (stands out)" if host.stands_out else ""
    text = f"{host.name}{mark}: {host.score:.0f} bits, {len(host.oddities):,} objects: "
    return make_row(
        text + "; ".join([*said, *([f"and {more:,} more"] if more > 0 else [])]),
        host=host.name,
        bits=round(host.score, 1),
        stands_out=host.stands_out,
        counts=dict(host.counts),
        objects=said,
    )


def _oddity(each: Oddity) -> str:
    name = f"{each.object_id.kind} {each.object_id.name}"
    if each.what == "missing":
        return f"no {name}: {each.agreeing:,} of {each.total:,} have it"
    if each.what == "extra":
        return f"{name}: on {each.having:,} of {each.total:,}"
    fields = [describe_field(field) for field in each.fields[:_MOST_FIELDS]]
    return f"{name} is otherwise on {each.having:,} of {each.total:,}: {'; '.join(fields)}"


def state_rows(answer: ObjectAnswer) -> Iterator[Row]:
    """Yield an object's hosts, the fields in which they differ, and the state of most hosts."""
    name = "/".join(answer.object_id)
    yield make_row(f"{name} {answer.where}", object=name, where=str(answer.where))
    for each in answer.differing:
        yield make_row(
            f"hosts differ in {describe_field(each)}",
            field=each.field,
            values=[{"value": _parse(v.value), "hosts": _hosts_of(v)} for v in each.values],
        )
    for state in answer.states[:1]:
        for field, value in state.state.items():
            yield make_row(f"{field}: {_said(value)}", field=field, value=value)


def describe_field(each: DifferingField) -> str:
    """Return a field in which hosts differ: `version: 9.9 on 39 hosts; 9.2 on web7`."""
    more = each.distinct - len(each.values[:_MOST_VALUES])
    values = "; ".join(_value(value) for value in each.values[:_MOST_VALUES])
    return f"{each.field}: {values}{f'; and {more:,} other values' if more > 0 else ''}"


def _values(values: Sequence[ValueOn]) -> str:
    if len(values) == 1:
        return _said(_parse(values[0].value)) if values[0].value else "none"
    return "; ".join(_value(value) for value in values[:_MOST_VALUES])


def _value(each: ValueOn) -> str:
    return f"{_said(_parse(each.value)) if each.value else 'not there'} on {_hosts_of(each)}"


def _hosts_of(each: ValueOn) -> str:
    if len(each.hosts) > _MOST_NAMED:
        return f"{len(each.hosts):,} hosts"
    return ", ".join(each.hosts)


def _pair(each: FieldPair) -> str:
    sides = [_said(_parse(text)) if text else "not there" for text in each[1:]]
    return f"{each.field} {sides[0]} / {sides[1]}"


def _parse(text: str) -> Any:  # noqa: ANN401 -- a value of JSON
    return json.loads(text) if text else None


def _said(value: object) -> str:
    return value if isinstance(value, str) else json_text(value)
