"""Command that checks a state file, without a daemon."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opdbus.cli import completing, output
from opdbus.cli.root import as_json, root
from opdbus.cli.telling import plural
from opdbus.errors import StateFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.state.judge import Judgement
    from opdbus.state.object import Json, ObjectId

# number of names listed for people
_MOST = 10


@root.command()
@click.argument("file", shell_complete=completing.files)
@as_json
def check(file: str, json_: bool) -> int:  # noqa: FBT001 -- click passes flags so
    """Judge a state file: FILE, or - for standard input.

    Needs no daemon. Shows how many objects it declares, which names are not the file's own,
    which fields are hidden as secrets, and what looks wrong. The exit code is 1 if the daemon
    would refuse it.
    """
    from opdbus.drift import observed_kinds
    from opdbus.state import judge

    name = "standard input" if file == "-" else file
    try:
        found = judge.judge(_content(file, Path(name)), observed_kinds.puzzles)
    except StateFileError as error:
        if not json_:
            raise
        output.as_json({"file": name, "valid": False, "error": str(error)})
        return error.exit_code
    if json_:
        output.as_json({"file": name, "valid": True, **_values(found)})
    else:
        _print(name, found)
    return 0


def _content(file: str, name: Path) -> dict[str, Json]:
    from opdbus.state import file as state_file

    if file != "-":
        return state_file.parse(state_file.read_bytes(name), name)
    data = sys.stdin.buffer.read(state_file.MAX_BYTES + 1)
    state_file.require_size(len(data), name)
    return state_file.parse(data, name)


def _values(found: Judgement) -> dict[str, Any]:
    objects = ((*names, count) for names, count in found.objects.items())
    hidden = ((*names, count) for names, count in found.hidden.items())
    return {
        "objects": _rows(("plugin", "kind", "count"), objects),
        "hidden": _rows(("plugin", "kind", "field", "count"), hidden),
        "names": {
            key: ["/".join(object_id) for object_id in getattr(found, key)]
            for key in ("made", "cut", "redacted")
        },
        "not_observed": _unobserved(found),
        "warnings": list(found.warnings),
    }


def _rows(keys: Sequence[str], rows: Any) -> list[dict[str, Any]]:  # noqa: ANN401 -- of any length
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _print(name: str, found: Judgement) -> None:
    count = sum(found.objects.values())
    objects = f"{count:,} {plural('object', count)}"
    print(output.visible(f"{name}: the daemon takes it, with {objects}"))
    if count:
        print()
        output.table(("plugin", "kind", "objects"), [(*key, n) for key, n in found.objects.items()])
    hidden = [f"{a}/{b} {field} ({n})" for (a, b, field), n in found.hidden.items()]
    names = {
        "made": _listed(found.made, "from the content, since the file has none"),
        "cut": _listed(found.cut, "since they are too long"),
        "redacted": _listed(found.redacted, "since they hold secrets"),
    }
    output.section("names that are not the file's", names)
    output.section("secrets", {"hidden": "\n".join(hidden)})
    output.section("not observed", {"objects": "\n".join(_unobserved(found))})
    output.section("probably not meant", {"warning": "\n".join(found.warnings)})


def _unobserved(found: Judgement) -> list[str]:
    """Return a line for each declared kind that op-dbus does not observe: it cannot drift."""
    from opdbus.drift import observed_kinds

    sorts = (sort for sort in found.objects if not observed_kinds.is_observed(sort))
    return ["{}/{}: {}".format(*sort, observed_kinds.why_not(sort)) for sort in sorts]


def _listed(object_ids: Sequence[ObjectId], why: str) -> str:
    if not object_ids:
        return ""
    more = len(object_ids) - _MOST
    lines = [
        f"{len(object_ids):,} {why}:",
        *("/".join(object_id) for object_id in islice(object_ids, _MOST)),
    ]
    return "\n".join([*lines, f"and {more:,} more"] if more > 0 else lines)
