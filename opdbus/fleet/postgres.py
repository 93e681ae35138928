"""Connections to the fleet's database, and its schema."""

import hashlib
import re
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from opdbus.errors import (
    AccessDenied,
    ConfigError,
    DatabaseUnreachable,
    InvalidArgs,
    OpDbusError,
    TimedOut,
)

_SCHEMA: Final = ("tables.sql", "functions.sql")
_CONNECT_SECONDS: Final = 15.0
# Rows of PostgreSQL's classes 08, 53 and 57: the server is away, full or restarting.
_AWAY: Final = ("08", "53", "57")
_NO_SCHEMA: Final = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
)
_FILES: Final = ("sslrootcert", "sslcert", "sslkey")
_OLDEST_SERVER: Final = 140000


def without_password(url: str) -> str:
    """Return a database's URL without its password, and without names of files."""
    parts = urlsplit(url)
    user, has_user, place = parts.netloc.rpartition("@")
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] == "host"], safe="/")
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + has_user + place, query=query))


def format_vector(vector: Sequence[float]) -> str:
    """Return a vector as text that pgvector reads."""
    return "[" + ",".join(f"{value:.6g}" for value in vector) + "]"


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Turn errors of the database into those of `opdbus.errors`, with the database's name."""
    place = without_password(url)
    try:
        yield
    except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
        raise AccessDenied(f"{place} refuses this login: {error}") from None
    except asyncpg.InsufficientPrivilegeError as error:
        raise AccessDenied(f"{place}: {error}{_hint(error)}") from None
    except _NO_SCHEMA as error:
        raise ConfigError(
            f"{place} has no schema of this version: {error}; `op-dbus fleet init` makes it"
        ) from None
    except asyncpg.InvalidCatalogNameError as error:
        raise ConfigError(f"{place}: {error}: create it with `createdb`") from None
    except asyncpg.QueryCanceledError as error:
        raise TimedOut(f"{place}: {error}: ask for less, or later") from None
    except asyncpg.PostgresError as error:
        kind = DatabaseUnreachable if error.sqlstate[:2] in _AWAY else OpDbusError
        raise kind(f"{place}: {error}{_hint(error)}") from None
    except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        reason = _reason(error)
        if "host=%2F" in url and isinstance(error, FileNotFoundError | ConnectionRefusedError):
            reason = "no server runs there: `systemctl status op-dbus-fleet-server` says why"
        raise DatabaseUnreachable(f"{place} cannot be reached: {reason}") from None


def _hint(error: asyncpg.PostgresError) -> str:
    hint = getattr(error, "hint", None)
    return f": {hint}" if hint else ""


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_SECONDS:.0f} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return str(error) or type(error).__name__


def _require_files(url: str) -> None:
    """Raise ConfigError for a certificate or key in a URL that is no file: asyncpg names none."""
    for name, (path, *_) in parse_qs(urlsplit(url).query).items():
        if name in _FILES and not Path(path).is_file():
            raise ConfigError(f"{name}={path}: there is no such file; give its full path")


async def connect(
    url: str,
    password: str | None = None,
    seconds: float | None = None,
    settings: Mapping[str, str] | None = None,
) -> asyncpg.Connection:
    """Connect to postgresql://USER@HOST/DATABASE; the caller closes the connection.

    A statement that takes longer than `seconds` is cancelled. `settings` are further ones of the
    session.

    Raises ConfigError, AccessDenied or DatabaseUnreachable.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise ConfigError("the fleet's database is given as postgresql://USER@HOST:PORT/DATABASE")
    _require_files(url)
    with translate_errors(url):
        try:
            return await asyncpg.connect(
                url,
                password=password,
                timeout=_CONNECT_SECONDS,
                command_timeout=seconds,
                server_settings={
                    "application_name": "op-dbus",
                    "jit": "off",
                    "search_path": "public",
                    **(settings or {}),
                },
            )
        except ssl.SSLError:  # some are ValueErrors too
            raise
        except (ValueError, asyncpg.ClientConfigurationError) as error:
            raise ConfigError(f"{without_password(url)}: {error}") from None


@asynccontextmanager
async def connected(
    url: str, password: str | None = None
) -> AsyncGenerator[asyncpg.Connection, None]:
    """Give a connection that is closed at the end; errors of the database are translated."""
    connection = await connect(url, password)
    try:
        with translate_errors(url):
            yield connection
    finally:
        await close(connection)


def make_pool(url: str, password: str | None, size: int, seconds: float) -> asyncpg.Pool:
    """Return a pool of at most `size` connections to a database of this version's schema.

    Each is made when it is needed. The server ends statements that take longer than `seconds`.
    Errors while connecting are translated.
    """

    async def make_connection(*_arguments: object, **_named: object) -> asyncpg.Connection:
        limits = {"statement_timeout": f"{seconds * 1000:.0f}"}
        return await connect(url, password, settings=limits)

    async def check(connection: asyncpg.Connection) -> None:
        with translate_errors(url):
            await require_schema(connection)

    return asyncpg.create_pool(min_size=0, max_size=size, connect=make_connection, init=check)


async def close(connection: asyncpg.Connection) -> None:
    """Close a connection, also one whose server does not answer."""
    try:
        await connection.close(timeout=2)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


def schema() -> str:
    """Return the SQL that makes the schema."""
    folder = resources.files("opdbus.fleet").joinpath("schema")
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in _SCHEMA)


async def make_schema(connection: asyncpg.Connection) -> bool:
    """Make the schema; return False if the database has it.

    Raises ConfigError for a server or a schema that this version cannot use.
    """
    version = int(await connection.fetchval("SHOW server_version_num"))
    if version < _OLDEST_SERVER:
        raise ConfigError(f"the server is PostgreSQL {version // 10000}: 14 or later is needed")
    extension = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
    if not await connection.fetchval(extension):
        raise ConfigError(
            "the server lacks pgvector: install its package, such as"
            f" postgresql-{version // 10000}-pgvector"
        )
    async with connection.transaction():
        await connection.execute(
            "CREATE SCHEMA IF NOT EXISTS opdbus;"
            "CREATE TABLE IF NOT EXISTS opdbus.made_by (sha256 text NOT NULL);"
            "LOCK TABLE opdbus.made_by IN EXCLUSIVE MODE"
        )
        if await connection.fetchval("SELECT to_regclass('opdbus.host')"):
            await require_schema(connection)
            return False
        await connection.execute(schema())
        await connection.execute("INSERT INTO opdbus.made_by VALUES ($1)", _digest())
    return True


async def require_schema(connection: asyncpg.Connection) -> None:
    """Raise ConfigError unless the database's schema is the one of this version."""
    if await connection.fetchval("SELECT sha256 FROM opdbus.made_by") != _digest():
        raise ConfigError(
            "the database has the schema of another op-dbus: keep it for that one, and give this"
            " one a new database, to which hosts send their history again"
        )


def _digest() -> str:
    return hashlib.sha256(schema().encode()).hexdigest()


def require_host_name(name: str) -> str:
    """Return a host's name; raises InvalidArgs for what cannot be one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,56}", name):
        raise InvalidArgs(
            f"{name!r} is no host's name: at most 57 letters, digits, dots, hyphens, underscores"
        )
    return name
