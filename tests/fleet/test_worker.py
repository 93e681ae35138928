"""Workers: the queue, vectors that hosts offer, liars, and another level."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from harness.fleet_hosts import until
from harness.fleet_workers import computed, states, sync, with_model, work
from harness.fleets import facts

from opdbus.fleet import fleet_level, postgres, vector_audit, vector_store
from opdbus.fleet.worker import Worker

if TYPE_CHECKING:
    from harness.fleets import FleetDatabase

    from opdbus.config import Config
    from opdbus.fleet.vector_store import Model

VECTORS = "SELECT count(*) FROM opdbus.vector"
TASKS = "SELECT count(*) FROM opdbus.embedding_task"
FAULTS = "SELECT name FROM opdbus.host WHERE vector_fault IS NOT NULL"


def test_a_worker_computes_what_is_missing(database: FleetDatabase, static: Config) -> None:
    """Bring the first level, and compute the texts of hosts that were there before it."""
    host = database.add("web1")

    async def send() -> None:
        async with database.uplink(host) as uplink:
            await uplink.begin(facts(host), None)
            await uplink.send([], states(600), 0)

    asyncio.run(send())
    work(database, static)
    assert database.fetch(VECTORS) == [(600,)]
    assert database.fetch(TASKS) == [(0,)]
    assert computed(database, static)
    progress = database.run(fleet_level.read_progress)
    assert progress == ("static", "static", 600, 600)


def test_honest_vectors_are_taken(database: FleetDatabase, static: Config) -> None:
    """Publish what an honest host computed, of which a worker computes a sample."""
    web1, web2 = database.add("web1"), database.add("web2")
    work(database, static)
    assert sync(database, static, web1, states(300)) == 300
    work(database, static)
    own = "SELECT count(*) FROM opdbus.vector WHERE sent_by IS NULL"
    assert database.fetch(VECTORS) == [(300,)]
    assert database.fetch(own) == [(15,)], "a twentieth"
    assert database.fetch(TASKS) == [(0,)]
    assert database.fetch("SELECT count(*) FROM opdbus.offered_vector") == [(0,)]
    # once another host has them, all that both have is computed by a worker
    assert sync(database, static, web2, states(200)) == 0
    work(database, static)
    ((shared,),) = database.fetch(own)
    assert 200 <= shared <= 215
    assert computed(database, static)
    assert database.fetch(FAULTS) == []


LIES = {
    "all": lambda _, vector: np.roll(vector, 1),
    "one in fifty": lambda number, vector: np.roll(vector, 1) if number % 50 == 7 else vector,
    "too long": lambda _, vector: vector * 30,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_found(database: FleetDatabase, static: Config, lie: str) -> None:
    """Publish nothing of a host with a false vector; honest hosts stay, and texts are computed."""
    honest, liar = database.add("honest"), database.add("liar")
    work(database, static)
    # another host has the texts, so that every one is looked at
    sync(database, static, honest, states(300), lambda _, vector: vector)
    database.run(lambda each: each.execute("DELETE FROM opdbus.offered_vector"))
    assert sync(database, static, liar, states(300), LIES[lie], all_=True) == 300
    work(database, static)
    assert database.fetch(FAULTS) == [(liar,)]
    assert database.fetch("SELECT count(*) FROM opdbus.vector WHERE sent_by IS NOT NULL") == [(0,)]
    assert sync(database, static, liar, states(300), LIES[lie], all_=True) == 0
    database.run(lambda each: each.execute("UPDATE opdbus.embedding_task SET not_before = now()"))
    work(database, static)
    assert database.fetch(VECTORS) == [(300,)]
    assert computed(database, static)


def test_vectors_of_other_texts_are_found(database: FleetDatabase, static: Config) -> None:
    """Find a host that offers true vectors, but of other texts."""
    liar = database.add("liar")
    work(database, static)
    shuffled: list[np.ndarray] = []

    def swap(_number: int, vector: np.ndarray) -> np.ndarray:
        shuffled.append(vector)
        return shuffled[-2] if len(shuffled) > 1 else vector

    sync(database, static, liar, states(100), swap)
    work(database, static)
    assert database.fetch(FAULTS) == [(liar,)]
    assert database.fetch(VECTORS) == [(0,)]


def test_a_false_vector_that_was_published_is_found(
    database: FleetDatabase, static: Config
) -> None:
    """Remove all that a host sent, once a vector of it that another host needs is false."""
    liar, honest = database.add("liar"), database.add("honest")
    work(database, static)
    sync(database, static, liar, states(400))
    work(database, static)

    async def falsify(connection: Any, _model: Model) -> None:
        # the sample did not hit this one
        await connection.execute(
            "UPDATE opdbus.vector SET v = (SELECT v FROM opdbus.vector WHERE sent_by IS NULL"
            " LIMIT 1) WHERE digest = (SELECT digest FROM opdbus.vector WHERE sent_by IS NOT NULL"
            " LIMIT 1)"
        )

    with_model(database, static, falsify)
    assert not computed(database, static)
    sync(database, static, honest, states(400))
    work(database, static)
    assert database.fetch(FAULTS) == [(liar,)]
    assert database.fetch(VECTORS) == [(400,)]
    assert database.fetch("SELECT count(*) FROM opdbus.vector WHERE sent_by IS NOT NULL") == [(0,)]
    assert computed(database, static)


def test_a_busy_worker_audits_and_tidies_up(database: FleetDatabase, static: Config) -> None:
    """Give the audit, then housekeeping, every tenth round while the queue is never empty."""
    liar, honest = database.add("liar"), database.add("honest")
    work(database, static)
    sync(database, static, liar, states(100))
    work(database, static)
    gone = states(1, "gone")
    sync(database, static, honest, [*states(100), *gone])
    sync(database, static, honest, [gone[0]._replace(body=None)])
    looks = {
        "audit": "SELECT vector_fault IS NOT NULL FROM opdbus.host WHERE name = 'liar'",
        "housekeeping": "SELECT NOT EXISTS (SELECT FROM opdbus.content WHERE name = 'gone0')",
    }
    rounds: dict[str, int] = {}

    async def run(connection: Any) -> None:
        worker = Worker(static, database.server.url, database.server.password)
        await worker._begin(connection)
        await connection.execute(
            "UPDATE opdbus.vector SET v = (SELECT v FROM opdbus.vector WHERE sent_by IS NULL"
            " LIMIT 1) WHERE digest = (SELECT digest FROM opdbus.vector WHERE sent_by IS NOT NULL"
            " LIMIT 1)"
        )
        for number in range(1, 61):
            # a task without a text costs nothing
            await connection.execute(
                "INSERT INTO opdbus.embedding_task (numerics, digest)"
                " SELECT wanted, sha256($1::text::bytea) FROM opdbus.fleet",
                str(number),
            )
            assert await worker._round(connection)
            for name, sql in looks.items():
                if name not in rounds and await connection.fetchval(sql):
                    rounds[name] = number
        await worker._stack.aclose()

    database.run(run)
    assert rounds["audit"] == 10
    assert rounds["audit"] < rounds["housekeeping"] <= 60
    ((left,),) = database.fetch(TASKS)
    assert left <= 1, "other work goes on between"


def test_a_host_that_holds_a_lock_stops_no_worker(database: FleetDatabase, static: Config) -> None:
    """Compute the queue while a liar keeps its own row locked, and note the fault afterwards."""
    liar, honest = database.add("liar"), database.add("honest")
    work(database, static)
    sync(database, static, liar, states(100), LIES["all"])
    sync(database, static, honest, states(600, "own"), lambda _, vector: vector)
    database.run(
        lambda each: each.execute(
            "DELETE FROM opdbus.offered_vector USING opdbus.host"
            " WHERE offered_vector.host = host.host AND name = 'honest';"
            "UPDATE opdbus.embedding_task SET not_before = now()"
        )
    )
    worker = Worker(static, database.server.url, database.server.password)
    stopped = asyncio.Event()

    async def run(connection: Any) -> None:
        await worker._begin(connection)
        assert await connection.fetchval("SHOW lock_timeout") == "5s"
        await connection.execute("SET lock_timeout = '50ms'")
        async with postgres.connected(database.server.url, database.server.password) as holder:
            async with holder.transaction():
                await holder.execute("SELECT FROM opdbus.host WHERE name = 'liar' FOR UPDATE")
                working = asyncio.create_task(worker._work(connection, stopped, once=True))
                await until(lambda: holder.fetchval(TASKS), 0)
                assert await holder.fetchval(VECTORS) == 700
                assert not await holder.fetch(FAULTS)
            await working
        await worker._stack.aclose()

    database.run(run)
    assert database.fetch(FAULTS) == [(liar,)]
    assert computed(database, static)


def test_which_vectors_are_looked_at() -> None:
    """Look at no fewer than eight, and at all that another host has too."""
    vector = np.zeros(2, np.float32)
    few = [vector_audit._Sent(bytes([n]), "", vector, is_shared=False, own=None) for n in range(5)]
    assert len(vector_audit.choose(few, 0.05)) == 5
    many = [
        vector_audit._Sent(bytes([n // 256, n % 256]), "", vector, is_shared=n < 100, own=None)
        for n in range(1000)
    ]
    drawn = [{each.digest for each in vector_audit.choose(many, 0.05)} for _ in range(2)]
    assert all(len(each) >= 100 for each in drawn)
    assert drawn[0] != drawn[1]


def test_another_level_serves_when_it_is_whole(
    database: FleetDatabase, static: Config, settings: Config
) -> None:
    """Keep the level before until all vectors of the wanted one are there; then remove it."""
    host = database.add("web1")
    work(database, static)
    sync(database, static, host, states(300))
    work(database, static)
    with_model(database, settings, fleet_level.want)
    assert database.run(fleet_level.read_progress) == ("static", "medium", 0, 300)

    async def some(connection: Any, model: Model) -> int:
        return await vector_store.embed_tasks(connection, model)

    assert with_model(database, settings, some) == vector_store.BATCH
    assert database.run(fleet_level.read_progress).serving == "static"
    work(database, settings)
    assert database.run(fleet_level.read_progress) == ("medium", "medium", 300, 300)
    # the host still has the level before
    assert database.fetch(VECTORS) == [(600,)]
    database.run(lambda each: each.execute("UPDATE opdbus.host SET numerics = NULL"))
    work(database, settings)
    assert database.fetch(VECTORS) == [(300,)]
    assert database.fetch("SELECT level FROM opdbus.numerics") == [("medium",)]


def test_a_worker_follows_the_wanted_level(
    database: FleetDatabase, static: Config, settings: Config
) -> None:
    """Open the model that the fleet wants, not the configured one; a given level stays."""
    host = database.add("web1")
    work(database, settings)
    sync(database, settings, host, states(20))
    work(database, settings)
    with_model(database, static, fleet_level.want)
    work(database, settings, "medium")
    assert database.run(fleet_level.read_progress) == ("medium", "static", 0, 20)
    work(database, settings)
    assert database.run(fleet_level.read_progress) == ("static", "static", 20, 20)


def test_what_nobody_has_is_removed(database: FleetDatabase, static: Config) -> None:
    """Remove contents, texts and vectors that no host has any more, and nothing else."""
    web1, web2 = database.add("web1"), database.add("web2")
    work(database, static)
    sync(database, static, web1, [*states(50), *states(50, "own")])
    sync(database, static, web2, states(50))
    work(database, static)
    gone = [row._replace(body=None) for row in [*states(50), *states(50, "own")]]
    sync(database, static, web1, gone, all_=False)
    work(database, static)
    for table in ("content", "text", "vector"):
        assert len(database.fetch(f"TABLE opdbus.{table}")) == 50, table


def test_a_worker_role_is_enough(database: FleetDatabase, static: Config) -> None:
    """Do all of it as a role in opdbus_worker."""
    host = database.add("web1")
    database.run(
        lambda each: each.execute("CREATE ROLE w LOGIN PASSWORD 'w' IN ROLE opdbus_worker")
    )
    url = database.server.url.replace("opdbus_admin", "w", 1)
    run = Worker(static, url, "w").run
    asyncio.run(run(once=True))
    sync(database, static, host, states(300))
    sync(database, static, host, [states(300)[0]._replace(body=None)])
    asyncio.run(Worker(static, url, "w").run(once=True))
    assert database.fetch(VECTORS) == [(299,)]

    async def refused() -> None:
        async with postgres.connected(url, "w") as connection:
            await connection.execute("DELETE FROM opdbus.object")

    with pytest.raises(Exception, match="permission denied"):
        asyncio.run(refused())


def test_old_checkpoints_are_thinned(database: FleetDatabase, static: Config) -> None:
    """Keep the last checkpoint of each day, and all of the last two days."""
    database.add("web1")
    database.run(
        lambda each: each.execute(
            "INSERT INTO opdbus.checkpoint (host, epoch, seq, hash, at)"
            " SELECT 1, 1, number, ''::bytea,"
            "  date_trunc('day', now()) - interval '5 days' + number * interval '6 hours'"
            " FROM generate_series(0, 19) AS number"
        )
    )
    work(database, static)
    kept = [seq for (seq,) in database.fetch("SELECT seq FROM opdbus.checkpoint ORDER BY 1")]
    # of the days before yesterday the last ones, at 18 h
    assert kept[:2] == [3, 7]
    assert {11, 15, 16, 17, 18, 19} <= set(kept)
    assert not {0, 1, 2, 4, 5, 6, 8, 9, 10} & set(kept[:2])
    assert database.run(fleet_level.read_progress).total == 0


def test_two_workers_have_different_batches(database: FleetDatabase, static: Config) -> None:
    """Pass over the tasks that another worker computes, and leave them to others if it dies."""
    host = database.add("web1")
    work(database, static)
    sync(database, static, host, states(400), lambda _, vector: vector)
    database.run(
        lambda each: each.execute(
            "DELETE FROM opdbus.offered_vector; UPDATE opdbus.embedding_task SET not_before = now()"
        )
    )

    async def run(connection: Any, model: Model) -> tuple[int, int, int]:
        async with postgres.connected(database.server.url, database.server.password) as other:
            await vector_store.prepare(other)
            transaction = other.transaction()
            await transaction.start()
            first = await vector_store.embed_tasks(other, model)
            second = await vector_store.embed_tasks(connection, model)
            await transaction.rollback()
        return first, second, await vector_store.embed_tasks(connection, model)

    assert with_model(database, static, run) == (256, 144, 256)
    assert database.fetch(VECTORS) == [(400,)]


def test_vectors_of_other_precisions_are_no_lies() -> None:
    """Take int8 as other runtimes compute it; say nothing of 16-bit floats, and find the rest."""
    own = np.array([1, 0], np.float32)

    def fault(cosine: float, least: float) -> bool:
        vector = np.array([cosine, (1 - cosine**2) ** 0.5], np.float32)
        sent = vector_audit._Sent(b"", "", vector, is_shared=True, own=None)
        return vector_audit.find_fault([sent], [(sent, own)], least) is not None

    bounds = vector_audit.LEAST_COSINES
    # measured on 2026-11-28: bf16 with fp32, int8 of two runtimes
    assert not fault(0.99993, bounds["float"])
    assert not fault(0.9868, bounds["int8"])
    assert fault(0.9868, bounds["float"])
    assert fault(0.9, bounds["int8"])
