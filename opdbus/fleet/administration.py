"""Hosts of the fleet: their roles, passwords and tags."""

import base64
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

import asyncpg

from opdbus.errors import InvalidArgs
from opdbus.fleet import postgres

# A sender has one session; others are those that it left.
_MOST_SESSIONS: Final = 8
# Of a day, in MiB. A state may have 4 MiB.
_LEAST_MIB: Final = 16
_MOST_MIB: Final = 1 << 30
_MOST_OBJECTS: Final = 10_000_000
ROLE_PREFIX: Final = "host-"
READER: Final = "opdbus_reader"
WORKER: Final = "opdbus_worker"
# The worker of `op-dbus fleet serve`; the prefix is kept for roles of the server.
OWN_WORKER: Final = "opdbus_own_worker"
_ITERATIONS: Final = 4096
_ROWS_OF_HOSTS: Final = "object drift change offered_vector staged_object staged_change".split()


def role_of(name: str) -> str:
    """Return the database role of a host."""
    return ROLE_PREFIX + postgres.require_host_name(name)


async def add_host(
    connection: asyncpg.Connection, name: str, tags: Sequence[str] = (), groups: Sequence[str] = ()
) -> str:
    """Add a host and its role; return the role's new password.

    `groups` are further roles of it. Raises InvalidArgs if the fleet has the host.
    """
    role, password = role_of(name), secrets.token_urlsafe(32)
    tags = sorted({*map(require_tag, tags)})
    async with connection.transaction():
        try:
            await connection.execute(
                "INSERT INTO opdbus.host (name, role, tags) VALUES ($1, $2, $3)",
                *(name, role, tags),
            )
            # the name's pattern leaves nothing to quote
            await connection.execute(
                f'CREATE ROLE "{role}" LOGIN CONNECTION LIMIT {_MOST_SESSIONS}'
                f" PASSWORD '{scram_verifier(password)}'"
                f" IN ROLE {', '.join(['opdbus_host', *groups])}"
            )
        except (asyncpg.UniqueViolationError, asyncpg.DuplicateObjectError):
            raise InvalidArgs(
                f"the fleet has the host {name} already: `op-dbus fleet add --renew` writes new"
                " credentials for it"
            ) from None
    return password


async def renew_host(connection: asyncpg.Connection, name: str) -> str:
    """Give a host's role a new password, and end its sessions; return the password.

    Raises InvalidArgs if the fleet has no such host.
    """
    password = secrets.token_urlsafe(32)
    async with connection.transaction():
        role = await _role_of_host(connection, name)
        verifier = scram_verifier(password)
        await connection.execute(f"ALTER ROLE {_quote(role)} PASSWORD '{verifier}'")
    await _end_sessions(connection, role)
    return password


async def accept_host(
    connection: asyncpg.Connection, name: str, *, is_new_machine: bool = False
) -> list[str]:
    """Forget the faults of a host that were found; return what each of them was.

    With `is_new_machine`, its machine is forgotten too: the next one that comes with its
    credentials is the host. Raises InvalidArgs.
    """
    async with connection.transaction():
        await _role_of_host(connection, name)
        known = await connection.fetchrow(
            "SELECT machine, conflict, vector_fault FROM opdbus.host WHERE name = $1 FOR UPDATE",
            name,
        )
        await connection.execute(
            "UPDATE opdbus.host SET conflict = NULL, conflict_at = NULL, vector_fault = NULL,"
            " vector_fault_at = NULL, machine = CASE WHEN $2 THEN NULL ELSE machine END"
            " WHERE name = $1",
            *(name, is_new_machine),
        )
    words = {"conflict": "conflict", "vector_fault": "fault of its vectors"}
    if is_new_machine:
        words["machine"] = "machine"
    return [f"{word}: {known[key]}" for key, word in words.items() if known and known[key]]


async def remove_host(connection: asyncpg.Connection, name: str) -> dict[str, int]:
    """Remove a host, its role and all its rows; return the numbers of rows.

    Texts and states stay that other hosts have; workers remove the rest. Raises InvalidArgs.
    """
    role = await _role_of_host(connection, name)
    # no session begins from now on
    await connection.execute(f"ALTER ROLE {_quote(role)} NOLOGIN")
    await _end_sessions(connection, role)
    counts = {}
    async with connection.transaction():
        host = await connection.fetchval(
            "SELECT host FROM opdbus.host WHERE name = $1 FOR UPDATE", name
        )
        for table in _ROWS_OF_HOSTS:
            delete = f"DELETE FROM opdbus.{table} WHERE host = $1"  # noqa: S608 -- our own names
            done = await connection.execute(delete, host)
            counts[table] = int(done.rpartition(" ")[2])
        # epochs and checkpoints go with it
        await connection.execute("DELETE FROM opdbus.host WHERE host = $1", host)
        await connection.execute(f"DROP ROLE {_quote(role)}")
    return counts


async def tag_host(
    connection: asyncpg.Connection, name: str, more: Sequence[str], fewer: Sequence[str]
) -> list[str]:
    """Add and remove tags of a host; return its tags. Raises InvalidArgs."""
    async with connection.transaction():
        await _role_of_host(connection, name)
        known = await connection.fetchval(
            "SELECT tags FROM opdbus.host WHERE name = $1 FOR UPDATE", name
        )
        tags = sorted({*known, *map(require_tag, more)} - {*fewer})
        await connection.execute("UPDATE opdbus.host SET tags = $2 WHERE name = $1", name, tags)
    return tags


class HostLimits(NamedTuple):
    """Limits of a host for a day (UTC) and for its objects, its use of both, and its refusal."""

    mib: int
    sent_mib: int
    most_objects: int
    objects: int
    refusal: str


async def read_limits(connection: asyncpg.Connection, name: str) -> HostLimits:
    """Return the limits of a host; raises InvalidArgs."""
    await _role_of_host(connection, name)
    (row,) = await connection.fetch(
        "SELECT coalesce(host.daily_bytes, fleet.daily_bytes) >> 20 AS mib,"
        " CASE WHEN sent_on = (now() AT TIME ZONE 'UTC')::date THEN sent_bytes >> 20 ELSE 0 END"
        "  AS sent_mib,"
        " coalesce(host.most_objects, fleet.most_objects) AS most_objects, objects,"
        " CASE WHEN refused_at IS NULL THEN '' ELSE coalesce(refusal, '') END AS refusal"
        " FROM opdbus.host CROSS JOIN opdbus.fleet WHERE name = $1",
        name,
    )
    return HostLimits(**dict(row))


async def limit_host(connection: asyncpg.Connection, name: str, mib: int | None) -> HostLimits:
    """Let a host send so many MiB a day, None as many as the fleet's hosts; raises InvalidArgs."""
    if mib is not None and not _LEAST_MIB <= mib <= _MOST_MIB:
        raise InvalidArgs(f"{mib} MiB a day: give {_LEAST_MIB} to {_MOST_MIB:,}, or `default`")
    return await _limit(connection, name, "daily_bytes", None if mib is None else mib << 20)


async def limit_objects(
    connection: asyncpg.Connection, name: str, number: int | None
) -> HostLimits:
    """Let a host have so many objects, None as many as the fleet's hosts; raises InvalidArgs."""
    if number is not None and not 0 < number <= _MOST_OBJECTS:
        raise InvalidArgs(f"{number} objects: give 1 to {_MOST_OBJECTS:,}, or `default`")
    return await _limit(connection, name, "most_objects", number)


async def _limit(
    connection: asyncpg.Connection, name: str, column: str, value: int | None
) -> HostLimits:
    await connection.execute(
        f"UPDATE opdbus.host SET {column} = $2, refused_at = NULL, refusal = NULL"  # noqa: S608 -- our own names
        " WHERE name = $1",
        *(name, value),
    )
    return await read_limits(connection, name)


def require_tag(tag: str) -> str:
    """Return a tag; raises InvalidArgs for what cannot be one."""
    if not re.fullmatch(r"[\w][\w.:-]{0,62}", tag):
        raise InvalidArgs(
            f"{tag!r} is no tag: at most 63 letters, digits, dots, colons, hyphens, underscores"
        )
    return tag


async def add_role(connection: asyncpg.Connection, name: str, group: str) -> str:
    """Add a role of the group READER or WORKER; return its password. Raises InvalidArgs."""
    postgres.require_host_name(name)
    if name.startswith((ROLE_PREFIX, "pg_", "opdbus")):
        raise InvalidArgs(f"{name!r} is kept for hosts and for the server: take another name")
    password = secrets.token_urlsafe(32)
    try:
        await connection.execute(
            f"CREATE ROLE {_quote(name)} LOGIN PASSWORD '{scram_verifier(password)}'"
            f" IN ROLE {group}"
        )
    except asyncpg.DuplicateObjectError:
        raise InvalidArgs(f"the database has a role {name} already") from None
    return password


async def renew_own_worker(connection: asyncpg.Connection) -> str:
    """Give the role of the server's own worker a new password, and return it; make it once."""
    password = secrets.token_urlsafe(32)
    found = await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", OWN_WORKER)
    await connection.execute(
        f"{'ALTER' if found else 'CREATE'} ROLE {OWN_WORKER} LOGIN"
        f" PASSWORD '{scram_verifier(password)}'"
    )
    await connection.execute(f"GRANT {WORKER} TO {OWN_WORKER}")
    return password


async def remove_role(connection: asyncpg.Connection, name: str) -> None:
    """Remove a reader or a worker, and end its sessions. Raises InvalidArgs."""
    found = await connection.fetchval(
        "SELECT count(*) FROM pg_auth_members JOIN pg_roles AS own ON own.oid = member"
        " JOIN pg_roles AS wide ON wide.oid = roleid"
        " WHERE own.rolname = $1 AND wide.rolname = ANY($2)",
        *(name, [READER, WORKER]),
    )
    if not found or name.startswith((ROLE_PREFIX, "opdbus")):
        raise InvalidArgs(f"there is no reader or worker {name}")
    await connection.execute(f"ALTER ROLE {_quote(name)} NOLOGIN")
    await _end_sessions(connection, name)
    await connection.execute(f"DROP ROLE {_quote(name)}")


async def _role_of_host(connection: asyncpg.Connection, name: str) -> str:
    role = await connection.fetchval("SELECT role FROM opdbus.host WHERE name = $1", name)
    if not role:
        raise InvalidArgs(f"the fleet has no host {name}: `op-dbus fleet hosts` lists them")
    return str(role)


async def _end_sessions(connection: asyncpg.Connection, role: str) -> None:
    """End all sessions of a role, and wait until they are gone."""
    ends = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = $1"
    await connection.fetch(ends, role)


def _quote(role: str) -> str:
    return '"' + role.replace('"', '""') + '"'


def scram_verifier(password: str) -> str:
    """Return what PostgreSQL stores of a password, so that the password itself never travels.

    See RFC 5802 and PostgreSQL's catalogue pg_authid.
    """
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    texts = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${_ITERATIONS}:{texts[0]}${texts[1]}:{texts[2]}"
