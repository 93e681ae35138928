"""Settings and state file, read again while serving: by SIGHUP, and when asked over the bus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from opdbus import config
from opdbus.config import ENGINE_SETTINGS
from opdbus.errors import ConfigError, OpDbusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from opdbus.config import Config
    from opdbus.engine.engines import Engines
    from opdbus.index.declared import Declared
    from opdbus.systemd import Systemd

logger = structlog.get_logger()


class Reloader:
    """Reads all of it again, one reload at a time; a fault leaves what was."""

    def __init__(
        self, load: Callable[[], Config], engines: Engines, declared: Declared, systemd: Systemd
    ) -> None:
        self._load = load
        self._config = engines.config
        self._engines = engines
        self._declared = declared
        self._systemd = systemd
        self._one_reload = asyncio.Lock()

    async def reload(self) -> None:
        """Read settings and state file; raises ConfigError and what either may raise."""
        async with self._one_reload:
            logger.info("reloading", reason="Reload")
            with self._systemd.reloading():
                await self._read_settings()
                await self._declared.load()

    async def heed(self, hung_up: asyncio.Event) -> None:
        """Read settings and state file after each SIGHUP; the log says what could not be."""
        while True:
            await hung_up.wait()
            hung_up.clear()
            async with self._one_reload:
                logger.info("reloading", reason="SIGHUP")
                with self._systemd.reloading():
                    await self._try_settings()
                    await self._declared.try_load()

    async def _try_settings(self) -> None:
        try:
            await self._read_settings()
        except OpDbusError as error:
            logger.error("settings not reloaded", reason=str(error))  # noqa: TRY400 -- a sentence, no traceback

    async def _read_settings(self) -> None:
        """Read the settings, and serve with another engine where they ask for one."""
        settings = self._load()
        changed = settings.differing(self._config)
        logger.debug("settings read", changed=sorted(changed))
        if changed & ENGINE_SETTINGS:
            if "none" in {settings.vector_level, self._config.vector_level}:
                raise ConfigError("the level none begins and ends with a start: restart op-dbus")
            await self._engines.switch(settings)
        if rest := changed - ENGINE_SETTINGS:
            names = ", ".join(sorted(config.BY_KEY[key].variable for key in rest))
            logger.warning("settings wait for a restart", settings=names)
        self._config = settings
