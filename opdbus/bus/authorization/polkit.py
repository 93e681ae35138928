"""Queries to polkit: authorization of a connection's user, and password prompts."""

import asyncio
import itertools
import os
import pwd
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

import structlog

from opdbus.bus.async_cache import AsyncCache
from opdbus.bus.names import BUS_NAME
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.bus.transport.library import Message
from opdbus.errors import AccessDenied, BusError
from opdbus.platform.tasks import start

log = structlog.get_logger()

_NAME: Final = "org.freedesktop.PolicyKit1"
_PATH: Final = "/org/freedesktop/PolicyKit1/Authority"
_AUTHORITY: Final = "org.freedesktop.PolicyKit1.Authority"
_USER: Final = "polkitd"
_BUS: Final = "org.freedesktop.DBus"
_ERROR: Final = "org.freedesktop.DBus.Error."
_INTERACTIVE: Final = 1
# Rules are scripts that take milliseconds; the limit is for a polkit that hangs or has to start.
PATIENCE_SECONDS: Final = 5.0
# The detail that marks an answer by a temporary authorization, which ends by the clock.
_TEMPORARY: Final = "polkit.temporary_authorization_id"
_NOT_INSTALLED: Final = (
    f"{_ERROR}ServiceUnknown",
    f"{_ERROR}Spawn.ServiceNotFound",
    "org.freedesktop.systemd1.NoSuchUnit",
    "org.freedesktop.systemd1.UnitMasked",
)
_WENT_AWAY: Final = (f"{_ERROR}ServiceUnknown", f"{_ERROR}NameHasNoOwner", f"{_ERROR}NoReply")
_RULES: Final = (
    f"type='signal',sender='{_BUS}',member='NameOwnerChanged',arg0='{_NAME}'",
    f"type='signal',sender='{_NAME}',interface='{_AUTHORITY}',member='Changed',path='{_PATH}'",
)


class Verdict(Enum):
    """A decision of polkit; `UNDECIDED`: no polkit is running, or the action is unknown to it."""

    YES = "yes"
    NO = "no"
    CHALLENGE = "challenge"
    UNDECIDED = "undecided"


class _Answer(NamedTuple):
    """A verdict, and whether it holds until polkit signals a change."""

    verdict: Verdict
    lasts: bool


class _Authority(NamedTuple):
    """The connection of polkit, empty if there is no trusted one, and its known actions."""

    owner: str
    actions: frozenset[str]


class Polkit:
    """Queries polkit, and caches answers until it signals a change or a connection ends."""

    def __init__(self, connection: Connection, patience: float = PATIENCE_SECONDS) -> None:
        self._connection = connection
        self._patience = patience
        self._is_subscribed = False
        self._found: AsyncCache[_Authority] = AsyncCache()
        self._answers: AsyncCache[_Answer] = AsyncCache(lambda answer: answer.lasts)
        self._owner = ""
        self._tickets = itertools.count(1)
        self._cancelling: set[asyncio.Task[None]] = set()

    async def check(self, sender: str, action: str) -> Verdict:
        """Return the verdict for a connection and `action`; raise AccessDenied if polkit fails."""
        answer = await self._answers.get(
            sender, action, lambda: self._ask(sender, action, seconds=self._patience)
        )
        return answer.verdict

    async def ask_user(self, sender: str, action: str) -> Verdict:
        """Let polkit ask the connection's user for a password, without a time limit.

        When cancelled, it removes the prompt from the user's screen.
        """
        ticket = f"{BUS_NAME}-{next(self._tickets)}"
        try:
            answer = await self._ask(sender, action, _INTERACTIVE, ticket)
        except asyncio.CancelledError:
            if self._owner:
                start(self._cancel(ticket), self._cancelling)
            raise
        if answer.verdict is Verdict.YES:
            # polkit may keep the authorization for all of this user's processes
            self._answers.clear()
        return answer.verdict

    def forget(self, sender: str) -> None:
        """Drop the answers about a closed connection."""
        self._answers.forget(sender)

    def trusts(self, sender: str) -> bool:
        """Return whether to process a sender's signals."""
        return sender in {_BUS, self._owner}

    def on_signal(self, message: Message) -> None:
        """Drop all answers if polkit started, ended, or changed its rules."""
        came = (message.sender, message.member) == (_BUS, "NameOwnerChanged")
        is_change = (self._owner, "Changed") == (message.sender, message.member)
        if is_change or (came and message.body[0] == _NAME):
            self._forget_all()

    def _forget_all(self) -> None:
        self._found.clear()
        self._answers.clear()

    async def _ask(
        self,
        sender: str,
        action: str,
        flags: int = 0,
        ticket: str = "",
        seconds: float | None = None,
    ) -> _Answer:
        """Query polkit, once more if it went away meanwhile: it may have been restarted.

        Raises AccessDenied if it fails, or does not answer in time.
        """
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await self._ask_once(sender, action, flags, ticket)
                except RemoteError as error:
                    if error.name not in _WENT_AWAY:
                        raise
                self._forget_all()
                return await self._ask_once(sender, action, flags, ticket)
        except TimeoutError:
            fault = f"it did not answer within {self._patience:g} s"
        except (RemoteError, BusError, ValueError) as error:
            fault = str(error)
        raise AccessDenied(
            f"polkit cannot say who may {action} here: {fault}; look into its log"
            " (`journalctl -u polkit`), and try again"
        )

    async def _ask_once(self, sender: str, action: str, flags: int, ticket: str) -> _Answer:
        authority = await self._found.get("", "", self._find)
        name = f"{BUS_NAME}.{action}"
        if name not in authority.actions:
            return _Answer(Verdict.UNDECIDED, lasts=True)
        # by connection, not by process: the pid may be reused by then
        subject = ("system-bus-name", {"name": sender})
        ((is_authorized, is_challenge, details),) = await self._connection.call(
            authority.owner,
            _PATH,
            f"{_AUTHORITY}.CheckAuthorization",
            "(sa{sv})sa{ss}us",
            *(subject, name, {}, flags, ticket),
        )
        if is_authorized:
            return _Answer(Verdict.YES, lasts=_TEMPORARY not in details)
        return _Answer(Verdict.CHALLENGE if is_challenge else Verdict.NO, lasts=True)

    async def _find(self) -> _Authority:
        """Find polkit and its actions; start it if it is installed but not running."""
        async with asyncio.timeout(self._patience):
            if not self._is_subscribed:
                for rule in _RULES:
                    await self._connection.subscribe(rule)
                self._is_subscribed = True
            owner = await self._start()
            if not owner or not await self._is_believed(owner):
                return _Authority("", frozenset())
            # set before the call: polkit may signal a change at once
            self._owner = owner
            member = f"{_AUTHORITY}.EnumerateActions"
            (actions,) = await self._connection.call(owner, _PATH, member, "s", "")
            return _Authority(owner, frozenset(action[0] for action in actions))

    async def _start(self) -> str:
        """Return the connection of polkit, started if need be; empty if it is not installed."""
        try:
            return await self._name_owner()
        except RemoteError as error:
            if error.name != f"{_ERROR}NameHasNoOwner":
                raise
        try:
            await self._connection.ask_bus("StartServiceByName", "su", _NAME, 0)
        except RemoteError as error:
            if error.name in _NOT_INSTALLED:
                return ""
            raise
        return await self._name_owner()

    async def _name_owner(self) -> str:
        (owner,) = await self._connection.ask_bus("GetNameOwner", "s", _NAME)
        return str(owner)

    async def _is_believed(self, owner: str) -> bool:
        """Return whether polkit runs as root, as its own user or as ours."""
        (answer,) = await self._connection.ask_bus("GetConnectionCredentials", "s", owner)
        uid = answer.get("UnixUserID")
        if uid in {0, os.geteuid()}:
            return True
        with suppress(KeyError):
            # on a thread: the user database may be on the network
            if uid == (await asyncio.to_thread(pwd.getpwnam, _USER)).pw_uid:
                return True
        log.warning("polkit not believed", uid=uid, reason=f"{_NAME} must be root's or {_USER}'s")
        return False

    async def _cancel(self, ticket: str) -> None:
        member = f"{_AUTHORITY}.CancelCheckAuthorization"
        # polkit is gone, or the user answered just now: no prompt is left
        with suppress(RemoteError, BusError):
            await self._connection.call(self._owner, _PATH, member, "s", ticket)
