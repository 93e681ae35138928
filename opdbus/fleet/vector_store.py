"""Vectors in the fleet's database: the queue of texts that lack one, and publishing."""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.engine.embedder import Embedder

if TYPE_CHECKING:
    import asyncpg

log: structlog.stdlib.BoundLogger = structlog.get_logger()

BATCH: Final = 256
# Digests are in ascending order wherever rows are inserted, so that no two transactions deadlock.
_CLAIM: Final = """
WITH task AS MATERIALIZED (
  SELECT digest FROM opdbus.embedding_task WHERE numerics = $1 AND {which}
  FOR UPDATE SKIP LOCKED)
SELECT task.digest, text.text, vector.digest IS NULL AS is_wanted FROM task
LEFT JOIN opdbus.text ON text.digest = task.digest
LEFT JOIN opdbus.vector ON vector.numerics = $1 AND vector.digest = task.digest
ORDER BY task.digest
"""
_DUE: Final = _CLAIM.format(
    which="not_before <= now() AND $2::bytea[] IS NULL ORDER BY not_before LIMIT $3"
)
_NAMED: Final = _CLAIM.format(which="digest = ANY($2) LIMIT $3")
_HALF: Final = struct.Struct("!hh")
# A worker whose machine froze loses its batch to the others after this time.
_FROZEN: Final = "10min"


class Model(NamedTuple):
    """An open engine and the number of its numerics in the database."""

    engine: Embedder
    numerics: int

    async def compute(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts, as a row each, of length 1."""
        if not texts:
            return np.zeros((0, self.engine.dimension), np.float32)
        return await self.engine.run(await self.engine.tokenize(texts))


async def prepare(connection: "asyncpg.Connection") -> None:
    """Have a connection take vectors as `pack` returns them, and end where its worker froze.

    They are received as arrays.
    """
    await connection.set_type_codec(
        "halfvec", schema="public", encoder=bytes, decoder=_unpack, format="binary"
    )
    await connection.execute(f"SET idle_in_transaction_session_timeout = '{_FROZEN}'")
    # a host may hold a lock on its own row as long as it likes
    await connection.execute("SET lock_timeout = '5s'")


async def register(connection: "asyncpg.Connection", engine: Embedder) -> Model:
    """Return an engine with the number of its numerics, which are added where they are new."""
    number = await connection.fetchval(
        "SELECT opdbus.add_numerics($1, $2, $3)", engine.numerics, engine.level, engine.dimension
    )
    return Model(engine, number)


async def embed_tasks(
    connection: "asyncpg.Connection", model: Model, digests: Sequence[bytes] | None = None
) -> int:
    """Compute one batch of the queue, or of these digests; return the number of tasks it ended.

    Its tasks are locked until the vectors are stored: other workers pass over them, and have them
    if this one is killed.
    """
    async with connection.transaction():
        tasks = await connection.fetch(
            *(_DUE if digests is None else _NAMED, model.numerics, digests),
            BATCH if digests is None else len(digests),
        )
        # texts that nobody has any more, or that have a vector, need none
        wanted = [task for task in tasks if task["is_wanted"] and task["text"] is not None]
        vectors = await model.compute([task["text"] for task in wanted])
        if wanted:
            log.debug("computed", texts=len(wanted), first=wanted[0]["digest"].hex()[:12])
        await publish(connection, model.numerics, [task["digest"] for task in wanted], vectors)
        await connection.execute(
            "DELETE FROM opdbus.embedding_task WHERE numerics = $1 AND digest = ANY($2)",
            *(model.numerics, [task["digest"] for task in tasks]),
        )
    return len(tasks)


async def publish(
    connection: "asyncpg.Connection",
    numerics: int,
    digests: Sequence[bytes],
    vectors: NDArray[np.float32],
    sent_by: int | None = None,
) -> None:
    """Store vectors of texts that have none; `sent_by` is the host that computed them."""
    order = sorted(range(len(digests)), key=digests.__getitem__)
    await connection.execute(
        "INSERT INTO opdbus.vector (numerics, digest, v, sent_by)"
        " SELECT $1, digest, v, $4 FROM unnest($2::bytea[], $3::halfvec[]) AS given (digest, v)"
        " ON CONFLICT DO NOTHING",
        *(numerics, [digests[place] for place in order], [pack(vectors[place]) for place in order]),
        sent_by,
    )


async def end_tasks(
    connection: "asyncpg.Connection", numerics: int, digests: Sequence[bytes]
) -> None:
    """Delete the tasks of texts that have vectors; a worker ends those that it computes itself."""
    await connection.execute(
        "DELETE FROM opdbus.embedding_task AS task USING ("
        " SELECT digest FROM opdbus.embedding_task WHERE numerics = $1 AND digest = ANY($2)"
        " FOR UPDATE SKIP LOCKED) AS free"
        " WHERE task.numerics = $1 AND task.digest = free.digest",
        *(numerics, digests),
    )


async def queue_missing(connection: "asyncpg.Connection", numerics: int) -> int:
    """Queue all texts that have neither a vector nor a task; return their number."""
    status = await connection.execute(
        "INSERT INTO opdbus.embedding_task (numerics, digest)"
        " SELECT $1, digest FROM opdbus.text"
        " WHERE NOT EXISTS (SELECT FROM opdbus.vector"
        "  WHERE vector.numerics = $1 AND vector.digest = text.digest)"
        " AND NOT EXISTS (SELECT FROM opdbus.embedding_task AS task"
        "  WHERE task.numerics = $1 AND task.digest = text.digest)"
        " ORDER BY digest ON CONFLICT DO NOTHING",
        numerics,
    )
    return int(status.split()[-1])


def pack(vector: NDArray[np.float32]) -> bytes:
    """Return a vector as pgvector's halfvec_recv reads it."""
    values = vector.astype(">f2")
    return _HALF.pack(len(values), 0) + values.tobytes()


def _unpack(data: bytes) -> NDArray[np.float32]:
    return np.frombuffer(data, ">f2", offset=_HALF.size).astype(np.float32)
