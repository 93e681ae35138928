"""Command that prints a compact object about the host, for programs that gather facts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from opdbus import __version__
from opdbus.cli import output, proving
from opdbus.cli.daemon_calls import ask, id_of_path
from opdbus.cli.root import as_json, root
from opdbus.cli.status import STARTING, Properties
from opdbus.config import SEVERITIES

if TYPE_CHECKING:
    from opdbus.client import Client

_FORMAT: Final = "1.0"
# Names that are listed; the counts are of all.
_MOST_NAMES: Final = 100


@root.command()
@click.option("--verify", "is_verified", is_flag=True, help="Also verify history; for root.")
@as_json
@click.pass_context
def facts(context: click.Context, is_verified: bool, json_: bool) -> None:
    """Show drift, failed units and what serves in one object.

    With --json, it is what Ansible's custom facts have.
    """
    found = ask(_gather)
    if is_verified:
        report, reason = proving.verify_history(context)
        found["history"] |= {"vouched": report.vouched, "problems": report.problem_count}
        found["history"] |= {"journal_error": reason} if reason else {}
    if json_:
        output.print_json(found)
    else:
        output.print_pairs({key: output.json_text(value) for key, value in found.items()})


async def _gather(client: Client) -> dict[str, Any]:
    """Return the facts; each number is of one moment, not all of the same."""
    values = Properties(await client.status())
    drifts = await client.drift({})
    severities = Counter(row[2] for row in drifts)
    _, listed = await client.pages({}, 0, None)
    kinds = Counter(f"{row[1]}/{row[2]}" for row in listed)
    total, failed = await client.failed_units(_MOST_NAMES)
    observers = values["Observers"]
    return {
        "format_version": _FORMAT,
        "version": __version__,
        "daemon": {
            "version": values["Version"],
            "state": values["State"],
            "level": values["Level"],
            "provider": values["Provider"],
            "precision": values["Precision"],
            "error": values["LastError"],
        },
        "state_file": {"path": values["StateFile"], "error": values["StateFileError"]},
        "drift": {severity: severities[severity] for severity in reversed(SEVERITIES)},
        "drifting": ["/".join(id_of_path(row[0]).values()) for row in drifts[:_MOST_NAMES]],
        # while something is awaited, some drift may not be known yet
        "awaits": list(values["DriftAwaits"]),
        "failed_units": total,
        "failed": failed,
        "objects": dict(sorted(kinds.items())),
        "observers": {
            "up": sorted(row[0] for row in observers if row[1] == "up"),
            "starting": sorted(row[0] for row in observers if row[1] == STARTING),
            "failed": sorted(row[0] for row in observers if row[1] == "failed"),
        },
        "history": {"last": await client.last_row()},
    }
