"""Housekeeping of the fleet's database: removes rows that no host needs and rows of old history.

It walks over the tables in small steps, so that a worker does one whenever it has nothing to do.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from opdbus.fleet.fleet_level import drop_unused
from opdbus.fleet.vector_store import queue_missing

if TYPE_CHECKING:
    import asyncpg

# Rows that a step looks at, and hosts whose history it does.
_ROWS: Final = 2000
_HOSTS: Final = 50
# A batch of a host writes texts first, then contents, then objects: with this lock none is under
# way, so that what nobody has stays so. Later batches wait for it, hence only for a moment.
_ALONE: Final = "SET LOCAL lock_timeout = '2s'; LOCK TABLE opdbus.text IN SHARE ROW EXCLUSIVE MODE"
_UNUSED_CONTENT: Final = (
    "NOT EXISTS (SELECT FROM opdbus.object WHERE object.content = content.digest)"
)
# Workers still have the texts of tasks that are locked.
_UNUSED_TEXT: Final = (
    "NOT EXISTS (SELECT FROM opdbus.content WHERE content.text = text.digest)"
    " AND NOT EXISTS (SELECT FROM opdbus.embedding_task AS task WHERE task.digest = text.digest"
    "  AND task.numerics = ANY(ARRAY(SELECT numerics FROM opdbus.numerics)))"
)
_LOOK: Final = """
SELECT digest, {is_unused} AS is_unused
FROM (SELECT digest FROM opdbus.{table} WHERE digest > $1 ORDER BY digest LIMIT $2) AS {table}
ORDER BY digest
"""
_REMOVE: Final = "DELETE FROM opdbus.{table} WHERE digest = ANY($1) AND {is_unused}"
_OLD_ROWS: Final = """
SELECT epoch.host, epoch.epoch, old.seq, old.hash
FROM (SELECT host, epoch FROM opdbus.epoch WHERE host > $1 AND host <= $2) AS epoch
CROSS JOIN LATERAL (
  SELECT seq, hash FROM (
    SELECT seq, hash, bool_and(at < $3) OVER (ORDER BY seq) AS is_old FROM (
      SELECT seq, hash, at FROM opdbus.change
      WHERE host = epoch.host AND epoch = epoch.epoch ORDER BY seq LIMIT $4) AS first
  ) AS marked WHERE is_old ORDER BY seq DESC LIMIT 1) AS old
"""


class Housekeeping:
    """One walk over all tables after the other, a step at a time."""

    def __init__(self, connection: "asyncpg.Connection") -> None:
        self._connection = connection
        self._phases: list[Callable[[], Awaitable[bool]]] = [
            self._contents,
            self._texts,
            self._vectors,
            self._history,
            self._models,
        ]
        self._phase = 0
        self._after: Any = None

    async def step(self) -> bool:
        """Do a bounded piece of work; return False at the end of a walk."""
        if await self._phases[self._phase]():
            return True
        self._after = None
        self._phase = (self._phase + 1) % len(self._phases)
        return self._phase > 0

    async def _contents(self) -> bool:
        unused = await self._look("content", _UNUSED_CONTENT)
        if unused:
            await self._remove("content", _UNUSED_CONTENT, unused)
        return unused is not None

    async def _texts(self) -> bool:
        unused = await self._look(
            "text", "NOT EXISTS (SELECT FROM opdbus.content WHERE content.text = text.digest)"
        )
        if unused:
            await self._connection.execute(
                "DELETE FROM opdbus.embedding_task AS task USING ("
                " SELECT numerics, digest FROM opdbus.embedding_task"
                " WHERE numerics = ANY(ARRAY(SELECT numerics FROM opdbus.numerics))"
                " AND digest = ANY($1) FOR UPDATE SKIP LOCKED) AS free"
                " WHERE (task.numerics, task.digest) = (free.numerics, free.digest)",
                unused,
            )
            await self._remove("text", _UNUSED_TEXT, unused)
        return unused is not None

    async def _vectors(self) -> bool:
        """Remove the vectors of texts that are gone."""
        model, digest = self._after or (0, b"")
        rows = await self._connection.fetch(
            "SELECT numerics, digest FROM opdbus.vector WHERE (numerics, digest) > ($1, $2)"
            " ORDER BY numerics, digest LIMIT $3",
            *(model, digest, _ROWS),
        )
        if not rows:
            return False
        self._after = (rows[-1]["numerics"], rows[-1]["digest"])
        await self._connection.execute(
            "DELETE FROM opdbus.vector USING unnest($1::smallint[], $2::bytea[]) AS seen (n, d)"
            " WHERE numerics = n AND digest = d"
            " AND NOT EXISTS (SELECT FROM opdbus.text WHERE text.digest = d)",
            *([row["numerics"] for row in rows], [row["digest"] for row in rows]),
        )
        return True

    async def _history(self) -> bool:
        """Remove rows of history and checkpoints that are older than kept, of some hosts."""
        first = self._after or 0
        last = await self._connection.fetchval(
            "SELECT max(host) FROM (SELECT host FROM opdbus.host WHERE host > $1"
            " ORDER BY host LIMIT $2) AS next",
            *(first, _HOSTS),
        )
        if last is None:
            return False
        before = await self._connection.fetchval(
            "SELECT (extract(epoch FROM now() - keep_days * interval '1 day') * 1000000)::bigint"
            " FROM opdbus.fleet"
        )
        old = await self._connection.fetch(_OLD_ROWS, first, last, before, _ROWS // 2)
        for row in old:
            async with self._connection.transaction():
                await self._connection.execute(
                    "UPDATE opdbus.epoch SET pruned_seq = $3, pruned_hash = $4"
                    " WHERE host = $1 AND epoch = $2 AND pruned_seq < $3",
                    *row,
                )
                await self._connection.execute(
                    "DELETE FROM opdbus.change WHERE host = $1 AND epoch = $2 AND seq <= $3",
                    *tuple(row)[:3],
                )
        # the last of each day stays
        await self._connection.execute(
            "DELETE FROM opdbus.checkpoint AS old WHERE host > $1 AND host <= $2"
            " AND at < now() - interval '2 days' AND EXISTS ("
            "  SELECT FROM opdbus.checkpoint AS later WHERE later.host = old.host"
            "  AND later.epoch = old.epoch AND later.seq > old.seq"
            "  AND later.at < date_trunc('day', old.at) + interval '1 day')",
            *(first, last),
        )
        if not old:
            self._after = last
        return True

    async def _models(self) -> bool:
        wanted = await self._connection.fetchval("SELECT wanted FROM opdbus.fleet")
        if wanted is not None:
            # of a batch that began before the level was wanted
            await queue_missing(self._connection, wanted)
        return await drop_unused(self._connection)

    async def _look(self, table: str, is_unused: str) -> list[bytes] | None:
        """Return those of the next rows that are unused; None at the end of the table."""
        rows = await self._connection.fetch(
            _LOOK.format(table=table, is_unused=is_unused), self._after or b"", _ROWS
        )
        if not rows:
            return None
        self._after = rows[-1]["digest"]
        return [row["digest"] for row in rows if row["is_unused"]]

    async def _remove(self, table: str, is_unused: str, digests: list[bytes]) -> None:
        async with self._connection.transaction():
            await self._connection.execute(_ALONE)
            await self._connection.execute(
                _REMOVE.format(table=table, is_unused=is_unused), digests
            )
