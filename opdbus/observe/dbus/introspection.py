"""Objects of a service without an ObjectManager, found by introspection from a path down."""

import re
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Final

from opdbus.bus.transport.connection import RemoteError
from opdbus.bus.transport.values import Plain
from opdbus.observe.core.system_bus import Service

_STANDARD: Final = "org.freedesktop.DBus."
_INTROSPECT: Final = f"{_STANDARD}Introspectable.Introspect"
_MAX_DEPTH: Final = 12
_MAX_OBJECTS: Final = 2_000
# Names of children and interfaces are all that is needed of the XML.
_TAG: Final = re.compile(r"""<(node|interface|property)\s[^<>]*?\bname\s*=\s*["']([\w.]+)["']""")
_MAX_CHARACTERS: Final = 1 << 18


async def objects_of(
    service: Service, top: str, leave_out: Callable[[str], None]
) -> AsyncGenerator[dict[str, dict[str, Plain]]]:
    """Yield {path: {interface: properties}} for each object at or below a path, breadth first."""
    waiting, known = deque([(top, 0)]), {top}
    while waiting:
        path, depth = waiting.popleft()
        try:
            (text,) = await service.call(path, _INTROSPECT)
        except RemoteError:
            if path == top:
                raise
            continue
        children, interfaces = _described(str(text)[:_MAX_CHARACTERS])
        yield {path: {name: await _properties(service, path, name) for name in interfaces}}
        below = {f"{path.rstrip('/')}/{child}" for child in children} - known
        room = _MAX_OBJECTS - len(known) if depth < _MAX_DEPTH else 0
        for number, child in enumerate(sorted(below)):
            if number >= room:
                leave_out(f"objects beyond {_MAX_OBJECTS:,} or {_MAX_DEPTH} levels")
            else:
                known.add(child)
                waiting.append((child, depth + 1))


async def _properties(service: Service, path: str, interface: str) -> dict[str, Plain]:
    with suppress(RemoteError):
        return dict(await service.properties(path, interface))
    return {}


def _described(text: str) -> tuple[list[str], list[str]]:
    """Return the names of child nodes, and the interfaces that have properties."""
    children: list[str] = []
    interfaces: dict[str, None] = {}
    interface = ""
    for sort, name in _TAG.findall(text):
        if sort == "node" and "." not in name:
            children.append(name)
        elif sort == "interface":
            interface = name
        elif sort == "property" and not interface.startswith(_STANDARD):
            interfaces[interface] = None
    return children, list(interfaces)
