"""A service on the system bus whose objects come and go, to be mirrored.

It runs inside a booted host, as root. Its methods `org.example.Lamps.Add` and `Remove` take the
name of a lamp.
"""

import asyncio
from pathlib import Path
from typing import Any

from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.messages import Call

NAME, TOP = "org.example.Lamps", "/org/example/Lamps"
_LAMP = f"{NAME}.Lamp"
_MANAGER = "org.freedesktop.DBus.ObjectManager"
_POLICY = Path("/etc/dbus-1/system.d/lamps.conf")
_MAY_BE_OWNED = f"""<busconfig>
  <policy user="root"><allow own="{NAME}"/></policy>
  <policy context="default"><allow send_destination="{NAME}"/></policy>
</busconfig>
"""


class Lamps:
    """The service: the lamps that there are."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lamps: dict[str, dict[str, Any]] = {}
        connection.on_call = self._take

    def _take(self, call: Call) -> None:
        if call.member == "GetManagedObjects":
            listed = {path: {_LAMP: lamp} for path, lamp in self._lamps.items()}
            self._connection.reply(call, "a{oa{sa{sv}}}", [listed])
            return
        (name,) = call.body
        path = f"{TOP}/{name}"
        if call.member == "Add":
            self._lamps[path] = {"Name": name, "Colour": "red"}
            added = {_LAMP: self._lamps[path]}
            self._connection.emit(TOP, f"{_MANAGER}.InterfacesAdded", "oa{sa{sv}}", path, added)
        else:
            del self._lamps[path]
            self._connection.emit(TOP, f"{_MANAGER}.InterfacesRemoved", "oas", path, [_LAMP])
        self._connection.reply(call, "", [])


async def main() -> None:
    """Serve until killed."""
    _POLICY.write_text(_MAY_BE_OWNED)  # noqa: ASYNC240 -- nothing runs yet
    async with Connection("system") as connection:
        Lamps(connection)
        await connection.ask_bus("ReloadConfig")
        await connection.own(NAME)
        await connection.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
