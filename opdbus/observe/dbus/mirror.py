"""Observer of the objects of any D-Bus service, by its ObjectManager or by introspection.

Services named by the administrator are read and followed, but neither started nor changed.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from opdbus.bus.transport.connection import RemoteError
from opdbus.bus.transport.values import Plain
from opdbus.observe.core.report import LostSource, Observer, Report
from opdbus.observe.core.system_bus import Service, until_owned
from opdbus.observe.dbus.mirror_objects import STANDARD, MirroredObjects
from opdbus.observe.dbus.mirror_table import MANAGERS, plugin_of, volatile
from opdbus.state.object import Json

INTROSPECT: Final = "introspect:"
_ITEM: Final = re.compile(
    rf"({INTROSPECT})?([A-Za-z_-][\w-]*(?:\.[A-Za-z_-][\w-]*)+)(?::(/|(?:/\w+)+))?", re.ASCII
)
# The prefix of the cause of changes that a service reports.
CAUSE: Final = "bus"
_LIST: Final = f"{STANDARD}ObjectManager.GetManagedObjects"
_LISTED: Final = "a{oa{sa{sv}}}"
_FOLLOWED: Final = (f"{STANDARD}ObjectManager", f"{STANDARD}Properties")
# Errors for an object or interface that does not exist; old services send only Failed.
_UNKNOWN: Final = ("UnknownObject", "UnknownInterface", "UnknownMethod", "AccessDenied", "Failed")
# Interfaces read one by one after a burst; if more have changed, all objects are listed again.
_MOST_READ: Final = 100
# Objects or signals handled before other tasks of the event loop run.
_AT_ONCE: Final = 50
_MAX_DEPTH: Final = 12
_MAX_INTROSPECTED: Final = 2_000
# Names of children and interfaces are all that is needed of the XML.
_TAG: Final = re.compile(r"""<(node|interface|property)\s[^<>]*?\bname\s*=\s*["']([\w.]+)["']""")
_MAX_CHARACTERS: Final = 1 << 18


class Mirror:
    """The observer of one service: `NAME`, `NAME:/path/of/its/manager` or `introspect:NAME`."""

    def __init__(self, item: str) -> None:
        match = _ITEM.fullmatch(item)
        if not match:
            raise ValueError(f"{item} is no service")
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
        appears = partial(until_owned, self._service)
        moving = volatile(self._plugin)
        return Observer(self._service, self._plugin, self.observe, moving, appears)

    async def observe(self, report: Report) -> None:
        """List all objects, then follow the signals."""
        async with Service(self._service, typed=True) as service:
            objects = await self._list_first(service)
            await self._report_all(objects, report)
            async for signals in service.bursts():
                for number, signal in enumerate(signals, 1):
                    self._report_changes(objects, objects.apply(signal), report)
                    if number % _AT_ONCE == 0:
                        await asyncio.sleep(0)
                stale, objects.stale = objects.stale, {}
                if len(stale) > _MOST_READ:
                    objects = await self._list(service, objects.top)
                    await self._report_all(objects, report, self._cause)
                    stale = {}
                # properties that changed without their values
                for path, interface in stale:
                    with suppress(RemoteError):  # it is gone: a signal follows
                        values = await service.properties(path, interface)
                        self._report_changes(objects, objects.put(path, interface, values), report)
                report.busy(objects.left_out)

    async def _list_first(self, service: Service) -> MirroredObjects:
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
            _introspect(service, top, objects.leave_out)
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

    async def _report_all(self, objects: MirroredObjects, report: Report, cause: str = "") -> None:
        kinds: dict[str, dict[str, Mapping[str, Json]]] = {}
        for number, (key, properties) in enumerate(objects.render_all(), 1):
            kinds.setdefault(key.kind, {})[key.name] = properties
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        report.replace_all(kinds, cause)
        report.busy(objects.left_out)

    def _report_changes(self, objects: MirroredObjects, path: str, report: Report) -> None:
        for key, properties in objects.render_changes(path) if path else ():
            if properties is None:
                report.gone(*key, self._cause)
            else:
                report.put(*key, properties, self._cause)


def is_service(item: str) -> bool:
    """Return whether an item of OP_DBUS_OBSERVE names a service on the bus."""
    return bool(_ITEM.fullmatch(item))


async def _introspect(
    service: Service, top: str, leave_out: Callable[[str], None]
) -> AsyncGenerator[dict[str, dict[str, Plain]]]:
    """Yield {path: {interface: properties}} for each object at or below a path, breadth first."""
    waiting, seen = deque([(top, 0)]), {top}
    while waiting:
        path, depth = waiting.popleft()
        try:
            (text,) = await service.call(path, f"{STANDARD}Introspectable.Introspect")
        except RemoteError:
            if path == top:
                raise
            continue
        children, interfaces = _parse_introspection(str(text)[:_MAX_CHARACTERS])
        properties: dict[str, Plain] = {}
        for interface in interfaces:
            properties[interface] = {}
            with suppress(RemoteError):
                properties[interface] = dict(await service.properties(path, interface))
        yield {path: properties}
        below = {f"{path.rstrip('/')}/{child}" for child in children} - seen
        room = _MAX_INTROSPECTED - len(seen) if depth < _MAX_DEPTH else 0
        for number, child in enumerate(sorted(below)):
            if number >= room:
                leave_out(f"objects beyond {_MAX_INTROSPECTED:,} or {_MAX_DEPTH} levels")
            else:
                seen.add(child)
                waiting.append((child, depth + 1))


def _parse_introspection(text: str) -> tuple[list[str], list[str]]:
    """Return the names of child nodes, and the interfaces that have properties."""
    children: list[str] = []
    interfaces: dict[str, None] = {}
    interface = ""
    for tag, name in _TAG.findall(text):
        if tag == "node" and "." not in name:
            children.append(name)
        elif tag == "interface":
            interface = name
        elif tag == "property" and not interface.startswith(STANDARD):
            interfaces[interface] = None
    return children, list(interfaces)
