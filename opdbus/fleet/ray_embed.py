"""All due vectors by Ray: the function of workers over batches of Ray Data.

A batch that Ray runs again, since its actor was lost, finds the tasks that are left.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from opdbus.config import Config
from opdbus.engine.opening import open_level
from opdbus.errors import OpDbusError
from opdbus.fleet import fleet_level, postgres, vector_store
from opdbus.platform import pip

_DUE: Final = """
SELECT digest FROM opdbus.embedding_task
WHERE numerics = (SELECT wanted FROM opdbus.fleet) AND not_before <= now() ORDER BY not_before
"""


class Actor:
    """An engine and a connection to the database; called with batches of digests."""

    def __init__(self, config: Config, url: str, password: str | None) -> None:
        self._runner, self._stack = asyncio.Runner(), AsyncExitStack()
        self._runner.run(self._open(config, url, password))

    async def _open(self, config: Config, url: str, password: str | None) -> None:
        enter = self._stack.enter_async_context
        self._connection = await enter(postgres.connected(url, password))
        await vector_store.prepare(self._connection)
        engine = await enter(open_level(config, config.vector_level))
        self._model = await vector_store.register(self._connection, engine)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Compute the texts of these digests that no worker computes now; return their number."""
        digests = [bytes(digest) for digest in batch["digest"]]
        work = vector_store.embed_tasks(self._connection, self._model, digests)
        return {"ended": np.array([self._runner.run(work)])}


@dataclass(frozen=True, slots=True)
class RayRun:
    """One run: `actors` engines of `threads` threads; None has as many as the cluster has room."""

    config: Config
    url: str
    password: str | None
    threads: int = 1
    actors: int | None = None

    def embed(self, address: str = "local") -> int:
        """Compute all vectors that are due, on a cluster; return the number of texts."""
        with pip.required("ray"):
            import ray.data
        level, digests = asyncio.run(self._read())
        config = fleet_level.settings_of(self.config, level)
        try:
            ray.init(address, include_dashboard=False, logging_level="warning")
            ray.data.DataContext.get_current().enable_progress_bars = False
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            has = ray.cluster_resources()
            gpus = int(config.execution_provider.names[0] != "cpu" and "GPU" in has)
            room = has["GPU"] if gpus else has["CPU"] // self.threads
            rows = [{"digest": digest} for digest in digests]
            blocks = 1 + len(rows) // vector_store.BATCH
            found = ray.data.from_items(rows, override_num_blocks=blocks).map_batches(
                Actor,
                fn_constructor_args=(config, self.url, self.password),
                batch_size=vector_store.BATCH,
                compute=ray.data.ActorPoolStrategy(size=self.actors or max(1, int(room))),
                num_cpus=self.threads,
                num_gpus=gpus,
            )
            return sum(int(part["ended"].sum()) for part in found.iter_batches() if rows)
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise OpDbusError(f"Ray: {error}") from None
        finally:
            ray.shutdown()
            asyncio.run(self._end())

    async def _read(self) -> tuple[str, list[bytes]]:
        """Return the wanted level and the digests of all that is due."""
        async with postgres.connected(self.url, self.password) as connection:
            await postgres.require_schema(connection)
            if not (level := (await fleet_level.read_level(connection)).wanted_level):
                await fleet_level.change_level(connection, self.config)
                level = self.config.vector_level
            return level, [row["digest"] for row in await connection.fetch(_DUE)]

    async def _end(self) -> None:
        async with postgres.connected(self.url, self.password) as connection:
            await fleet_level.serve_wanted(connection)
