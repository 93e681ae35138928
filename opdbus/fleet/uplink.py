"""A host's connection to the fleet's database: history, objects, vectors and drift go up.

Each batch is one transaction that begins where the stored history ends, so that a batch that is
sent twice, or not at all, does no harm.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from opdbus.errors import AccessDenied, LimitsExceeded
from opdbus.fleet import postgres

if TYPE_CHECKING:
    import asyncpg

# No batch holds the host's row longer than this, and no other statement waits longer.
_COMMAND_SECONDS: Final = 60.0


class StateRow(NamedTuple):
    """An object's state: `body` is canonical JSON, None if the object is gone.

    `updated_at` is in microseconds since 1970.
    """

    plugin: str
    kind: str
    name: str
    updated_at: int
    body: str | None


class ChangeRow(NamedTuple):
    """A row of history; `chained` is what `hash` covers besides the hash before.

    Details: fields (list or None), sentence, severity, known (dict).
    """

    seq: int
    chained: str
    hash: bytes
    details: Mapping[str, Any]


class StoredState(NamedTuple):
    """The SHA-256 of a stored state, and the source that the host gave for it."""

    digest: bytes
    source: str


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts of a host that begin a synchronization; `machine` names the machine.

    `first_kept` and `last` are the first and the last row of its history.
    """

    machine: str
    version: str
    level: str
    numerics: str
    dimension: int
    first_kept: int
    last: int
    observers: Sequence[Sequence[Any]] = field(default=())


class Uplink:
    """A host's connection, as a context; raises the errors of `postgres.connect`."""

    def __init__(self, url: str, password: str | None = None) -> None:
        self.epoch = 0
        self._url = url
        self._password = password
        self._connection: asyncpg.Connection

    async def __aenter__(self) -> Self:
        """Connect."""
        self._connection = await postgres.connect(self._url, self._password, _COMMAND_SECONDS)
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Disconnect."""
        await postgres.close(self._connection)

    async def stored_history(self) -> tuple[int, bytes]:
        """Return the last row of history that is stored, and its hash (b"" if it is unknown)."""
        with postgres.translate_errors(self._url):
            (row,) = await self._connection.fetch("SELECT * FROM opdbus.stored_history()")
        return row["seq"], row["hash"]

    async def begin(self, facts: HostFacts, hash_at_seq: bytes | None) -> int:
        """Begin a synchronization; return the row of history after which to send.

        `hash_at_seq` is the hash of the host's row `stored_history()[0]`, None if it has none.
        Raises AccessDenied if these credentials belong to another machine.
        """
        with postgres.translate_errors(self._url):
            found = await self._connection.fetchval(
                "SELECT opdbus.begin_sync($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                facts.machine,
                facts.version,
                facts.level,
                facts.numerics,
                facts.dimension,
                json.dumps(facts.observers),
                facts.first_kept,
                facts.last,
                hash_at_seq,
            )
        if found["refusal"]:
            raise AccessDenied(
                f"{found['refusal']}: add this host under a name of its own with `op-dbus fleet"
                " add`; if it replaces the other one, `op-dbus fleet accept HOST --new-machine` on"
                " the server lets it in"
            )
        self.epoch = found["epoch"]
        return int(found["after_seq"])

    async def send(
        self, changes: Sequence[ChangeRow], objects: Sequence[StateRow], remaining: int
    ) -> list[StateRow]:
        """Store changes and objects in one transaction; return objects whose vectors are wanted.

        `remaining` is the number of rows of history that follow later. Raises LimitsExceeded, with
        nothing stored, if the host is over a limit.
        """
        with postgres.translate_errors(self._url):
            async with self._connection.transaction():
                await self._stage(changes, objects)
                places = await self._connection.fetchval(
                    "SELECT opdbus.apply_batch($1, $2)",
                    self.epoch,
                    remaining,
                )
                refusal = places is None and await self._connection.fetchval(
                    "SELECT opdbus.own_refusal()"
                )
        if places is None:
            raise LimitsExceeded(
                f"the fleet takes no more of this host: {refusal}; it goes on by itself once it is"
                " below that again, or after `op-dbus fleet limit` on the server"
            )
        return [objects[place] for place in places]

    async def _stage(self, changes: Sequence[ChangeRow], objects: Sequence[StateRow]) -> None:
        # what a batch left that was rolled back is not there; of one that was cut off neither
        if changes:
            await self._connection.execute(
                "INSERT INTO opdbus.staged_change"
                " SELECT opdbus.own_host(), * FROM"
                " unnest($1::bigint[], $2::text[], $3::bytea[], $4::jsonb[])",
                [row.seq for row in changes],
                [row.chained for row in changes],
                [row.hash for row in changes],
                [json.dumps(row.details) for row in changes],
            )
        if objects:
            plugins, kinds, names, times, bodies = zip(*objects, strict=True)
            await self._connection.execute(
                "INSERT INTO opdbus.staged_object"
                " SELECT opdbus.own_host(), * FROM"
                " unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[])",
                list(range(len(objects))),
                plugins,
                kinds,
                names,
                times,
                bodies,
            )

    async def offer_vectors(self, texts: Mapping[bytes, Sequence[float]]) -> int:
        """Offer vectors by the SHA-256 of their texts; return the number that was taken."""
        with postgres.translate_errors(self._url):
            return int(
                await self._connection.fetchval(
                    "SELECT opdbus.offer_vectors($1, $2)",
                    list(texts),
                    [postgres.format_vector(vector) for vector in texts.values()],
                )
            )

    async def stored_digests(self) -> dict[tuple[str, str, str], StoredState]:
        """Return digest and source of each stored object of this host, by plugin, kind, name."""
        with postgres.translate_errors(self._url):
            rows = await self._connection.fetch("SELECT * FROM opdbus.own_digests()")
        return {
            (plugin, kind, name): StoredState(digest, sys.intern(source))
            for plugin, kind, name, digest, source in rows
        }

    async def put_drift(self, rows: Sequence[Sequence[Any]]) -> None:
        """Replace the drift: (plugin, kind, name, class, severity, since, fields) of each."""
        await self._execute("SELECT opdbus.put_drift($1)", json.dumps(rows))

    async def end_comparison(self) -> None:
        """Note that all digests were compared, and that differing states were sent."""
        await self._execute("SELECT opdbus.end_comparison()")

    async def keep_alive(self, observers: Sequence[Sequence[Any]]) -> None:
        """Note that the host is there and that all is sent."""
        await self._execute("SELECT opdbus.keep_alive($1)", json.dumps(observers))

    async def _execute(self, sql: str, *arguments: object) -> None:
        with postgres.translate_errors(self._url):
            await self._connection.execute(sql, *arguments)
