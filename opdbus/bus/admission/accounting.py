"""What counts for whom: a connection's for itself, for the user it is of, and for all users."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from opdbus.errors import LimitsExceeded

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping


class User(NamedTuple):
    """A scope of counting that is no connection's name."""

    uid: int


class Accounts:
    """Connections and their users, and what is counted of both."""

    def __init__(self) -> None:
        self._uids: dict[str, int] = {}
        self._counters: list[Counter[Hashable]] = []

    def counter(self) -> Counter[Hashable]:
        """Give a counter by scope; what a connection has counts for its user once that is known."""
        self._counters.append(Counter())
        return self._counters[-1]

    def of(self, sender: str) -> dict[str, Hashable]:
        """Give the scopes for which something of a connection counts, by what each is."""
        uid = self._uids.get(sender)
        user = {} if uid is None else {"user": User(uid)}
        return {"connection": sender, **user, "total": None}

    def identified(self, sender: str, uid: int) -> None:
        """Count what a connection has for its user from now on, too."""
        if sender not in self._uids:
            self._uids[sender] = uid
            for counted in self._counters:
                add(counted, [User(uid)], counted[sender])

    def user_of(self, sender: str) -> int:
        """Give a connection's user; -1 before it is known."""
        return self._uids.get(sender, -1)

    def connections_of(self, uid: int) -> list[str]:
        """Give a user's connections."""
        return [sender for sender, owner in self._uids.items() if owner == uid]

    def forget(self, sender: str) -> None:
        """Drop what is known of a connection that is gone, and of which nothing is counted."""
        self._uids.pop(sender, None)


def require_room(
    counted: Counter[Hashable],
    scopes: Mapping[str, Hashable],
    more: int,
    most: Mapping[str, int],
    what: str,
) -> None:
    """Raise LimitsExceeded if one of the scopes has no room for more."""
    for name, scope in scopes.items():
        if counted[scope] + more > most[name]:
            whose = {"connection": "this connection", "user": "this user", "total": "all users"}
            raise LimitsExceeded(
                f"{counted[scope]} {what} of {whose[name]} are being answered, and {most[name]} is"
                " the limit: wait for answers before you ask again"
            )


def add(counted: Counter[Hashable], scopes: Iterable[Hashable], count: int) -> None:
    """Count so many more for each of the scopes; one that comes to nothing is forgotten."""
    for scope in scopes:
        counted[scope] += count
        if not counted[scope]:
            del counted[scope]
