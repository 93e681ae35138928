"""Who may do what: root and our own user all, everyone else what polkit or the group allows."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from grp import getgrnam
from typing import TYPE_CHECKING, Final

import structlog

from opdbus.bus.async_cache import AsyncCache
from opdbus.bus.authorization.denials import Denials
from opdbus.bus.authorization.polkit import Polkit, Verdict
from opdbus.bus.names import ACTIONS, BUS_NAME
from opdbus.bus.transport.connection import RemoteError
from opdbus.errors import AccessDenied, InteractiveAuthorizationRequired, LimitsExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opdbus.bus.transport.connection import Connection
    from opdbus.bus.transport.library import Message

log = structlog.get_logger()

GROUP: Final = "op-dbus"
# What the group may do where polkit does not decide.
_OF_THE_GROUP: Final = ("read", "vectorize", "publish")
# Passwords that one user is asked for at a time; polkit must not be kept busy by one.
MOST_ASKED: Final = 4
_ROOT: Final = 0


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who is at the other end of a connection, and whether that user is in our group."""

    uid: int
    is_member: bool


class Authorizer:
    """Decides by the caller's user, by polkit, and by groups; asks once per connection.

    `group` gives the number of a group of that name; it raises KeyError, and may block.
    """

    def __init__(
        self,
        connection: Connection,
        polkit: Polkit | None = None,
        group: Callable[[str], int] = lambda name: getgrnam(name).gr_gid,
    ) -> None:
        self._connection = connection
        self._polkit = polkit or Polkit(connection)
        self._group = group
        self._known: AsyncCache[Credentials] = AsyncCache()
        self._asked: Counter[int] = Counter()
        self._denials = Denials()

    async def require(
        self, sender: str, action: str, method: str = "", *, interactive: bool = False
    ) -> Credentials:
        """Give the caller's credentials if it may do `action`.

        Raises AccessDenied, and InteractiveAuthorizationRequired if the user's password would
        help. An interactive caller's user is asked for it, which takes as long as typing does.
        `method` is for the log.
        """
        credentials = await self.credentials(sender)
        if _is_own(credentials.uid) and action in ACTIONS:
            return credentials
        try:
            await self._require(credentials, sender, action, interactive=interactive)
        except AccessDenied:
            untold = self._denials.tell(credentials.uid)
            if untold is not None:
                uid = credentials.uid
                log.warning("access denied", uid=uid, action=action, method=method, untold=untold)
            raise
        return credentials

    async def credentials(self, sender: str) -> Credentials:
        """Tell who a connection is; raises AccessDenied if the bus does not know."""
        return await self._known.get(sender, "", lambda: self._ask_bus(sender))

    def forget(self, sender: str) -> None:
        """Drop what is known of a connection that is gone."""
        self._known.forget(sender)
        self._polkit.forget(sender)

    def hears(self, sender: str) -> bool:
        """Whether a signal of this sender may be heeded: anyone may send us some."""
        return self._polkit.hears(sender)

    def heed(self, message: Message) -> None:
        """Take notice of a signal that may change what polkit says."""
        self._polkit.heed(message)

    async def _require(
        self, credentials: Credentials, sender: str, action: str, *, interactive: bool
    ) -> None:
        may_not = f"uid {credentials.uid} may not {action} here"
        if action not in ACTIONS:
            raise AccessDenied(f"{may_not}: there is no such action, so nobody may do it")
        verdict = await self._polkit.check(sender, action)
        if verdict is Verdict.CHALLENGE and interactive:
            with self._asking(credentials.uid):
                verdict = await self._polkit.ask_user(sender, action)
        _require_verdict(verdict, credentials, action, may_not)

    @contextmanager
    def _asking(self, uid: int) -> Iterator[None]:
        if self._asked[uid] >= MOST_ASKED:
            raise LimitsExceeded(
                f"uid {uid} is being asked for a password {MOST_ASKED} times already: answer those"
                " first"
            )
        self._asked[uid] += 1
        try:
            yield
        finally:
            self._asked[uid] -= 1
            if not self._asked[uid]:
                del self._asked[uid]

    async def _ask_bus(self, sender: str) -> Credentials:
        try:
            (answer,) = await self._connection.ask_bus("GetConnectionCredentials", "s", sender)
            uid = int(answer["UnixUserID"])
        except (RemoteError, KeyError):
            raise AccessDenied("the bus does not say who you are") from None
        # on a thread: the system's database of groups may be on the network
        is_member = not _is_own(uid) and await asyncio.to_thread(
            self._is_member, uid, answer.get("UnixGroupIDs")
        )
        return Credentials(uid, is_member)

    def _is_member(self, uid: int, groups: list[int] | None) -> bool:
        """Tell whether a user with these groups is in ours; blocks."""
        try:
            return self._group(GROUP) in (_groups_of(uid) if groups is None else groups)
        except KeyError:
            return False


def _require_verdict(verdict: Verdict, credentials: Credentials, action: str, may_not: str) -> None:
    if verdict is Verdict.CHALLENGE:
        raise InteractiveAuthorizationRequired(
            f"{may_not} without authenticating (polkit action {BUS_NAME}.{action}): call from a"
            " session that has an authentication agent, such as pkttyagent, or as root"
        )
    if verdict is Verdict.NO:
        raise AccessDenied(
            f"{may_not}: polkit refused {BUS_NAME}.{action}; its rules decide who may"
        )
    if verdict is Verdict.UNDECIDED and not (credentials.is_member and action in _OF_THE_GROUP):
        group = f" or in the group {GROUP}" if action in _OF_THE_GROUP else ""
        raise AccessDenied(f"{may_not}: it must be root{group}")


def _is_own(uid: int) -> bool:
    return uid in {_ROOT, os.geteuid()}


def _groups_of(uid: int) -> list[int]:
    """Give a user's groups from the system's database, where the bus does not send them."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)
