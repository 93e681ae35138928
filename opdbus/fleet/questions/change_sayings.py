"""Stored rows of history in the words of `op-dbus changes`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opdbus.wording.change_lines import group_into_lines
from opdbus.wording.change_words import describe_cause, describe_change

if TYPE_CHECKING:
    import asyncpg

_ROWS: Final = (
    "SELECT host, epoch, seq, at, boot, source, plugin, kind, name, what, cause, folded, fields,"
    " known FROM opdbus.change JOIN unnest($1::int[], $2::int[], $3::bigint[])"
    " AS wanted (host, epoch, seq) USING (host, epoch, seq)"
)
# Fields whose values were erased, or too large to send.
_ERASED: Final = (None, [["", "", ""]])


class RowKey(NamedTuple):
    """The key of a row of a host's history."""

    host: int
    epoch: int
    seq: int


async def read(
    connection: asyncpg.Connection, wanted: Sequence[tuple[RowKey, bool, bool]]
) -> dict[RowKey, str]:
    """Return rows in words; with each key, whether the cause and who did it are said too.

    Rows whose values are not kept, or that cannot be read, are left out.
    """
    if not wanted:
        return {}
    rows = await connection.fetch(_ROWS, *map(list, zip(*(key for key, *_ in wanted), strict=True)))
    by_key = {RowKey(row["host"], row["epoch"], row["seq"]): dict(row) for row in rows}
    return {
        key: _say(by_key[key], with_cause=with_cause, with_journal=with_journal)
        for key, with_cause, with_journal in wanted
        if key in by_key
    }


def _say(row: Mapping[str, Any], *, with_cause: bool, with_journal: bool) -> str:
    fields, known = (
        json.loads(row[key]) if isinstance(row[key], str) else row[key]
        for key in ("fields", "known")
    )
    if fields in _ERASED:
        return ""
    try:
        change = {**(known or {}), **row, "fields": fields}
        (line,) = group_into_lines([change], is_narrow=True)
        # uids are those of the row's host: they have no names here
        is_of_caller = change["cause"].startswith("bus:")
        text = str(describe_change(change)) if is_of_caller else line.text
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ):
        # hosts may store what op-dbus does not write
        return ""
    cause = f" ({describe_cause(line.cause)})" if with_cause and line.cause else ""
    return f"{text}{cause}{line.more if with_journal else ''}"
