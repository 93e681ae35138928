"""Checks on the bus: whether a daemon answers this user, and its status."""

import asyncio
import grp
import os
import pwd
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.bus import paths
from opdbus.bus.authorization.authorizer import GROUP
from opdbus.bus.names import BUS_NAME, VECTORIZER
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.config import Config
from opdbus.doctor.verdict import RESTART, START, Verdict, objects
from opdbus.errors import BusError

# A daemon reports its status at once, unless it is stuck.
_PATIENCE_SECONDS: Final = 10.0

_UNSERVED: Final = Verdict(
    "daemon", "warning", f"no daemon serves {BUS_NAME}", "`systemctl status op-dbus` says more"
)


class Answer(NamedTuple):
    """The verdicts of the checks on the bus, and the daemon's report of its state file."""

    verdicts: list[Verdict]
    # the path, possibly from a command-line option; None if no daemon answers
    state_file: Path | None = None
    fault: str = ""


async def ask(config: Config, *, is_service: bool) -> Answer:
    """Check that the bus can be reached, and the status of the daemon."""
    try:
        async with Connection(config.bus) as connection:
            reached = Verdict("message bus", "ok", f"{config.bus} can be reached")
            found = await _daemon(connection, is_service=is_service)
            return found._replace(verdicts=[reached, *found.verdicts])
    except BusError as error:
        finding, _, advice = str(error).partition("; ")
        return Answer([Verdict("message bus", "wrong", finding, advice or "set OP_DBUS_BUS")])


async def _daemon(connection: Connection, *, is_service: bool) -> Answer:
    """Check that a daemon answers this user or, without one, that this user can start it."""
    try:
        await connection.ask_bus("GetNameOwner", "s", BUS_NAME)
    except RemoteError:
        return Answer([_UNSERVED, *_membership()] if is_service else [await _ownership(connection)])
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            member = f"{VECTORIZER}.Status"
            (status,) = await connection.call(BUS_NAME, paths.ROOT, member, "a{sv}", {})
    except TimeoutError:
        finding = f"it did not answer within {_PATIENCE_SECONDS:.0f} s"
        return Answer([Verdict("daemon", "wrong", finding, f"look into its log, or {RESTART}")])
    except RemoteError as error:
        finding, _, advice = str(error).partition(": ")
        return Answer([Verdict("daemon", "wrong", finding, _cure() or advice or RESTART)])
    served = _served(status["State"], status["LastError"])
    observers = (_observer(*row) for row in status["Observers"])
    verdicts = [
        served,
        _drift(status["Drifted"], dict(status["Sources"]).get("file", 0)),
        *observers,
    ]
    return Answer(verdicts, Path(status["StateFile"]), status["StateFileError"])


def _served(state: str, fault: str) -> Verdict:
    """Return the verdict on the daemon's state and last error."""
    finding = f"{BUS_NAME} is served; it is {state}"
    is_well = state in {"ready", "loading"}
    if not fault:
        advice = "" if is_well else "`op-dbus status` says why"
        return Verdict("daemon", "ok" if is_well else "warning", finding, advice)
    reason, _, advice = fault.partition("; ")
    # with a good state, the error is of a database that was replaced at the start
    return Verdict("daemon", "warning" if is_well else "wrong", f"{finding}: {reason}", advice)


def _drift(count: int, declared: int) -> Verdict:
    """Return the verdict on the number of drifted objects."""
    if not declared:
        return Verdict("drift", "ok", "nothing is declared")
    if not count:
        return Verdict("drift", "ok", "nothing is other than declared")
    found = "an object is" if count == 1 else f"{count:,} objects are"
    return Verdict("drift", "warning", f"{found} other than declared", "`op-dbus drift` says how")


def _observer(name: str, state: str, count: int, detail: str) -> Verdict:
    """Return the verdict on an observer; a host without its subsystem is no fault."""
    found = objects(count) if state == "up" else state
    finding = f"{found}: {detail}" if detail else found
    if state != "failed":
        return Verdict(f"observer {name}", "ok", finding)
    return Verdict(f"observer {name}", "warning", finding, "it is tried again; the log says more")


async def _ownership(connection: Connection) -> Verdict:
    try:
        await connection.own(BUS_NAME)
    except BusError as error:
        advice = "run the daemon as the user that the bus policy names, or on another bus"
        return Verdict("daemon", "wrong", str(error), advice)
    return Verdict("daemon", "warning", f"no daemon serves {BUS_NAME}", START)


def _membership() -> list[Verdict]:
    """Check that the daemon, once it runs, will answer this user."""
    if not (cure := _cure()):
        return []
    return [Verdict("group", "wrong", f"this user is not in the group {GROUP}", cure)]


def _cure() -> str:
    """Return how this user can join the group of users; empty for members and root."""
    try:
        group = grp.getgrnam(GROUP)
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""
    if os.geteuid() == 0 or group.gr_gid in {os.getegid(), *os.getgroups()}:
        return ""
    if name in group.gr_mem:
        return "log in again: this session is older than the membership"
    return f"as root, `usermod -aG {GROUP} {name}`; then log in again"
