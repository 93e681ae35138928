"""Vectors that hosts computed: some are recomputed before they are published, shared ones later.

A host whose vector is not the one that a worker computes is trusted no more: all that it sent is
removed and computed by workers.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.fleet.vector_store import BATCH, Model, end_tasks, pack, publish

if TYPE_CHECKING:
    import asyncpg

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# Vectors of equal numerics are at least so near, whatever processor, runtime and precision computed
# them: by the class of precisions at the end of the numerics. The proof of an engine asks the same
# of bf16 and of int8.
LEAST_COSINES: Final = {"float": 0.999, "int8": 0.95}
_LONGEST_ERROR: Final = 0.01
_LEAST_SAMPLE: Final = 8
_OFFERS: Final = 1024
_HOSTS: Final = 20
_SENT: Final = """
SELECT sent.digest, text.text, sent.v, {own}, EXISTS (
    SELECT FROM opdbus.content JOIN opdbus.object ON object.content = content.digest
    WHERE content.text = sent.digest AND object.host <> $1) AS is_shared
FROM (SELECT digest, v FROM opdbus.{table} ORDER BY digest LIMIT $3) AS sent
LEFT JOIN opdbus.text ON text.digest = sent.digest
LEFT JOIN opdbus.vector ON vector.numerics = $2 AND vector.digest = sent.digest
ORDER BY sent.digest
"""
_OFFERED: Final = _SENT.format(
    own="vector.digest IS NOT NULL AS is_known,"
    " CASE WHEN vector.sent_by IS NULL THEN vector.v END AS own",
    table="offered_vector WHERE host = $1 AND numerics = $2",
)
_PUBLISHED: Final = _SENT.format(
    own="true AS is_known, NULL AS own",
    table="vector WHERE sent_by = $1 AND numerics = $2 AND digest > $4",
)
# Which texts are recomputed cannot be guessed.
_RANDOM: Final = random.SystemRandom()


class _Sent(NamedTuple):
    digest: bytes
    text: str
    v: NDArray[np.float32]
    is_shared: bool
    # the vector that a worker computed, if one has
    own: NDArray[np.float32] | None


class _Fault(NamedTuple):
    digest: bytes
    text: str


async def examine_offers(connection: "asyncpg.Connection", model: Model) -> int:
    """Examine a batch of vectors that a host offers; return the number of offers that it ended."""
    hosts = await connection.fetch(
        "SELECT host FROM opdbus.host WHERE EXISTS (SELECT FROM opdbus.offered_vector AS offered"
        "  WHERE offered.host = host.host AND offered.numerics = $1)"
        " ORDER BY random() LIMIT $2",
        *(model.numerics, _HOSTS),
    )
    numbers = [row["host"] for row in hosts]
    await _prepare(connection, numbers)
    for host in numbers:
        async with connection.transaction():
            if await _lock(connection, host):
                return await _examine(connection, model, host)
    return 0


async def _examine(connection: "asyncpg.Connection", model: Model, host: int) -> int:
    if await _is_faulty(connection, host):
        return await _drop_offers(connection, host)
    rows = await connection.fetch(
        _OFFERED,
        *(host, model.numerics, _OFFERS),
    )
    sent = [_read(row) for row in rows if row["text"] is not None]
    known = {row["digest"] for row in rows if row["is_known"]}
    new = [each for each in sent if each.digest not in known]
    sample = await connection.fetchval("SELECT sample FROM opdbus.fleet")
    checked = choose(new, sample)
    vectors = await model.compute([each.text for each in checked])
    compared = [(each, each.own) for each in sent if each.own is not None]
    compared += zip(checked, vectors, strict=True)
    fault = find_fault(sent, compared, least_cosine(model))
    if fault:
        await _blame(connection, host, fault)
        return len(rows)
    own = {each.digest for each in checked}
    await publish(connection, model.numerics, [each.digest for each in checked], vectors)
    taken = [each for each in new if each.digest not in own]
    given = np.array([each.v for each in taken], np.float32)
    await publish(connection, model.numerics, [each.digest for each in taken], given, host)
    digests = [row["digest"] for row in rows]
    await end_tasks(connection, model.numerics, digests)
    await connection.execute(
        "DELETE FROM opdbus.offered_vector WHERE host = $1 AND numerics = $2 AND digest = ANY($3)",
        *(host, model.numerics, digests),
    )
    log.debug("offers taken", host=host, computed=len(checked), taken=len(taken))
    return len(rows)


class Audit:
    """Recomputes published vectors of hosts, once another host has their texts, one by one."""

    def __init__(self) -> None:
        self._after: tuple[int, bytes] = (0, b"")

    async def step(self, connection: "asyncpg.Connection", model: Model) -> bool:
        """Look at the next vectors; return False at the end, after which it begins again."""
        host = await connection.fetchval(
            "SELECT sent_by FROM opdbus.vector WHERE numerics = $1 AND sent_by IS NOT NULL"
            " AND (sent_by, digest) > ($2, $3) ORDER BY sent_by, digest LIMIT 1",
            *(model.numerics, *self._after),
        )
        if host is None:
            self._after = (0, b"")
            return False
        await _prepare(connection, [host])
        async with connection.transaction():
            if await _lock(connection, host):
                await self._look(connection, model, host)
            else:
                # another worker looks at this one
                self._after = (host + 1, b"")
        return True

    async def _look(self, connection: "asyncpg.Connection", model: Model, host: int) -> None:
        after = self._after[1] if self._after[0] == host else b""
        rows = await connection.fetch(
            _PUBLISHED,
            *(host, model.numerics, BATCH, after),
        )
        self._after = (host, rows[-1]["digest"]) if rows else (host + 1, b"")
        shared = [_read(row) for row in rows if row["is_shared"] and row["text"] is not None]
        vectors = await model.compute([each.text for each in shared])
        compared = list(zip(shared, vectors, strict=True))
        if fault := find_fault(shared, compared, least_cosine(model)):
            await _blame(connection, host, fault)
            return
        await connection.execute(
            "UPDATE opdbus.vector SET v = own.v, sent_by = NULL"
            " FROM unnest($2::bytea[], $3::halfvec[]) AS own (digest, v)"
            " WHERE vector.numerics = $1 AND vector.digest = own.digest",
            *(
                model.numerics,
                [each.digest for each in shared],
                [pack(vector) for vector in vectors],
            ),
        )
        if shared:
            log.debug("audited", host=host, vectors=len(shared))


def choose(sent: Sequence[_Sent], share: float) -> list[_Sent]:
    """Return those to recompute: what other hosts have too, and some that no host can guess."""
    count = max(_LEAST_SAMPLE, round(share * len(sent)))
    drawn = set(_RANDOM.sample(range(len(sent)), min(count, len(sent))))
    return [each for place, each in enumerate(sent) if each.is_shared or place in drawn]


def least_cosine(model: Model) -> float:
    """Return how near a host's vector is to the worker's, both of this model, if it is true."""
    return LEAST_COSINES[model.engine.numerics.rpartition("/")[2]]


def find_fault(
    sent: Sequence[_Sent], compared: Sequence[tuple[_Sent, NDArray[np.float32]]], least: float
) -> _Fault | None:
    """Return the worst vector that is not of length 1, or not the one that it should be."""
    if not sent:
        return None
    lengths = np.linalg.norm(np.array([each.v for each in sent]), axis=1)
    place = int(np.argmax(np.abs(lengths - 1)))
    if abs(lengths[place] - 1) > _LONGEST_ERROR:
        return _Fault(sent[place].digest, f"has the length {lengths[place]:.3f}, not 1")
    if not compared:
        return None
    cosines = [float(each.v @ own / np.linalg.norm(each.v)) for each, own in compared]
    cosine, place = min(zip(cosines, range(len(cosines)), strict=True))
    if cosine < least:
        return _Fault(
            compared[place][0].digest,
            f"is not the one that a worker computes (cosine {cosine:.4f}, at least {least})",
        )
    return None


def _read(row: Any) -> _Sent:  # noqa: ANN401 -- a record
    return _Sent(row["digest"], row["text"], row["v"], row["is_shared"], row["own"])


async def _prepare(connection: "asyncpg.Connection", hosts: Sequence[int]) -> None:
    """Add the rows that `_lock` locks; not in its transaction, where others would wait for it."""
    await connection.execute(
        "INSERT INTO opdbus.examination SELECT host FROM opdbus.host WHERE host = ANY($1)"
        " AND NOT EXISTS (SELECT FROM opdbus.examination AS own WHERE own.host = host.host)"
        " ORDER BY host ON CONFLICT DO NOTHING",
        hosts,
    )


async def _lock(connection: "asyncpg.Connection", host: int) -> bool:
    """Have one worker at a time look at a host's vectors; return False if another one does."""
    row = "SELECT 1 FROM opdbus.examination WHERE host = $1 FOR UPDATE SKIP LOCKED"
    return bool(await connection.fetchval(row, host))


async def _is_faulty(connection: "asyncpg.Connection", host: int) -> bool:
    fault = "SELECT vector_fault IS NOT NULL FROM opdbus.host WHERE host = $1"
    return bool(await connection.fetchval(fault, host))


async def _drop_offers(connection: "asyncpg.Connection", host: int) -> int:
    status = await connection.execute("DELETE FROM opdbus.offered_vector WHERE host = $1", host)
    return int(status.split()[-1])


async def _blame(connection: "asyncpg.Connection", host: int, fault: _Fault) -> None:
    """Note why a host's vectors are not taken, remove them, and queue their texts."""
    text = f"the vector of text {fault.digest.hex()[:16]} {fault.text}"
    name = await connection.fetchval(
        "UPDATE opdbus.host SET vector_fault = coalesce(vector_fault, $2),"
        " vector_fault_at = coalesce(vector_fault_at, now()) WHERE host = $1 RETURNING name",
        *(host, text),
    )
    await _drop_offers(connection, host)
    removed = await connection.fetchval(
        "WITH removed AS ("
        "  DELETE FROM opdbus.vector WHERE sent_by = $1 RETURNING numerics, digest),"
        " queued AS (INSERT INTO opdbus.embedding_task (numerics, digest)"
        "  SELECT removed.numerics, digest FROM removed"
        "  JOIN opdbus.fleet ON removed.numerics IN (wanted, serving)"
        "  ORDER BY digest ON CONFLICT DO NOTHING)"
        " SELECT count(*) FROM removed",
        host,
    )
    log.warning("false vectors", host=name, reason=text, removed=removed)
