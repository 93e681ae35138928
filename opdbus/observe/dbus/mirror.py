"""Observer of the objects of any D-Bus service, by its ObjectManager or by introspection.

Services named by the administrator are read and followed, but neither started nor changed.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from opdbus.bus.transport.connection import RemoteError
from opdbus.observe.core.report import LostSource, Observer, Report
from opdbus.observe.core.system_bus import Service, until_owned
from opdbus.observe.dbus.introspection import objects_of
from opdbus.observe.dbus.mirror_objects import MirroredObjects
from opdbus.observe.dbus.mirror_table import MANAGERS, plugin_of, volatile
from opdbus.state.object import Json

INTROSPECT: Final = "introspect:"
_ASKED: Final = re.compile(
    rf"({INTROSPECT})?([A-Za-z_-][\w-]*(?:\.[A-Za-z_-][\w-]*)+)(?::(/|(?:/\w+)+))?", re.ASCII
)
# The prefix of the cause of changes that a service reports.
CAUSE: Final = "bus"
_DBUS: Final = "org.freedesktop.DBus"
_LIST: Final = f"{_DBUS}.ObjectManager.GetManagedObjects"
_LISTED: Final = "a{oa{sa{sv}}}"
_FOLLOWED: Final = (f"{_DBUS}.ObjectManager", f"{_DBUS}.Properties")
# Errors for an object or interface that does not exist; old services send only Failed.
_UNKNOWN: Final = ("UnknownObject", "UnknownInterface", "UnknownMethod", "AccessDenied", "Failed")
# Interfaces read one by one after a burst; if more have changed, all objects are listed again.
_MOST_READ: Final = 100
# Objects or signals handled before other tasks of the event loop run.
_AT_ONCE: Final = 50


class Mirror:
    """The observer of one service: `NAME`, `NAME:/path/of/its/manager` or `introspect:NAME`."""

    def __init__(self, asked: str) -> None:
        match = _ASKED.fullmatch(asked)
        if not match:
            raise ValueError(f"{asked} is no service")
        self._is_tree, self._service, top = bool(match[1]), match[2], match[3]
        like_name = f"/{self._service.replace('.', '/').replace('-', '_')}"
        known = top or MANAGERS.get(self._service, "")
        likely = [like_name] if self._is_tree else ["/", like_name]
        self._tops = [known] if known else likely
        self._plugin = plugin_of(self._service)
        self._cause = f"{CAUSE}:{self._service}"

    @property
    def observer(self) -> Observer:
        """Return the observer; it has the service's name."""
        plugin = self._plugin
        return Observer(self._service, plugin, self.observe, volatile(plugin), self._appears)

    async def observe(self, report: Report) -> None:
        """List all objects, then follow the signals."""
        async with Service(self._service, typed=True) as service:
            objects = await self._first(service)
            await self._show_all(objects, report)
            async for signals in service.bursts():
                for number, signal in enumerate(signals, 1):
                    self._show(objects, objects.apply(signal), report)
                    if number % _AT_ONCE == 0:
                        await asyncio.sleep(0)
                objects = await self._reread(service, objects, report)
                report.busy(objects.left_out)

    async def _appears(self) -> None:
        await until_owned(self._service)

    async def _first(self, service: Service) -> MirroredObjects:
        """Follow and list the service at the first path with an ObjectManager that has objects."""
        found: list[MirroredObjects] = []
        for top in self._tops:
            for interface in _FOLLOWED:
                await service.follow(f"interface='{interface}',path_namespace='{top}'")
            try:
                found.append(await self._list(service, top))
            except RemoteError as error:
                if error.name.rpartition(".")[2] not in _UNKNOWN:
                    raise
            # an ObjectManager without objects may be one that another library adds
            if found and len(found[-1]):
                return found[-1]
        if not found:
            raise LostSource(
                f"{self._service} has no ObjectManager at {' or '.join(self._tops)}: give its path"
                f" as {self._service}:/path, or read its tree as {INTROSPECT}{self._service}"
            )
        return found[0]

    async def _list(self, service: Service, top: str) -> MirroredObjects:
        objects = MirroredObjects(self._service, self._plugin, top)
        parts = (
            objects_of(service, top, objects.leave_out)
            if self._is_tree
            else service.listing(top, _LIST, _LISTED)
        )
        async for part in parts:
            for path, interfaces in part.items():
                objects.add(path, interfaces)
            if objects.is_full:
                break
        # these signals may be older than the listing; the last one of an object agrees with it
        for signal in service.take():
            objects.apply(signal)
        return objects

    async def _show_all(self, objects: MirroredObjects, report: Report, cause: str = "") -> None:
        kinds: dict[str, dict[str, Mapping[str, Json]]] = {}
        for number, (key, properties) in enumerate(objects.listed(), 1):
            kinds.setdefault(key.kind, {})[key.name] = properties
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        report.replace_all(kinds, cause)
        report.busy(objects.left_out)

    async def _reread(
        self, service: Service, objects: MirroredObjects, report: Report
    ) -> MirroredObjects:
        """Read properties that changed without their values; list all objects if there are many."""
        stale, objects.stale = objects.stale, {}
        if len(stale) > _MOST_READ:
            objects = await self._list(service, objects.top)
            await self._show_all(objects, report, self._cause)
            return objects
        for path, interface in stale:
            with suppress(RemoteError):  # it is gone: a signal follows
                values = await service.properties(path, interface)
                self._show(objects, objects.put(path, interface, values), report)
        return objects

    def _show(self, objects: MirroredObjects, path: str, report: Report) -> None:
        """Report the changes of an object since it was last reported."""
        for key, properties in objects.news(path) if path else ():
            if properties is None:
                report.gone(*key, self._cause)
            else:
                report.put(*key, properties, self._cause)


def is_service(asked: str) -> bool:
    """Return whether an item of OP_DBUS_OBSERVE names a service on the bus."""
    return bool(_ASKED.fullmatch(asked))
