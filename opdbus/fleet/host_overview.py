"""The hosts of the fleet: the age of each one's part, and its faults."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from datetime import datetime

    import asyncpg

# A host that was not seen for so long, in seconds, fell silent: a sender says each minute that it
# is there.
SILENT_SECONDS: Final = 600.0
_SQL: Final = """
SELECT *, (SELECT max(first_seq) FROM opdbus.epoch WHERE epoch.host = host.host AND reason = 'gap'
   AND began_at > now() - interval '7 days') AS after_gap
FROM opdbus.host ORDER BY name
"""


@dataclass(frozen=True, slots=True)
class HostOverview:
    """A host; times are in seconds since 1970, None if that never happened.

    `observers` are those that failed or are absent: (name, state, reason). `same_machine` are other
    hosts with the same machine id, as a cloned disk has it.
    """

    name: str
    tags: Sequence[str]
    added_at: float
    seen_at: float | None
    current_at: float | None
    compared_at: float | None
    backlog: int
    objects: int
    drifted: int
    version: str
    level: str
    machine: str
    observers: Sequence[tuple[str, str, str]]
    conflict: str
    conflict_at: float | None
    vector_fault: str
    vector_fault_at: float | None
    # the first row after rows of history that never came, of the last week
    after_gap: int | None
    # since when its batches are refused, as it is over a limit
    refused_at: float | None
    same_machine: Sequence[str]
    is_silent: bool

    def findings(self) -> list[str]:
        """Return what an administrator should look at, one sentence each."""
        failed = [each for each in self.observers if each[1] == "failed"]
        said = {
            "no sender has come yet": self.seen_at is None,
            f"conflict: {self.conflict}": self.conflict,
            f"its vectors are not taken: {self.vector_fault}": self.vector_fault,
            f"has the machine id of {', '.join(self.same_machine)}": self.same_machine,
            f"sends still {self.backlog:,} rows of history": self.backlog,
            f"rows of its history before row {self.after_gap} never came": self.after_gap,
            "is over its limit: `op-dbus fleet limit` shows and raises it": self.refused_at,
        }
        return [text for text, is_so in said.items() if is_so] + [
            f"observer {name} failed: {reason}" for name, _, reason in failed
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and the findings."""
        return asdict(self) | {"findings": self.findings()}


async def list_hosts(
    connection: asyncpg.Connection, now: float | None = None
) -> list[HostOverview]:
    """Return all hosts: silent ones first, then those with findings, each by name."""
    moment = time.time() if now is None else now
    rows = await connection.fetch(_SQL)
    machines: dict[str, list[str]] = {}
    for row in rows:
        if row["machine"]:
            machines.setdefault(row["machine"], []).append(row["name"])
    hosts = [_overview(row, machines.get(row["machine"], ()), moment) for row in rows]
    return sorted(hosts, key=lambda host: (not host.is_silent, not host.findings(), host.name))


def _overview(row: asyncpg.Record, same: Sequence[str], now: float) -> HostOverview:
    seen = _seconds(row["seen_at"])
    return HostOverview(
        name=row["name"],
        tags=tuple(row["tags"]),
        added_at=row["added_at"].timestamp(),
        seen_at=seen,
        current_at=_seconds(row["current_at"]),
        compared_at=_seconds(row["compared_at"]),
        backlog=row["backlog"],
        objects=row["objects"],
        drifted=row["drifted"],
        version=row["version"] or "",
        level=row["level"] or "",
        machine=row["machine"] or "",
        observers=tuple(_unwell(row["observers"])),
        conflict=row["conflict"] or "",
        conflict_at=_seconds(row["conflict_at"]),
        vector_fault=row["vector_fault"] or "",
        vector_fault_at=_seconds(row["vector_fault_at"]),
        after_gap=row["after_gap"],
        refused_at=_seconds(row["refused_at"]),
        same_machine=tuple(each for each in same if each != row["name"]),
        is_silent=seen is None or now - seen > SILENT_SECONDS,
    )


def _unwell(observers: str) -> list[tuple[str, str, str]]:
    """Return the observers that do not run; whatever a host sent, it cannot break the list."""
    found = json.loads(observers)
    rows = [each for each in found if isinstance(each, list)] if isinstance(found, list) else []
    texts = [[str(value)[:300] for value in each] for each in rows]
    return [
        (each[0], each[1], each[3])
        for each in texts
        if len(each) > 3 and each[1] in ("failed", "absent")
    ]


def _seconds(value: datetime | None) -> float | None:
    return value.timestamp() if value else None
