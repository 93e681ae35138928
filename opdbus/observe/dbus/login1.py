"""Observer of sessions, users, seats and inhibitors, from logind."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from opdbus.bus.transport.connection import RemoteError
from opdbus.bus.transport.values import Plain
from opdbus.observe.core.report import MAX_OBJECTS, Observer, Report, join_by_name
from opdbus.observe.core.system_bus import Service

_NAME: Final = "org.freedesktop.login1"
_PATH: Final = "/org/freedesktop/login1"
# For each kind: the method that lists it, and the columns of its name and path.
_LISTED: Final = {
    "session": ("ListSessions", 0, 4), "user": ("ListUsers", 1, 2), "seat": ("ListSeats", 0, 1),
}  # fmt: skip
# The properties that are reported, and their field names.
_FIELDS: Final = {
    "Name": "user", "User": "uid", "UID": "uid", "Seat": "seat", "TTY": "tty", "Type": "type",
    "Class": "class", "State": "state", "Remote": "remote", "RemoteHost": "remote_host",
    "Service": "service", "Desktop": "desktop", "LockedHint": "locked", "Timestamp": "since",
    "IdleHint": "idle", "Linger": "linger", "ActiveSession": "session", "CanGraphical": "graphical",
}  # fmt: skip
_INHIBITOR: Final = ("what", "user", "why", "mode", "uid", "pid")


async def observe(report: Report) -> None:
    """Follow logind; everything is listed again after each burst of signals."""
    async with Service(_NAME) as login:
        await login.follow(f"path_namespace='{_PATH}'")
        await _list(login, report)
        async for _ in login.bursts():
            await _list(login, report)


async def _list(login: Service, report: Report) -> None:
    for kind, (method, name, path) in _LISTED.items():
        (rows,) = await login.call(_PATH, f"{_NAME}.Manager.{method}")
        found = {}
        for row in rows[:MAX_OBJECTS]:
            with suppress(RemoteError):  # it has ended meanwhile
                values = await login.properties(row[path], f"{_NAME}.{kind.title()}")
                found[str(row[name])] = _fields_of(values)
        report.replace(kind, found)
    (rows,) = await login.call(_PATH, f"{_NAME}.Manager.ListInhibitors")
    named = ((f"{row[1]} {row[0]}", dict(zip(_INHIBITOR, row, strict=True))) for row in rows)
    report.replace("inhibitor", join_by_name(named))


def _fields_of(values: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return the reported fields; of a structure (uid, path) only the first member."""
    found = ((name, values[key]) for key, name in _FIELDS.items() if key in values)
    plain = ((name, [*v, ""][0] if isinstance(v, list) else v) for name, v in found)
    return {name: value for name, value in plain if value != ""}


OBSERVER: Final = Observer(
    "login1", "login1", observe, volatile=dict.fromkeys(_LISTED, frozenset({"idle"}))
)
