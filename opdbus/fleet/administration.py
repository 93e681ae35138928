"""Hosts of the fleet: their roles, passwords and tags."""

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from typing import Final

import asyncpg

from opdbus.errors import InvalidArgs
from opdbus.fleet import postgres

ROLE_PREFIX: Final = "host-"
_ITERATIONS: Final = 4096


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
    async with connection.transaction():
        try:
            await connection.execute(
                "INSERT INTO opdbus.host (name, role, tags) VALUES ($1, $2, $3)",
                *(name, role, sorted(set(tags))),
            )
            # the name's pattern leaves nothing to quote
            await connection.execute(
                f"CREATE ROLE \"{role}\" LOGIN PASSWORD '{scram_verifier(password)}'"
                f" IN ROLE {', '.join(['opdbus_host', *groups])}"
            )
        except (asyncpg.UniqueViolationError, asyncpg.DuplicateObjectError):
            raise InvalidArgs(f"the fleet has the host {name} already") from None
    return password


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
