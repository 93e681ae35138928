"""Commands `history verify`, without a daemon, and `history forget`."""

from __future__ import annotations

import os
import shlex
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from opdbus import config
from opdbus.cli import output
from opdbus.cli.daemon_calls import ask, name_of_path, path_of
from opdbus.cli.root import as_json
from opdbus.cli.show_history import history, parse_time
from opdbus.errors import InvalidArgs, StoreError
from opdbus.platform.metrics import Family, render
from opdbus.settings.parsing import decimal
from opdbus.wording.change_words import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opdbus.client import Client
    from opdbus.history.checkpoint import Checkpoint
    from opdbus.history.verify import Report

_FORMAT: Final = "1.0"


@history.command()
@click.option(
    "--database", metavar="FILE", help="The database to verify; by default the service's."
)
@click.option("--journal", metavar="PATH", help="A folder or file of another journal.")
@click.option(
    "--user", metavar="USER", help="Whose entries count; by default the database's owner."
)
@click.option(
    "--unit", metavar="UNIT", help="The unit whose entries count.", default="op-dbus.service"
)
@click.option(
    "--since", metavar="TIME", help="Only checkpoints from then on, as after a lost database."
)
@click.option(
    "--metrics",
    "target",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also replace FILE, for node_exporter's textfile collector.",
)
@as_json
@click.pass_context
def verify(
    context: click.Context,
    database: str | None,
    journal: str | None,
    user: str | None,
    unit: str,
    since: str | None,
    target: Path | None,
    json_: bool,
) -> int:
    """Verify that no row of history was changed, removed, reordered or rewritten.

    Every row is computed again, without the daemon, with the rights of whoever runs this; the
    service's database can be read by root. The end and every state between are compared with the
    checkpoints in the journal that the service itself wrote. Rows that no checkpoint vouches for
    are named: nothing proves that those were not rewritten. The exit code is 1 if something is
    wrong, or cannot be read; 0 says that what is vouched for is right.
    """
    from opdbus.history import checkpoint

    path = Path(database) if database else _service_database(context)
    owner = _journal_user(path, user)
    asked = checkpoint.journal_command(owner, unit, Path(journal) if journal else None)
    begin = parse_time(since)
    report, reason = _verify(path, asked, begin)
    if target:
        output.replace_file(target, report_metrics(report))
    if json_:
        output.print_json(_report_json(path, report, reason))
    else:
        for line in _report_lines(path, report, reason or f"user {owner}, {unit}"):
            click.echo(output.escape_hidden(line))
    return 1 if report.problem_count else 0


@history.command()
@click.argument("name", metavar="[OBJECT]", required=False)
@click.option("--row", type=int, metavar="N", help="Only this row, by its number.")
@click.option("--containing", metavar="TEXT", help="All rows with TEXT; - reads it as a line.")
def forget(name: str | None, row: int | None, containing: str | None) -> None:
    """Erase for good the values that history has of OBJECT, of a row, or that contain a text.

    OBJECT is named as for `op-dbus history`; what says how it is other than declared is erased with
    it. Rows stay without values, and `history verify` still holds. The names of objects, and the
    causes of changes, cannot be erased. What is stored of an object now is not history: correct it
    first, or it comes back with the next change.
    """
    if sum(given is not None for given in (name, row, containing)) != 1:
        raise InvalidArgs("give one of OBJECT, --row and --containing: what is to be forgotten")
    if containing == "-":
        containing = sys.stdin.readline().rstrip("\n")
    what = {"row": row, "containing": containing}
    object_id, (rows, kept, is_erased) = ask(lambda client: _forget(client, name, what))
    of = f" of {output.escape_hidden(object_id)}" if object_id else ""
    print(f"the values of {rows:,} {plural('row', rows)}{of} were erased")
    if kept:
        print(f"{kept:,} rows have the text in a name or a cause, which cannot be erased")
    if not is_erased:
        raise StoreError(
            "the log beside the database still has what was erased, since another program reads"
            " there: run the same again when that has ended"
        )


def verify_history(context: click.Context) -> tuple[Report, str]:
    """Verify the service's history; raises StoreError.

    Returns also the reason why the journal, which has the checkpoints, cannot be read.
    """
    from opdbus.history import checkpoint

    path = _service_database(context)
    asked = checkpoint.journal_command(_journal_user(path, None), "op-dbus.service", None)
    return _verify(path, asked, 0)


def _verify(path: Path, asked: list[str], begin: int) -> tuple[Report, str]:
    found, reason = _read_checkpoints(asked, begin)
    report = _verify_database(path, found)
    if report.problem_count and (newer := _read_checkpoints(asked, begin)[0]) != found:
        # rows were pruned in between
        report = _verify_database(path, newer)
    return report, reason


async def _forget(
    client: Client, name: str | None, what: dict[str, Any]
) -> tuple[str, tuple[int, int, bool]]:
    """Erase values; return the object's name, if one was given, and the daemon's answer."""
    object_id = ""
    if name is not None:
        what["object"] = path = await path_of(client, name, past=True, unique=True)
        object_id = name_of_path(path)
        plugin, kind, whole = object_id.split("/", 2)
        # the forms of the name that leave out no part of it
        heads = ("", f"{plugin}/", f"{kind}/", f"{plugin}/{kind}/")
        tails = (whole, whole.removesuffix(".service"))
        if name != path and not any(name == head + tail for head in heads for tail in tails):
            raise InvalidArgs(
                f"{name!r} is part of the name of {shlex.quote(object_id)}: give all of it, since"
                " what is forgotten does not come back"
            )
    given = {key: value for key, value in what.items() if value is not None}
    return object_id, await client.forget(given)


def _read_checkpoints(asked: list[str], since: int) -> tuple[list[Checkpoint], str]:
    """Read the checkpoints from the journal; on failure return the reason."""
    from opdbus.history import checkpoint

    try:
        return [found for found in checkpoint.read_journal(asked) if found.at >= since], ""
    except checkpoint.NoWitness as error:
        return [], str(error)


def _service_database(context: click.Context) -> Path:
    """Return the service's database, or this user's if there is no service; raises StoreError."""
    from opdbus.systemd import unit

    service = unit.find_unit()
    try:
        environ = service.environ() if service else {}
    except PermissionError:
        raise StoreError(
            "only root may read where the service has its database: use sudo, or --database FILE"
        ) from None
    return config.load(os.environ, context.obj, service=environ).state_dir / "memory.db"


def _journal_user(path: Path, user: str | None) -> int:
    """Return the uid whose journal entries count; raises InvalidArgs and StoreError."""
    import pwd

    if user is None:
        try:
            return path.stat().st_uid
        except OSError as error:
            raise StoreError(_unreadable(path, error.strerror)) from None
    try:
        uid = decimal(user)
        return pwd.getpwnam(user).pw_uid if uid is None else uid
    except KeyError:
        raise InvalidArgs(f"there is no user {user!r}: give --user a name or a number") from None


def _unreadable(path: Path, reason: str | None) -> str:
    return (
        f"cannot read the database {path}: {reason}; use sudo for that of the service, or name"
        " another one with --database"
    )


def _verify_database(path: Path, checkpoints: list[Checkpoint]) -> Report:
    from opdbus.history.verify import verify as verified
    from opdbus.index.database import database

    if not os.access(path, os.R_OK):
        raise StoreError(_unreadable(path, "Permission denied"))
    with database.translate_errors(path), closing(database.connect_to_read(path)) as opened:
        return verified(opened, checkpoints)


def report_metrics(report: Report) -> str:
    """Return the metrics of a verification in Prometheus' text format."""
    numbers = {
        "history_verified_seq": report.vouched,
        "history_problems": report.problem_count,
        "history_verified_timestamp_seconds": int(time.time()),
    }
    return render(Family(name, {(): number}) for name, number in numbers.items())


def _report_json(path: Path, report: Report, reason: str) -> dict[str, Any]:
    from dataclasses import asdict

    found = {
        **asdict(report),
        "problems": [
            {"seq": seq, "at": at, "thing": name, "text": text}
            for seq, at, name, text in report.problems
        ],
        "unvouched": max(0, report.last - max(report.vouched, report.first - 1)),
    }
    head = {"format_version": _FORMAT, "database": str(path), "ok": not report.problem_count}
    return {**head, **found, "journal_error": reason}


def _report_lines(path: Path, report: Report, witness: str) -> Iterator[str]:
    from opdbus.platform.timestamps import format_utc

    yield f"{path}: {report.rows:,} rows of history, {report.first:,} to {report.last:,}"
    if report.first > 1:
        yield f"the rows before {report.first:,} were pruned"
    if report.erased:
        yield f"the values of {report.erased:,} rows were erased, as other rows say"
    for seq, at, object_id, text in report.problems:
        when = f" of {format_utc(at)}" if at is not None else ""
        which = f"row {seq:,}{when}{f', {object_id}' if object_id else ''}: " if seq else ""
        yield f"WRONG: {which}{text}"
    if (more := report.problem_count - len(report.problems)) > 0:
        yield f"WRONG: {more:,} more"
    yield f"checkpoints in the journal ({witness}): {report.checkpoints:,}"
    if report.vouched and report.vouched_at is not None:
        yield f"the last that agrees vouches for the rows up to {report.vouched:,}"
    first = max(report.vouched + 1, report.first)
    if first <= report.last:
        at = report.unvouched_since
        since = "unknown" if at is None else format_utc(at)
        yield f"nothing vouches for the rows from {first:,} on, since {since}"
    if not report.problem_count:
        yield "nothing wrong was found"
