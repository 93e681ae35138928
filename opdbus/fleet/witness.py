"""The witness: recomputes a host's stored history and compares it with what was seen before.

Values of fields are not covered: their salts stay on the host.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

import asyncpg

from opdbus.errors import UnknownObject
from opdbus.history.hash_chain import row_hash

# asyncpg's Record
Row: TypeAlias = Any
# The most problems that are reported one by one.
_MAX_REPORTED: Final = 10
_PREFETCH: Final = 2000
_HOST: Final = """
SELECT host, name, machine, epoch, seq, hash, conflict, conflict_at, seen_at
FROM opdbus.host WHERE name = $1
"""
# What the hash covers, in its order, and the hash.
_ROWS: Final = """
SELECT seq, at, boot, source, plugin, kind, name, what, cause, folded, digest, hash
FROM opdbus.change WHERE host = $1 AND epoch = $2 ORDER BY seq
"""
_CHECKPOINTS: Final = """
SELECT seq, hash, at FROM opdbus.checkpoint WHERE host = $1 AND epoch = $2 ORDER BY seq
"""


class Finding(NamedTuple):
    """A problem of an epoch from a row on; `seq` is 0 if it is of no row.

    `at` is the time of the row, in microseconds since 1970.
    """

    epoch: int
    seq: int
    at: int | None
    object_id: str
    text: str


@dataclass(slots=True)
class Epoch:
    """A period of a host's history, and what was found of it.

    `vouched` is the last row that a checkpoint confirms, 0 if none does. `begins_known` says that
    its first row could be verified too.
    """

    epoch: int
    reason: str
    began_at: datetime
    first: int
    last: int = 0
    rows: int = 0
    pruned: int = 0
    begins_known: bool = True
    checkpoints: int = 0
    vouched: int = 0
    vouched_at: datetime | None = None


@dataclass(slots=True)
class HostReport:
    """The verification of a host's stored history."""

    host: str
    machine: str
    seen_at: datetime | None
    epochs: list[Epoch] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0

    def add(self, epoch: int, seq: int, text: str, row: Row | None = None) -> None:
        """Count a finding; only the first ones are reported one by one."""
        self.finding_count += 1
        if len(self.findings) < _MAX_REPORTED:
            at = row["at"] if row else None
            name = "/".join(row[part] for part in ("plugin", "kind", "name")) if row else ""
            self.findings.append(Finding(epoch, seq, at, name, text))


async def verify_host(connection: asyncpg.Connection, name: str) -> HostReport:
    """Verify a host's stored history, in bounded memory; raises UnknownObject without the host."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        host = await connection.fetchrow(_HOST, name)
        if host is None:
            raise UnknownObject(f"the fleet has no host {name}: `op-dbus fleet hosts` names all")
        report = HostReport(name, host["machine"] or "", host["seen_at"])
        epochs = await connection.fetch(
            "SELECT * FROM opdbus.epoch WHERE host = $1 ORDER BY epoch", host["host"]
        )
        for row in epochs:
            await _Verification(connection, report, host, row).run()
        if host["conflict"] and not report.finding_count:
            # that of an epoch is a finding already
            report.add(0, 0, host["conflict"])
    return report


class _Verification:
    """One pass over the rows of an epoch."""

    def __init__(
        self,
        connection: asyncpg.Connection,
        report: HostReport,
        host: Row,
        epoch: Row,
    ) -> None:
        self._connection = connection
        self._report = report
        self._host = host
        self._is_last = epoch["epoch"] == host["epoch"]
        first = max(epoch["first_seq"], epoch["pruned_seq"] + 1)
        self._epoch = Epoch(
            epoch["epoch"],
            epoch["reason"],
            epoch["began_at"],
            first,
            pruned=max(0, epoch["pruned_seq"] - epoch["first_seq"] + 1),
        )
        report.epochs.append(self._epoch)
        self._seq = first - 1
        # b"": unknown, so that the first row is believed
        self._hash = epoch["pruned_hash"] or (bytes(32) if first == 1 else b"")
        self._epoch.begins_known = bool(self._hash)
        self._ahead: list[Row] = []
        self._found_before = report.finding_count

    async def run(self) -> None:
        """Verify all rows in their order, then the end."""
        key = (self._host["host"], self._epoch.epoch)
        if self._epoch.reason == "rewritten":
            self._add(self._epoch.first, self._rewritten())
        self._ahead = list(reversed(await self._connection.fetch(_CHECKPOINTS, *key)))
        self._epoch.checkpoints = len(self._ahead)
        self._compare()
        async for row in self._connection.cursor(_ROWS, *key, prefetch=_PREFETCH):
            self._check(row)
            self._compare()
        self._check_end()

    def _rewritten(self) -> str:
        said = self._host["conflict"] if self._epoch.epoch > 1 else ""
        return "the host's history contradicts what it had sent before" + (
            f": {said}" if said and not self._report.finding_count else ""
        )

    def _check(self, row: Row) -> None:
        self._epoch.rows += 1
        seq, values = row["seq"], list(row.values())[:11]
        if seq <= self._seq:
            self._add(seq, "it was pruned, and has come back", row)
            return
        if seq > self._seq + 1:
            self._add_missing(self._seq + 1, seq - 1)
        elif self._hash and row_hash(self._hash, values) != row["hash"]:
            self._add(seq, "the row was changed in the database", row)
        self._seq, self._hash = seq, row["hash"]

    def _compare(self) -> None:
        """Compare the last row with the checkpoints of its number."""
        while self._ahead and self._ahead[-1]["seq"] <= self._seq:
            point = self._ahead.pop()
            if point["seq"] < self._seq:
                continue  # of pruned or missing rows
            if point["hash"] == self._hash:
                if self._report.finding_count == self._found_before + self._is_rewritten:
                    self._epoch.vouched, self._epoch.vouched_at = point["seq"], point["at"]
            elif self._hash:
                self._add(
                    self._seq,
                    "the row is not the one that was witnessed at"
                    f" {point['at']:%Y-%m-%d %H:%M:%S}Z",
                )

    @property
    def _is_rewritten(self) -> bool:
        return self._epoch.reason == "rewritten"

    def _check_end(self) -> None:
        """Compare the end with the remaining checkpoints and with the host's row."""
        end = max([point["seq"] for point in self._ahead], default=0)
        if self._is_last:
            end = max(end, self._host["seq"])
        if end > self._seq:
            self._add_missing(self._seq + 1, end)
        elif self._is_last and self._hash and self._host["hash"] not in (self._hash, b""):
            self._add(self._seq, "the last row is not the one that was noted when it came")
        self._epoch.last = self._seq

    def _add_missing(self, first: int, last: int) -> None:
        which = "the row is" if first == last else f"the rows up to {last} are"
        self._add(first, f"{which} missing in the database")

    def _add(self, seq: int, text: str, row: Row | None = None) -> None:
        self._report.add(self._epoch.epoch, seq, text, row)
