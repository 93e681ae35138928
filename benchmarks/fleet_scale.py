"""Questions over ten thousand hosts, whose rows are written by SQL straight into a database.

`python benchmarks/fleet_scale.py [--hosts 10000] [--objects 300] [--changes 200] [--folder DIR]
[--json FILE]`: with a folder, the database is kept there, and a second run only asks. Each question
has a process of its own, whose memory is measured; the statements of its last run are planned again
for the time of planning. The fleet has no vectors: searches compare words.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from harness import parse, say, write

from opdbus.fleet import host_overview, housekeeping, postgres
from opdbus.fleet.embedded_server import EmbeddedServer
from opdbus.fleet.questions import (
    fleet_changes,
    fleet_comparison,
    fleet_drift,
    fleet_search,
    one_object,
    past_search,
    peers,
)
from opdbus.fleet.questions.fleet_scope import Scope

if TYPE_CHECKING:
    from asyncpg.connection import LoggedQuery

_DAY: Final = 86_400_000_000
_ROLES: Final = 20
# Objects of a host that no other host has in the same state: one in twenty.
_OWN: Final = 0.05
_HOSTS_A_STEP: Final = 500
_INDEXES: Final = ("object_content", "object_name", "change_at", "change_object", "change_words")

# Contents: a package of every host has two versions; those of a role have one; own ones differ in
# an identity (a third each), in their name, or in a value.
_CONTENTS: Final = """
CREATE UNLOGGED TABLE opdbus.made AS
WITH shared AS (
  SELECT -1 AS host, n, version, CASE WHEN n % 3 = 0 THEN 'systemd' ELSE 'packages' END AS plugin,
    CASE WHEN n % 3 = 0 THEN 'unit' ELSE 'package' END AS kind,
    CASE WHEN n % 3 = 0 THEN 'program' || n || '.service' ELSE 'program' || n END AS name,
    CASE WHEN n % 3 = 0 THEN jsonb_build_object('active_state',
      CASE version WHEN 1 THEN 'failed' ELSE 'active' END, 'description', 'Runs program' || n)
      ELSE jsonb_build_object('version', '1.' || n || '.' || version) END AS observed
  FROM generate_series(0, $1 - 1) AS n, generate_series(1, 2) AS version
), own AS (
  SELECT h AS host, n, 1 AS version, 'network' AS plugin,
    CASE n % 3 WHEN 0 THEN 'interface' WHEN 1 THEN 'address' ELSE 'mount' END AS kind,
    CASE n % 3 WHEN 0 THEN 'lan' || n WHEN 1 THEN '10.' || h / 250 || '.' || h % 250 || '.' || n
      ELSE '/srv/data' || n END AS name,
    CASE n % 3 WHEN 0 THEN jsonb_build_object('mtu', 1500, 'mac',
        regexp_replace('02' || lpad(to_hex(h * 100 + n), 10, '0'), '(..)(?!$)', '\\1:', 'g'))
      WHEN 1 THEN jsonb_build_object('up', true)
      ELSE jsonb_build_object('size', h * 1000 + n) END AS observed
  FROM generate_series(1, $2) AS h, generate_series(1, $3) AS n
)
SELECT *, sha256(convert_to(concat_ws('/', host, plugin, kind, name, version), 'UTF8')) AS digest,
  CASE kind WHEN 'unit' THEN 'systemd service ' || name || ': runs program' || n
    WHEN 'package' THEN 'software package ' || name || ' version 1.' || n || '.' || version
    ELSE kind || ' ' || name || ' ' || observed::text END AS text
FROM (SELECT * FROM shared UNION ALL SELECT * FROM own) AS each
"""
# A text's and a content's digests are one here: both are only keys.
_FILL: Final = (
    "INSERT INTO opdbus.text SELECT digest, text, opdbus.words(text) FROM opdbus.made",
    """INSERT INTO opdbus.content (digest, plugin, kind, name, source, observed, text, terms)
    SELECT digest, plugin, kind, name, 'live:scale', observed, digest, opdbus.terms(observed)
    FROM opdbus.made""",
    "CREATE INDEX made_key ON opdbus.made (host, n, version)",
    "ANALYZE opdbus.made",
)
_HOSTS: Final = """
INSERT INTO opdbus.host (name, role, tags, machine, seen_at, current_at, compared_at, epoch, seq,
  version, level, objects, drifted)
SELECT 'host' || h, 'opdbus_host' || h, ARRAY['role' || h % 20, 'all'], 'machine' || h,
  now(), now() - h * interval '1 ms', now(), 1, $2, '1', 'static', $3, h % 2
FROM generate_series(1, $1) AS h
"""
# Each host has the packages of all and those of its role; one in thirty has another version of
# each, and one in five hundred lacks it.
_OBJECTS: Final = """
INSERT INTO opdbus.object
SELECT h, plugin, kind, name, digest, $4::bigint
FROM generate_series($1::int, $2::int) AS h
CROSS JOIN LATERAL (
  SELECT n FROM generate_series(0, $3::int * 2 / 3 - 1) AS n
  UNION ALL SELECT $3 * 2 / 3 + (h % 20) * ($3 / 3) + n FROM generate_series(0, $3 / 3 - 1) AS n
) AS wanted
JOIN opdbus.made ON made.host = -1 AND made.n = wanted.n
  AND version = CASE WHEN hashint8(h::bigint * 7919 + wanted.n) % 30 = 0 THEN 1 ELSE 2 END
WHERE hashint8(h::bigint * 104729 + wanted.n) % 500 <> 0
UNION ALL
SELECT host, plugin, kind, name, digest, $4 FROM opdbus.made
WHERE host BETWEEN $1 AND $2
"""
# Changes set objects to their present states, one in forty an own one, hardly any object twice.
_CHANGES: Final = """
INSERT INTO opdbus.change
SELECT h, 1, s, $4::bigint - ($3 - s) * (90 * 86400000000 / $3) - h * 1000, 'boot', 'live:scale',
  made.plugin, made.kind, made.name, 'changed',
  CASE WHEN s % 10 = 0 THEN 'packages:apt' ELSE '' END, 0, repeat('00', 32), made.digest,
  CASE made.kind
    WHEN 'unit' THEN jsonb_build_array(jsonb_build_array('active_state', '"activating"',
      (observed->'active_state')::text))
    WHEN 'package' THEN jsonb_build_array(jsonb_build_array('version', '"1.0"',
      (observed->'version')::text))
    ELSE jsonb_build_array(jsonb_build_array('size', '1', (observed->'size')::text)) END,
  CASE made.kind
    WHEN 'unit' THEN made.name || ': activating -> ' || (observed->>'active_state')
    WHEN 'package' THEN 'package ' || made.name || ': 1.0 -> ' || (observed->>'version')
    ELSE 'mount ' || made.name || ': size 1 -> ' || (observed->>'size') END,
  'info', '{}'
FROM generate_series($1::int, $2::int) AS h
CROSS JOIN generate_series(1, $3::int) AS s
CROSS JOIN LATERAL (
  SELECT CASE WHEN s % 40 = 0 THEN h ELSE -1 END AS host,
    CASE WHEN s % 40 = 0 THEN s / 40 * 3 - 1 ELSE s * 7 % ($5::int * 2 / 3) END AS n
) AS place
JOIN opdbus.made ON made.host = place.host AND made.n = place.n
  AND version = CASE WHEN place.host > 0
    OR hashint8(h::bigint * 7919 + place.n) % 30 = 0 THEN 1 ELSE 2 END
"""
_DRIFT: Final = """
INSERT INTO opdbus.drift
SELECT h, 'systemd', 'unit', 'program' || (h % 30) * 3 || '.service', 'changed', 'warning',
  1700000000, '[["active_state", "\\"active\\"", "\\"failed\\"", "warning"]]'
FROM generate_series(1, $1, 2) AS h
"""


async def load(connection: asyncpg.Connection, count: int, objects: int, changes: int) -> None:
    """Write the rows of hosts; indexes of their tables are made after them."""
    own = int(objects * _OWN)
    shared = objects - own
    names = shared * 2 // 3 + _ROLES * (shared // 3)
    now = time.time_ns() // 1000
    definitions = [
        # without ONLY: on all partitions
        (
            await connection.fetchval("SELECT pg_get_indexdef($1::regclass)", f"opdbus.{name}")
        ).replace(" ON ONLY ", " ON ", 1)
        for name in _INDEXES
    ]
    for name in _INDEXES:
        await connection.execute(f"DROP INDEX opdbus.{name}")
    # triggers would note each step's hosts again and again
    await connection.execute("SET session_replication_role = replica")
    made = _CONTENTS.replace("$1", str(names)).replace("$2", str(count)).replace("$3", str(own))
    for sql in (made, *_FILL):
        await connection.execute(sql)
        say(" ".join(sql.split())[:90])
    await connection.execute(_HOSTS, count, changes, objects)
    for first in range(1, count + 1, _HOSTS_A_STEP):
        last = min(count, first + _HOSTS_A_STEP - 1)
        await connection.execute(_OBJECTS, first, last, shared, now)
        await connection.execute(_CHANGES, first, last, changes, now, shared)
    say("objects and changes")
    await connection.execute(_DRIFT, count)
    await connection.execute(
        "INSERT INTO opdbus.epoch (host, epoch, first_seq, reason)"
        " SELECT host, 1, 1, 'first' FROM opdbus.host"
    )
    await connection.execute(
        "INSERT INTO opdbus.field SELECT DISTINCT jsonb_object_keys(observed) FROM opdbus.made"
    )
    await connection.execute(
        "INSERT INTO opdbus.name_word SELECT DISTINCT word FROM opdbus.made,"
        " regexp_split_to_table(lower(name), '[^a-z]+') AS word WHERE length(word) BETWEEN 4 AND 40"
    )
    await connection.execute("DROP TABLE opdbus.made; SET session_replication_role = origin")
    for sql in definitions:
        await connection.execute(sql)
        say(" ".join(sql.split())[:90])
    await connection.execute("VACUUM ANALYZE")


Question = Callable[[asyncpg.Connection], Awaitable[Any]]


def questions(now: int) -> dict[str, Question]:
    """Return the questions by their names."""
    day = fleet_changes.Between(now - _DAY)
    month = fleet_changes.Between(now - 30 * _DAY)
    tagged = Scope(tags=("role3",))
    one = Scope(hosts=("host77",))
    changes = fleet_changes.find_changes
    return {
        "hosts": host_overview.list_hosts,
        "search, words": lambda c: fleet_search.search(c, "program42 service"),
        "search, condition": lambda c: fleet_search.search(c, "active_state=failed"),
        "search, one tag": lambda c: fleet_search.search(c, "program42", scope=tagged),
        "show an object": lambda c: one_object.show(c, "program42.service"),
        "compare": lambda c: fleet_comparison.compare(c, "host3", "host103"),
        "odd": peers.find_odd,
        "odd, one tag": lambda c: peers.find_odd(c, tagged),
        "missing": peers.find_missing,
        "missing, one host": lambda c: peers.find_missing(c, None, "host77"),
        "changes": changes,
        "changes, a day": lambda c: changes(c, between=day),
        "changes, a month": lambda c: changes(c, between=month),
        "changes, one host": lambda c: changes(c, scope=one),
        "changes, about": lambda c: changes(c, about="program42 failed", between=month),
        "past, an hour ago": lambda c: past_search.search_past(
            c, "program42 service", now - _DAY // 24
        ),
        "past, a day ago": lambda c: past_search.search_past(c, "program42 service", now - _DAY),
        "past, a month ago": lambda c: past_search.search_past(
            c, "active_state=failed", now - 30 * _DAY
        ),
        "past, one object": lambda c: one_object.show(c, "program42.service", at=now - 30 * _DAY),
        "drift": fleet_drift.find_drift,
        "housekeeping, a step": lambda c: housekeeping.Housekeeping(c).step(),
    }


def measure(url: str, password: str, name: str, now: int, rounds: int) -> dict[str, Any]:
    """Ask a question some times in this process."""
    Path("/proc/self/clear_refs").write_text("5")  # forgets the highest memory
    return asyncio.run(_measure(url, password, questions(now)[name], rounds))


async def _measure(url: str, password: str, ask: Question, rounds: int) -> dict[str, Any]:
    async with postgres.connected(url, password) as connection:
        await connection.execute("SET statement_timeout = '280s'")
        written = "SELECT temp_bytes FROM pg_stat_database WHERE datname = current_database()"
        before, temporary = _peak_mib(), await connection.fetchval(written)
        times: list[float] = []
        logged: list[LoggedQuery] = []
        locks = 0
        for number in range(rounds):
            is_last = number == rounds - 1
            if is_last:
                connection.add_query_logger(logged.append)
            began = time.perf_counter()
            try:
                async with connection.transaction():
                    await ask(connection)
                    times.append(time.perf_counter() - began)
                    connection.remove_query_logger(logged.append) if is_last else None
                    locks = await connection.fetchval(
                        "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()"
                    )
            except (asyncpg.QueryCanceledError, MemoryError) as error:
                return {"failed": str(error), "after_s": round(time.perf_counter() - began, 1)}
            if sum(times) > 60:
                break
        peak = _peak_mib()
        planning = [await _planning(connection, each) for each in logged]
        await connection.execute("SELECT pg_stat_force_next_flush()")
        spilled = await connection.fetchval(written) - temporary
    return {
        "ms": round(sorted(times)[len(times) // 2] * 1000, 1),
        "rounds": len(times),
        "client_mib": round(peak - before, 1),
        "temporary_files_mib": round(spilled / len(times) / 2**20, 1),
        "planning_ms": round(sum(planning), 1),
        "locks": locks,
    }


async def _planning(connection: asyncpg.Connection, each: LoggedQuery) -> float:
    if not each.query.lstrip().startswith(("SELECT", "WITH")):
        return 0.0
    (row,) = await connection.fetchrow(f"EXPLAIN (SUMMARY, FORMAT JSON) {each.query}", *each.args)
    return float(json.loads(row)[0]["Planning Time"])


def _peak_mib() -> float:
    """Return the highest memory of this process; that of getrusage has its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Fill the database unless it has hosts, and ask each question."""
    async with EmbeddedServer(folder) as server:
        async with postgres.connected(server.url, server.password) as connection:
            await postgres.make_schema(connection)
            if not await connection.fetchval("SELECT count(*) FROM opdbus.host"):
                await load(connection, arguments.hosts, arguments.objects, arguments.changes)
            now = await connection.fetchval("SELECT max(at) FROM opdbus.change") + 1
            sizes = {
                table: await connection.fetchval(f"SELECT count(*) FROM opdbus.{table}")  # noqa: S608
                for table in ("host", "object", "content", "text", "change", "drift")
            }
            mib = await connection.fetchval("SELECT pg_database_size(current_database()) >> 20")
        found = {}
        for name in questions(now):
            if arguments.only and not name.startswith(arguments.only):
                continue
            # memory at its highest is that of one question
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                found[name] = await asyncio.wrap_future(
                    process.submit(measure, server.url, server.password, name, now, 5)
                )
            say(f"{name}: {found[name]}")
    return {"rows": sizes, "database_mib": mib, "questions": found}


def main() -> None:
    """Run the benchmark, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--objects", type=int, default=300)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", default="", help="questions whose names begin so")
    given = parse(parser)
    with tempfile.TemporaryDirectory(prefix="op-dbus-scale-") as made:
        folder = given.folder or Path(made)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        write(given, asyncio.run(run(given, folder)))


if __name__ == "__main__":
    main()
