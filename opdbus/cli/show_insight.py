"""Commands about all objects together: topics and outliers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from opdbus.bus import paths
from opdbus.cli import output
from opdbus.cli.daemon_calls import ask, id_of_path, name_of_path, without_empty
from opdbus.cli.find_objects import limit_option, offset_option, where_filter
from opdbus.cli.output import width_of
from opdbus.cli.root import COUNT, MAX_ROWS, as_json, kind, plugin, root
from opdbus.wording.change_words import noun, plural, subject_of

# Number of fields in a sentence.
_MOST_FIELDS: Final = 3
# Number of usual values in a sentence, unless the first covers nearly all objects.
_USUAL_VALUES: Final = 2
_NEARLY_ALL: Final = 0.8
# Default number of topics, and of objects in a topic.
_TOPICS: Final = 20
_OBJECTS: Final = 50
# Number of typical objects of a topic; a line shows those that fit.
_TYPICAL: Final = 9
# Number of kinds named in a line.
_KINDS: Final = 3
_INDENT: Final = 5
# Verbs for fields whose names have none: for an object with the value, and for others.
_VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "user": ("runs as", "run as"),
    "group": ("has the group", "have"),
    "active_state": ("is", "are"),
    "sub_state": ("is", "are"),
    "load_state": ("is", "are"),
    "status": ("is", "are"),
    "mode": ("has the mode", "have"),
    "shell": ("has the shell", "have"),
    "exposed": ("is open to", "to"),
    "opened_by": ("was opened by", "by"),
    "rights": ("is a", "are"),
}
# First words of a field's name that turn a boolean into a verb.
_OWN_VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "can": ("can", "cannot"),
    "has": ("has", "has no"),
    "need": ("needs", "needs no"),
    "needs": ("needs", "needs no"),
    "accept": ("accepts", "does not accept"),
}


class _Field(NamedTuple):
    """A field as State1.Outliers returns it."""

    name: str
    value: str
    having: int
    usual: Sequence[tuple[str, int]]


def describe_outlier(details: Mapping[str, Any]) -> str:
    """Return the reasons why an object is an outlier, the worst first."""
    fields = [_Field(*row) for row in details["fields"]]
    parts = [_describe_field(field, details["objects"] - 1) for field in fields[:_MOST_FIELDS]]
    if "nearest" in details:
        name = paths.parse(details["nearest"])[2]
        far, usual = details["distance"], details["usual_distance"]
        text = f"its text is {far:.2f} from the nearest, {name}, where two are usually"
        parts.append(f"{text} {usual:.2f} apart")
    more = len(fields) - _MOST_FIELDS
    if more > 0:
        parts.append(f"and {more} more field{'s' if more > 1 else ''}")
    return "; ".join(parts)


def _describe_field(field: _Field, others: int) -> str:
    """Return an unusual value, and the others' most usual one.

    The next usual value is added if the first does not cover nearly all.
    """
    value = json.loads(field.value) if field.value else None
    words = output.field_in_words(field.name)
    if value is None:
        return f"has no {words}, {others + 1 - field.having:,} of {others:,} others have"
    if isinstance(value, bool) and (said := _describe_boolean(field, value=value, others=others)):
        return said
    has, have = _VERBS.get(field.name, (f"{words} is", "have"))
    (first, count), *rest = field.usual
    shown = output.format_json(field.value)
    if not first:
        return f"has {words} {shown}, {count:,} of {others:,} others have none"
    text = f"{has} {shown}, {count:,} of {others:,} others {have} {_format_usual(first)}"
    if rest and count < _NEARLY_ALL * others:
        text += "".join(f", {n:,} {_format_usual(value)}" for value, n in rest[: _USUAL_VALUES - 1])
    return text


def _describe_boolean(field: _Field, *, value: bool, others: int) -> str:
    """Return a boolean in words, "" if no other object has the opposite; a missing field is no."""
    opposite = {json.dumps(not value), ""}
    count = sum(count for usual, count in field.usual if usual in opposite)
    if not count:
        return ""
    name = output.field_in_words(field.name)
    verb, *words = name.split()
    if verb in _OWN_VERBS and words:
        text = f"{_OWN_VERBS[verb][not value]} {' '.join(words)}"
        return f"{text}, {count:,} of {others:,} others {'do not' if value else 'do'}"
    text = f"is {'' if value else 'not '}{name}"
    return f"{text}, {count:,} of {others:,} others are{' not' if value else ''}"


def _format_usual(value: str) -> str:
    shown = output.format_json(value) if value else "none"
    return "their own name" if shown == "*" else shown


@root.command()
@click.argument("topic", required=False)
@click.option(
    "-n", "--limit", type=COUNT, metavar="N", help="How many at most. [20 topics, or 50 objects]"
)
@offset_option
@plugin
@kind
@where_filter
@as_json
def topics(topic: str | None, limit: int | None, json_: bool, **options: Any) -> None:
    """Show what the objects are about, the largest topic first.

    TOPIC is the number of a topic, its name or a word of it: then the objects of that topic are
    listed, the most typical first.
    """
    options["objects"] = _TYPICAL
    if topic:
        options |= {"topic": topic, "objects": _OBJECTS if limit is None else limit}
    found = ask(lambda client: client.clusters(MAX_ROWS, without_empty(**options)))
    shown = found if topic else found[: limit or _TOPICS]
    if json_:
        output.print_json([_topic_json(*each) for each in shown])
    elif topic:
        _print_topic(*found[0])
    else:
        for each in shown:
            _print_topic_line(*each)
        if not found:
            output.print_note("there are no topics here")
        elif len(shown) < len(found):
            output.print_note(f"{len(shown)} of {len(found)} topics: -n {len(found)} shows all")


def _topic_json(name: str, size: int, more: dict[str, Any]) -> dict[str, Any]:
    """Return a topic as a dict for JSON."""
    kinds = output.as_dicts(("plugin", "kind", "count"), more["kinds"])
    objects = [{"path": path, **id_of_path(path), "cosine": near} for path, near in more["objects"]]
    return {"name": name, "size": size, **more, "kinds": kinds, "objects": objects}


def _print_topic_line(name: str, size: int, more: dict[str, Any]) -> None:
    """Print a topic: its name, and its most typical objects."""
    count = output.add_style(f"{more['number']:>{_INDENT - 2}}", "cyan")
    said = f"{name}: {_count_kinds(size, more['kinds'][:_KINDS])}"
    output.print_labelled(count, _INDENT - 2, said, "bold")
    names = list(dict.fromkeys(paths.parse(path)[2] for path, _ in more["objects"]))
    if sys.stdout.isatty():
        # the names that fit into one line, at least one
        first, *rest = names
        names, room = [first], shutil.get_terminal_size().columns - _INDENT - width_of(first)
        for name in rest:
            if (width := width_of(name) + 2) <= room:
                names.append(name)
                room -= width
    output.print_labelled(" " * (_INDENT - 2), _INDENT - 2, ", ".join(names))


def _count_kinds(size: int, kinds: Sequence[Sequence[Any]]) -> str:
    """Return the number of objects, and of those of the most frequent kinds."""
    said = [f"{count:,} {plural(noun((plugin, kind)), count)}" for plugin, kind, count in kinds]
    rest = size - sum(count for *_, count in kinds)
    return ", ".join([*said, *([f"{rest:,} {plural('other', rest)}"] if rest else [])])


def _print_topic(name: str, size: int, more: dict[str, Any]) -> None:
    """Print the objects of a topic."""
    rows = [(f"{cosine:.2f}", name_of_path(path)) for path, cosine in more["objects"]]
    heading = output.add_style(output.escape_hidden(name), "bold")
    print(f"{heading}: {_count_kinds(size, more['kinds'][:_KINDS])}")
    output.print_table(("typical", "object"), rows)
    if len(rows) < size:
        output.print_note(f"{len(rows)} of {size:,} objects: -n {min(size, MAX_ROWS)} lists them")


@root.command()
@limit_option
@offset_option
@plugin
@kind
@where_filter
@as_json
def odd(limit: int, json_: bool, **options: Any) -> None:
    """Show objects that are unlike others of their kind, and why.

    The worst come first. Only what stands out is shown: a value that few have in a field where
    most agree, or a text that is far from all others.
    """
    found = ask(lambda client: client.outliers(limit, without_empty(**options)))
    if json_:
        output.print_json([_outlier_json(*each) for each in found])
        return
    if not found:
        output.print_note("nothing is unlike its kind")
    for path, _, more in found:
        subject = subject_of((more["plugin"], more["kind"]), paths.parse(path)[2])
        output.print_labelled(output.add_style(output.escape_hidden(subject), "bold"), 2, "")
        is_declared = "declared: " if more.get("declared") else ""
        output.print_labelled("", 0, is_declared + describe_outlier(more))
    if len(found) == limit:
        worst = f"the {limit} worst" if limit > 1 else "the worst one"
        output.print_note(f"{worst}: -n {min(2 * limit, MAX_ROWS)} shows more")


def _outlier_json(path: str, score: float, more: dict[str, Any]) -> dict[str, Any]:
    """Return an outlier as a dict for JSON."""
    fields = []
    for field, value, having, usual in more["fields"]:
        row = {"field": field, "value": json.loads(value or "null"), "having": having}
        others = [{"value": json.loads(other or "null"), "having": n} for other, n in usual]
        fields.append({**row, "usual": others})
    return {"path": path, "score": score, **more, "fields": fields}
