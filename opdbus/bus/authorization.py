"""Who may do what: root, the daemon's own user and the group op-dbus; everyone else may nothing."""

from __future__ import annotations

import asyncio
import os
import pwd
from dataclasses import dataclass
from grp import getgrnam
from typing import TYPE_CHECKING, Final

from opdbus.bus.connection import RemoteError
from opdbus.errors import AccessDenied

if TYPE_CHECKING:
    from opdbus.bus.connection import Connection

ACTIONS: Final = ("read", "vectorize", "publish", "manage")
GROUP: Final = "op-dbus"
_ROOT: Final = 0


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who is at the other end of a connection, and whether that user is in our group."""

    uid: int
    is_member: bool


class Authorizer:
    """Decides by the caller's user and groups; asks the bus once per connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, Credentials] = {}

    async def require(self, sender: str, action: str) -> Credentials:
        """Give the caller's credentials if it may do `action`; raises AccessDenied."""
        credentials = await self._credentials(sender)
        if action not in ACTIONS or not _may(credentials, action):
            raise AccessDenied(
                f"uid {credentials.uid} may not {action} here: it must be root"
                + ("" if action == "manage" else f" or in the group {GROUP}")
            )
        return credentials

    def forget(self, sender: str) -> None:
        """Drop what is known of a connection that is gone."""
        self._known.pop(sender, None)

    async def _credentials(self, sender: str) -> Credentials:
        if sender not in self._known:
            try:
                (answer,) = await self._connection.ask_bus("GetConnectionCredentials", "s", sender)
                uid = int(answer["UnixUserID"])
            except (RemoteError, KeyError):
                raise AccessDenied("the bus does not say who you are") from None
            # on a thread: the system's database of groups may be on the network
            is_member = not _is_own(uid) and await asyncio.to_thread(
                _is_member, uid, answer.get("UnixGroupIDs")
            )
            self._known[sender] = Credentials(uid, is_member)
        return self._known[sender]


def _is_own(uid: int) -> bool:
    return uid in {_ROOT, os.geteuid()}


def _may(credentials: Credentials, action: str) -> bool:
    if _is_own(credentials.uid):
        return True
    if action == "manage":
        return False
    return credentials.is_member


def _is_member(uid: int, groups: list[int] | None) -> bool:
    """Tell whether a user with these groups is in ours; blocks."""
    try:
        return getgrnam(GROUP).gr_gid in (groups or _groups_of(uid))
    except KeyError:
        return False


def _groups_of(uid: int) -> list[int]:
    """Give a user's groups from the system's database, where the bus does not send them."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)
