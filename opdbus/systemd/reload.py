"""Reload of settings and state file while serving, on SIGHUP or a call over D-Bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from opdbus import config
from opdbus.config import ENGINE_SETTINGS, Config
from opdbus.errors import OpDbusError
from opdbus.index.state_store.state_file_loader import StateFileLoader
from opdbus.serving.serving import Serving
from opdbus.systemd.notify import Systemd

logger = structlog.get_logger()


class Reloader:
    """Reloader of settings and state file: one reload at a time; a fault changes nothing."""

    def __init__(
        self,
        load: Callable[[], Config],
        serving: Serving,
        declared: StateFileLoader,
        systemd: Systemd,
    ) -> None:
        self._load = load
        # the settings of the last read: SetProvider may have changed those in use
        self._read = serving.config
        self._serving = serving
        self._declared = declared
        self._systemd = systemd
        self._one_reload = asyncio.Lock()

    async def reload(self) -> None:
        """Reload settings and state file; raises ConfigError and the errors of loading either."""
        async with self._one_reload:
            logger.info("reloading", reason="Reload")
            with self._systemd.reloading():
                await self._read_settings()
                await self._declared.load()

    async def follow(self, hung_up: asyncio.Event) -> None:
        """Reload settings and state file after each SIGHUP; errors are logged."""
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
        """Read the settings; switch the engine if a setting of it has changed."""
        settings = self._load()
        changed = settings.differing(self._read)
        logger.debug("settings read", changed=sorted(changed))
        if changed & ENGINE_SETTINGS:
            await self._serving.switch(settings)
        if rest := changed - ENGINE_SETTINGS:
            names = ", ".join(sorted(config.BY_KEY[key].variable for key in rest))
            logger.warning("settings wait for a restart", settings=names)
        self._read = settings
