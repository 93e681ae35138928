"""Calls that run: how many of a connection, of a user, and in all, and the bytes they hold."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from opdbus.bus.closing import CLOSER
from opdbus.bus.limits import (
    CALLS_ALWAYS_LET_IN,
    MAX_CALL_BYTES,
    MAX_CALLS,
    MAX_CALLS_BYTES,
    MAX_FILES,
    MAX_TEXTS_OF_A_USER,
    SMALL_BYTES,
)
from opdbus.errors import LimitsExceeded

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping

    from opdbus.bus.connection import Call


class User(NamedTuple):
    """A scope of counting that is no connection's name."""

    uid: int


class Load:
    """Lets calls in and counts them; a connection's first ones go past what others have running."""

    def __init__(self) -> None:
        self._calls: Counter[Hashable] = Counter()
        self._bytes: Counter[Hashable] = Counter()
        self._files: Counter[Hashable] = Counter()
        self._texts: Counter[Hashable] = Counter()
        self._uids: dict[str, int] = {}

    def enter(self, call: Call) -> None:
        """Count a call; raises LimitsExceeded if there is no room for it."""
        if not call.is_whole:
            raise LimitsExceeded(
                f"the call has {call.size} bytes, past the limit of {MAX_CALL_BYTES}: send less at"
                " a time"
            )
        if call.lost_files:
            raise LimitsExceeded(
                "the open files that came with the call could not be taken: too many are open here;"
                " try again later"
            )
        scopes = self._scopes(call.sender)
        if call.descriptors:
            self._require_room_for_files(scopes, len(call.descriptors))
        if self._calls[call.sender] >= CALLS_ALWAYS_LET_IN:
            require_room(self._calls, scopes, 1, MAX_CALLS, "calls")
        if call.size > SMALL_BYTES:
            require_room(self._bytes, scopes, call.size, MAX_CALLS_BYTES, "bytes of calls")
        self._count(call, 1)

    def leave(self, call: Call) -> None:
        """Forget a call that has ended."""
        self._count(call, -1)

    def identified(self, sender: str, uid: int) -> None:
        """Count the calls of a connection for its user from now on."""
        if sender not in self._uids:
            self._uids[sender] = uid
            for counted in (self._calls, self._bytes, self._files):
                add(counted, [User(uid)], counted[sender])

    def user_of(self, sender: str) -> int:
        """Give a connection's user; -1 before it is known."""
        return self._uids.get(sender, -1)

    def forget(self, sender: str) -> None:
        """Drop what is known of a connection that is gone, and of which no call is running."""
        self._uids.pop(sender, None)

    @contextmanager
    def texts(self, uid: int, count: int) -> Iterator[None]:
        """Count texts that wait for their vectors; raises LimitsExceeded past a user's share."""
        scopes: dict[str, Hashable] = {"user": uid}
        require_room(self._texts, scopes, count, {"user": MAX_TEXTS_OF_A_USER}, "texts")
        add(self._texts, [uid], count)
        try:
            yield
        finally:
            add(self._texts, [uid], -count)

    def _scopes(self, sender: str) -> dict[str, Hashable]:
        uid = self._uids.get(sender)
        user = {} if uid is None else {"user": User(uid)}
        return {"connection": sender, **user, "total": None}

    def _count(self, call: Call, sign: int) -> None:
        scopes = self._scopes(call.sender).values()
        add(self._calls, scopes, sign)
        add(self._bytes, scopes, sign * call.size)
        add(self._files, scopes, sign * len(call.descriptors))

    def _require_room_for_files(self, scopes: Mapping[str, Hashable], count: int) -> None:
        require_room(self._files, scopes, count, MAX_FILES, "open files of calls")
        if CLOSER.waiting > MAX_FILES["total"]:
            raise LimitsExceeded(
                "files that came with earlier calls cannot be closed, since their file system does"
                " not answer: no more files are taken until it does"
            )


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
