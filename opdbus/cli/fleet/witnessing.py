"""Command `op-dbus fleet verify`: a host's stored history against what the server witnessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from opdbus.cli import output
from opdbus.cli.fleet import fleet, require_library, run_with_database
from opdbus.cli.root import as_json
from opdbus.platform.timestamps import format_utc

if TYPE_CHECKING:
    from opdbus.fleet.witness import Epoch, HostReport

_FORMAT: Final = "1.0"
_REASONS: Final = {
    "first": "the first rows that came",
    "gap": "rows before were pruned on the host before they were sent",
    "rewritten": "the host's history contradicted the rows before",
}


@fleet.command()
@click.argument("host")
@as_json
@click.pass_context
def verify(context: click.Context, host: str, json_: bool) -> int:
    """Verify the history that the fleet stores of HOST.

    Every row is computed again, and compared with the checkpoints that were noted when rows came.
    Rows that are older than the fleet keeps are gone, which is said. The exit code is 1 if a row
    was changed, is missing or was rewritten, on the host or in the database.
    """
    require_library()
    from opdbus.fleet.witness import verify_host

    report = run_with_database(context, lambda connection: verify_host(connection, host))
    if json_:
        output.print_json(_as_json(report))
    else:
        for line in _lines(report):
            output.print_paragraph(output.escape_hidden(line))
    return 1 if report.finding_count else 0


def _as_json(report: HostReport) -> dict[str, Any]:
    head = {"format_version": _FORMAT, "ok": not report.finding_count}
    return head | {
        name: _time(value) if isinstance(value, datetime) else value
        for name, value in asdict(
            report, dict_factory=lambda pairs: {name: _plain(value) for name, value in pairs}
        ).items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, list):
        return [each._asdict() if hasattr(each, "_asdict") else each for each in value]
    return value


def _lines(report: HostReport) -> Iterator[str]:
    seen = f", last seen {_time(report.seen_at)}" if report.seen_at else ""
    unknown = "its machine is not known" if report.seen_at else "it never came"
    yield f"{report.host}: {report.machine or unknown}{seen}"
    for epoch in report.epochs:
        yield from _epoch_lines(epoch)
    for number, seq, at, object_id, text in report.findings:
        when = f" of {format_utc(at)}" if at is not None else ""
        which = f"epoch {number}, row {seq:,}{when}{f', {object_id}' if object_id else ''}: "
        yield f"WRONG: {which if number else ''}{text}"
    if (more := report.finding_count - len(report.findings)) > 0:
        yield f"WRONG: {more:,} more"
    if not report.finding_count:
        yield "nothing wrong was found: rows follow each other; values and words are not covered"


def _epoch_lines(epoch: Epoch) -> Iterator[str]:
    rows = f"{epoch.rows:,} rows, {epoch.first:,} to {epoch.last:,}" if epoch.rows else "no rows"
    yield f"epoch {epoch.epoch}, since {_time(epoch.began_at)}: {rows}; {_REASONS[epoch.reason]}"
    if epoch.pruned:
        yield f"  {epoch.pruned:,} rows before {epoch.first:,} were pruned here, being old"
    if not epoch.begins_known and epoch.rows:
        yield f"  row {epoch.first:,} is believed: the row before it never came"
    if epoch.vouched and epoch.vouched_at:
        yield (
            f"  {epoch.checkpoints:,} checkpoints; the last that agrees vouches for the rows up to"
            f" {epoch.vouched:,}, since {_time(epoch.vouched_at)}"
        )
    if epoch.rows and epoch.vouched < epoch.last:
        which = f"the rows after {epoch.vouched:,}" if epoch.vouched else "its rows"
        yield f"  no checkpoint vouches for {which} yet"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
