"""The level of a fleet: the model that questions use, and the one that workers compute."""

from dataclasses import replace
from typing import NamedTuple

import asyncpg
import structlog

from opdbus.config import Config
from opdbus.engine.opening import open_level
from opdbus.errors import ConfigError
from opdbus.fleet.vector_store import Model, queue_missing, register

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_STATE = """
SELECT wanted.numerics AS wanted, wanted.level AS wanted_level, wanted.name AS wanted_name,
  serving.numerics AS serving, serving.level AS serving_level
FROM opdbus.fleet
LEFT JOIN opdbus.numerics AS wanted ON wanted.numerics = fleet.wanted
LEFT JOIN opdbus.numerics AS serving ON serving.numerics = fleet.serving
"""


class FleetLevel(NamedTuple):
    """The wanted and the serving model; levels are "" before the first worker."""

    wanted: int | None
    wanted_level: str
    wanted_name: str
    serving: int | None
    serving_level: str


class LevelProgress(NamedTuple):
    """Progress to the wanted level: texts with a vector, and all texts."""

    serving: str
    wanted: str
    done: int
    total: int


async def read_level(connection: asyncpg.Connection) -> FleetLevel:
    """Return what the fleet wants and serves."""
    (row,) = await connection.fetch(_STATE)
    return FleetLevel(
        row["wanted"],
        row["wanted_level"] or "",
        row["wanted_name"] or "",
        row["serving"],
        row["serving_level"] or "",
    )


async def read_progress(connection: asyncpg.Connection) -> LevelProgress:
    """Return how far the workers are."""
    level = await read_level(connection)
    (row,) = await connection.fetch(
        "SELECT (SELECT count(*) FROM opdbus.text JOIN opdbus.vector USING (digest)"
        " WHERE numerics = $1) AS done, (SELECT count(*) FROM opdbus.text) AS total",
        level.wanted,
    )
    return LevelProgress(level.serving_level, level.wanted_level, row["done"], row["total"])


def settings_of(config: Config, level: str) -> Config:
    """Return the settings for a level; raises ConfigError for `none`, which has no model."""
    if level == "none":
        raise ConfigError("the level none has no model: give static, low, medium or high")
    # OP_DBUS_MODEL is the folder of the configured level
    return (
        config if config.vector_level == level else replace(config, vector_level=level, model=None)
    )


async def change_level(connection: asyncpg.Connection, config: Config) -> int:
    """Have workers compute the configured level; return the number of texts that lack a vector.

    The model must be here, and runs its proof. Raises ConfigError, ModelError, ProviderError.
    """
    settings_of(config, config.vector_level)
    async with open_level(config, config.vector_level) as engine:
        return await want(connection, await register(connection, engine))


async def want(connection: asyncpg.Connection, model: Model, *, first: bool = False) -> int:
    """Have workers compute this model's vectors; return the number of texts that lack one.

    Questions use the model before until all are there. `first`: only in a fleet without a model.
    """
    async with connection.transaction():
        status = await connection.execute(
            "UPDATE opdbus.fleet SET wanted = $1, serving = coalesce(serving, $1)"
            " WHERE wanted IS NULL OR NOT $2",
            *(model.numerics, first),
        )
        if status.endswith(" 0"):
            return 0
        # of a level that was wanted before and is not any more
        await connection.execute(
            "DELETE FROM opdbus.embedding_task USING ("
            " SELECT numerics, digest FROM opdbus.embedding_task WHERE numerics <> $1"
            " FOR UPDATE SKIP LOCKED) AS free"
            " WHERE (embedding_task.numerics, embedding_task.digest)"
            " = (free.numerics, free.digest)",
            model.numerics,
        )
        queued = await queue_missing(connection, model.numerics)
    log.info("level wanted", level=model.engine.level, texts=queued)
    return queued


async def serve_wanted(connection: asyncpg.Connection) -> bool:
    """Let questions use the wanted model, if all its vectors are there; return whether they do now.

    Texts of batches that began before the level was wanted have no task yet: they are queued.
    """
    async with connection.transaction():
        wanted = await connection.fetchval(
            "SELECT wanted FROM opdbus.fleet WHERE wanted IS DISTINCT FROM serving"
            " FOR UPDATE SKIP LOCKED"
        )
        due = (
            "SELECT EXISTS (SELECT FROM opdbus.embedding_task"
            " WHERE numerics = $1 AND not_before <= now())"
        )
        if wanted is None or await connection.fetchval(due, wanted):
            return False
        if await queue_missing(connection, wanted):
            return False
        await connection.execute("UPDATE opdbus.fleet SET serving = wanted")
    log.info("level changed", numerics=wanted)
    return True


async def drop_unused(connection: asyncpg.Connection) -> bool:
    """Remove a model that neither the fleet nor a host uses, with its vectors."""
    unused = await connection.fetchval(
        "SELECT numerics FROM opdbus.numerics WHERE NOT EXISTS ("
        "  SELECT FROM opdbus.fleet WHERE numerics IN (wanted, serving))"
        " AND NOT EXISTS (SELECT FROM opdbus.host WHERE host.numerics = numerics.numerics) LIMIT 1"
    )
    if unused is None:
        return False
    async with connection.transaction():
        # questions that run now are not waited for: later is soon enough
        await connection.execute("SET LOCAL lock_timeout = '2s'")
        is_gone = await connection.fetchval("SELECT opdbus.drop_numerics($1)", unused)
    if is_gone:
        log.info("model removed", numerics=unused)
    return bool(is_gone)
