"""Who is logged in: sessions, users, seats and inhibitors, from logind."""

from collections.abc import Mapping
from typing import Final

from opdbus.bus.transport.connection import RemoteError
from opdbus.bus.transport.values import Plain
from opdbus.observe.report import Observer, Report
from opdbus.observe.system_bus import Service

_NAME: Final = "org.freedesktop.login1"
_PATH: Final = "/org/freedesktop/login1"
_SESSION: Final = (
    "Name User Seat TTY Type Class State Remote RemoteHost Service Desktop LockedHint Timestamp"
    " IdleHint"
)
# Of each kind: the method that lists it, where its name and path are in a row, what is read of it.
_LISTED: Final = {
    "session": ("ListSessions", 0, 4, _SESSION.split()),
    "user": ("ListUsers", 1, 2, "Name UID State Linger IdleHint".split()),
    "seat": ("ListSeats", 0, 1, "ActiveSession CanGraphical IdleHint".split()),
}
_FIELDS: Final = {
    "Name": "user", "User": "uid", "UID": "uid", "RemoteHost": "remote_host", "Timestamp": "since",
    "LockedHint": "locked", "IdleHint": "idle", "ActiveSession": "session",
    "CanGraphical": "graphical",
}  # fmt: skip
_INHIBITOR: Final = ("what", "user", "why", "mode", "uid", "pid")


async def observe(report: Report) -> None:
    """List everything, and again after each burst of signals: there are few sessions."""
    async with Service(_NAME) as login:
        await login.follow(f"path_namespace='{_PATH}'")
        await _list(login, report)
        async for _ in login.bursts():
            await _list(login, report)


async def _list(login: Service, report: Report) -> None:
    for kind, (method, name, path, wanted) in _LISTED.items():
        (rows,) = await login.call(_PATH, f"{_NAME}.Manager.{method}")
        found = {}
        for row in rows:
            try:
                values = await login.properties(row[path], f"{_NAME}.{kind.title()}")
            except RemoteError:
                continue  # it has ended meanwhile
            found[str(row[name])] = _read(values, wanted)
        report.replace(kind, found)
    (rows,) = await login.call(_PATH, f"{_NAME}.Manager.ListInhibitors")
    inhibitors = (dict(zip(_INHIBITOR, row, strict=True)) for row in rows)
    report.replace("inhibitor", {f"{row['user']} {row['what']}": row for row in inhibitors})


def _read(values: Mapping[str, Plain], wanted: list[str]) -> dict[str, Plain]:
    """Return what is wanted by the names that people know; of (uid, path) the first is enough."""
    found = {_FIELDS.get(key, key.lower()): values[key] for key in wanted if key in values}
    plain = {key: v[0] if isinstance(v, list) else v for key, v in found.items()}
    return {key: value for key, value in plain.items() if value != ""}


OBSERVER: Final = Observer(
    "login1", "login1", observe, volatile=dict.fromkeys(_LISTED, frozenset({"idle"}))
)
