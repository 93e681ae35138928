"""Decides on actions: root and our own user may do all; polkit or the group decides for others."""

import asyncio
import os
import pwd
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from grp import getgrnam
from typing import Final

import structlog

from opdbus.bus.admission.accounting import LogLimit, Quota
from opdbus.bus.async_cache import AsyncCache
from opdbus.bus.authorization.polkit import Polkit, Verdict
from opdbus.bus.names import ACTIONS, BUS_NAME
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.errors import AccessDenied, InteractiveAuthorizationRequired

log = structlog.get_logger()

GROUP: Final = "op-dbus"
READERS: Final = "op-dbus-read"
# Actions of the groups' members if polkit does not decide.
_OF_THE_GROUP: Final = ("read", "vectorize", "publish")
_OF_READERS: Final = ("read", "vectorize")
# Concurrent password prompts of one user, so that one user cannot keep polkit busy.
MOST_ASKED: Final = 4
_ROOT: Final = 0


@dataclass(frozen=True, slots=True)
class Credentials:
    """The user of a connection, its name if it has one, and its membership in our groups."""

    uid: int
    name: str
    is_member: bool
    is_reader: bool = False

    def __str__(self) -> str:
        """Return the name and uid of the user."""
        return f"{self.name} (uid {self.uid})" if self.name else f"uid {self.uid}"


class Authorizer:
    """Authorization by the caller's user, polkit and groups, cached for each connection.

    `gid_of` returns the gid of a group name, or raises KeyError; it may block.
    """

    def __init__(
        self,
        connection: Connection,
        polkit: Polkit | None = None,
        gid_of: Callable[[str], int] = lambda name: getgrnam(name).gr_gid,
    ) -> None:
        self._connection = connection
        self._polkit = polkit or Polkit(connection)
        self._gid_of = gid_of
        self._known: AsyncCache[Credentials] = AsyncCache()
        self._prompts = Quota("questions for a password", {"user": MOST_ASKED})
        self._log_limit = LogLimit()

    async def require(
        self, sender: str, action: str, method: str = "", *, interactive: bool = False
    ) -> Credentials:
        """Return the caller's credentials if it may do `action`.

        Raises AccessDenied, or InteractiveAuthorizationRequired if a password would help. The user
        of an interactive caller is asked for it, which takes as long as typing does. `method` is
        for the log.
        """
        credentials = await self.credentials(sender)
        if _is_root_or_self(credentials.uid) and action in ACTIONS:
            return credentials
        try:
            verdict = await self._polkit.check(sender, action)
            if verdict is Verdict.CHALLENGE and interactive:
                with self._prompts.reserve({"user": credentials.uid}, 1):
                    verdict = await self._polkit.ask_user(sender, action)
            _require_verdict(verdict, credentials, action)
        except AccessDenied:
            uid = credentials.uid
            if (left_out := self._log_limit.admit(uid)) is not None:
                log.warning(
                    "access denied", uid=uid, action=action, method=method, suppressed=left_out
                )
            raise
        return credentials

    async def credentials(self, sender: str) -> Credentials:
        """Return a connection's user; raise AccessDenied if the bus does not report it."""
        return await self._known.get(sender, "", lambda: self._ask_bus(sender))

    def forget(self, sender: str) -> None:
        """Drop cached answers about a closed connection."""
        self._known.forget(sender)
        self._polkit.forget(sender)

    async def _ask_bus(self, sender: str) -> Credentials:
        try:
            (answer,) = await self._connection.ask_bus("GetConnectionCredentials", "s", sender)
            uid = int(answer["UnixUserID"])
        except (RemoteError, KeyError):
            raise AccessDenied("the bus does not say who you are") from None
        if _is_root_or_self(uid):
            return Credentials(uid, "", is_member=False)
        # on a thread: the user database may be on the network
        return await asyncio.to_thread(self._look_up, uid, answer.get("UnixGroupIDs"))

    def _look_up(self, uid: int, groups: list[int] | None) -> Credentials:
        """Return a user's credentials; groups that the bus does not send are looked up. Blocks."""
        name = ""
        with suppress(KeyError):
            user = pwd.getpwuid(uid)
            name = user.pw_name
            groups = os.getgrouplist(name, user.pw_gid) if groups is None else groups
        return Credentials(
            uid,
            name,
            is_member=self._has_group(GROUP, groups or ()),
            is_reader=self._has_group(READERS, groups or ()),
        )

    def _has_group(self, name: str, groups: Collection[int]) -> bool:
        with suppress(KeyError):
            return self._gid_of(name) in groups
        return False


def _require_verdict(verdict: Verdict, credentials: Credentials, action: str) -> None:
    """Raise the error of a negative verdict, with advice."""
    may_not = f"{credentials} may not {action} here"
    if action not in ACTIONS:
        raise AccessDenied(f"{may_not}: there is no such action, so nobody may do it")
    cure = "call as root, for example with sudo"
    if action in _OF_THE_GROUP:
        cure = f"run `usermod -aG {GROUP} {credentials.name or 'NAME'}` as root, then log in again"
    if verdict is Verdict.CHALLENGE:
        raise InteractiveAuthorizationRequired(
            f"{may_not} without authenticating (polkit action {BUS_NAME}.{action}): {cure}; or call"
            " from a session that has an authentication agent, such as pkttyagent"
        )
    if verdict is Verdict.NO:
        raise AccessDenied(
            f"{may_not}: polkit refused {BUS_NAME}.{action}: call as root, or have an administrator"
            " allow it by a rule in /etc/polkit-1/rules.d"
        )
    is_allowed = (credentials.is_member and action in _OF_THE_GROUP) or (
        credentials.is_reader and action in _OF_READERS
    )
    if verdict is Verdict.UNDECIDED and not is_allowed:
        raise AccessDenied(f"{may_not}: {cure}")


def _is_root_or_self(uid: int) -> bool:
    return uid in {_ROOT, os.geteuid()}
