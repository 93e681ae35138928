"""Commands about all objects together: topics and outliers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from opdbus.bus import paths
from opdbus.cli import oddities, output
from opdbus.cli.asking import ask, chosen, name_of, named
from opdbus.cli.finding import limit, offset, where
from opdbus.cli.root import MOST, as_json, count, kind, plugin, root
from opdbus.cli.telling import noun, plural, subject_of
from opdbus.cli.widths import width

# Default number of topics, and of objects in a topic.
_TOPICS: Final = 20
_OBJECTS: Final = 50
# Number of typical objects of a topic; a line shows those that fit.
_TYPICAL: Final = 9
# Number of kinds named in a line.
_KINDS: Final = 3
_INDENT: Final = 5


@root.command()
@click.argument("topic", required=False)
@click.option(
    "-n", "--limit", type=count, metavar="N", help="How many at most. [20 topics, or 50 objects]"
)
@offset
@plugin
@kind
@where
@as_json
def topics(
    topic: str | None,
    limit: int | None,
    json_: bool,  # noqa: FBT001 -- click passes flags so
    **options: Any,  # noqa: ANN401 -- click's values
) -> None:
    """Show what the objects are about, the largest topic first.

    TOPIC is the number of a topic, its name or a word of it: then the objects of that topic are
    listed, the most typical first.
    """
    options["objects"] = _TYPICAL
    if topic:
        options |= {"topic": topic, "objects": _OBJECTS if limit is None else limit}
    found = ask(lambda client: client.clusters(MOST, chosen(**options)))
    shown = found if topic else found[: limit or _TOPICS]
    if json_:
        output.as_json([_values(*each) for each in shown])
    elif topic:
        _print_one(*found[0])
    else:
        for each in shown:
            _print_line(*each)
        if not found:
            output.note("there are no topics here")
        elif len(shown) < len(found):
            output.note(f"{len(shown)} of {len(found)} topics: -n {len(found)} shows all")


def _values(name: str, size: int, more: dict[str, Any]) -> dict[str, Any]:
    """Return a topic as a dict for JSON."""
    kinds = [dict(zip(("plugin", "kind", "count"), row, strict=True)) for row in more["kinds"]]
    objects = [{"path": path, **named(path), "cosine": cosine} for path, cosine in more["objects"]]
    return {"name": name, "size": size, **more, "kinds": kinds, "objects": objects}


def _print_line(name: str, size: int, more: dict[str, Any]) -> None:
    """Print a topic: its name, and its most typical objects."""
    count = output.style(f"{more['number']:>{_INDENT - 2}}", "cyan")
    said = f"{name}: {_counted(size, more['kinds'][:_KINDS])}"
    output.labelled(count, _INDENT - 2, said, "bold")
    names = list(dict.fromkeys(paths.parse(path)[2] for path, _ in more["objects"]))
    if sys.stdout.isatty():
        names = _fitting(names, shutil.get_terminal_size().columns - _INDENT)
    output.labelled(" " * (_INDENT - 2), _INDENT - 2, ", ".join(names))


def _fitting(names: Sequence[str], room: int) -> list[str]:
    """Return the first names that fit into one line, at least one."""
    first, *rest = names
    shown, room = [first], room - width(first)
    for name in rest:
        if width(name) + 2 <= room:
            shown.append(name)
            room -= width(name) + 2
    return shown


def _counted(size: int, kinds: Sequence[Sequence[Any]]) -> str:
    """Return the number of objects, and of those of the most frequent kinds."""
    said = [f"{count:,} {plural(noun((plugin, kind)), count)}" for plugin, kind, count in kinds]
    rest = size - sum(count for *_, count in kinds)
    return ", ".join([*said, *([f"{rest:,} {plural('other', rest)}"] if rest else [])])


def _print_one(name: str, size: int, more: dict[str, Any]) -> None:
    """Print the objects of a topic."""
    rows = [(f"{cosine:.2f}", name_of(path)) for path, cosine in more["objects"]]
    print(f"{output.style(output.visible(name), 'bold')}: {_counted(size, more['kinds'][:_KINDS])}")
    output.table(("typical", "object"), rows)
    if len(rows) < size:
        output.note(f"{len(rows)} of {size:,} objects: -n {min(size, MOST)} lists them")


@root.command()
@limit
@offset
@plugin
@kind
@where
@as_json
def odd(
    limit: int,
    json_: bool,  # noqa: FBT001 -- click passes flags so
    **options: Any,  # noqa: ANN401 -- click's values
) -> None:
    """Show objects that are unlike others of their kind, and why.

    The worst come first. Only what stands out is shown: a value that few have in a field where
    most agree, or a text that is far from all others.
    """
    found = ask(lambda client: client.outliers(limit, chosen(**options)))
    if json_:
        output.as_json([_odd_values(*each) for each in found])
        return
    if not found:
        output.note("nothing is unlike its kind")
    for path, _, more in found:
        subject = subject_of((more["plugin"], more["kind"]), paths.parse(path)[2])
        output.labelled(output.style(output.visible(subject), "bold"), 2, "")
        is_declared = "declared: " if more.get("declared") else ""
        output.labelled("", 0, is_declared + oddities.sentence(more))
    if len(found) == limit:
        worst = f"the {limit} worst" if limit > 1 else "the worst one"
        output.note(f"{worst}: -n {min(2 * limit, MOST)} shows more")


def _odd_values(path: str, score: float, more: dict[str, Any]) -> dict[str, Any]:
    """Return an outlier as a dict for JSON."""
    fields = [
        {
            "field": field,
            "value": json.loads(value) if value else None,
            "having": having,
            "usual": [{"value": json.loads(v) if v else None, "having": n} for v, n in usual],
        }
        for field, value, having, usual in more["fields"]
    ]
    return {"path": path, "score": score, **more, "fields": fields}
