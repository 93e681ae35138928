"""Who may do what: root, the daemon's own user and the group op-dbus; everyone else may nothing."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
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
    """Who is at the other end of a connection, as the bus daemon vouches for."""

    uid: int
    groups: frozenset[int]


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
            groups = answer.get("UnixGroupIDs") or _groups_of(uid)
            self._known[sender] = Credentials(uid, frozenset(groups))
        return self._known[sender]


def _may(credentials: Credentials, action: str) -> bool:
    if credentials.uid in {_ROOT, os.geteuid()}:
        return True
    if action == "manage":
        return False
    with suppress(KeyError):
        return getgrnam(GROUP).gr_gid in credentials.groups
    return False


def _groups_of(uid: int) -> list[int]:
    """Give a user's groups from the system's database, where the bus does not send them."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)
