"""Counts of running and waiting work by connection, user and in total, with limits."""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

from opdbus.bus.admission.limits import (
    CALLS_ALWAYS_LET_IN,
    MAX_CALL_BYTES,
    MAX_CALLS,
    MAX_CALLS_BYTES,
    MAX_FILES,
    MAX_TEXTS_OF_A_USER,
    SMALL_BYTES,
)
from opdbus.bus.transport.descriptors import ELSEWHERE, closer_of
from opdbus.bus.transport.messages import Call
from opdbus.errors import LimitsExceeded

# The scopes of a count by kind of limit: connection, user, total.
Scopes: TypeAlias = "Mapping[str, Hashable]"
_WHOSE = {"connection": "this connection", "user": "this user", "total": "all users"}

_WINDOW_SECONDS: Final = 60.0
MOST_A_USER: Final = 5
# One user may have 65,536 subordinate uids.
MOST_USERS: Final = 64


class User(NamedTuple):
    """The scope of a user, distinct from names of connections."""

    uid: int


class Quota:
    """A counter by scope, with a limit for each kind of scope; `what` is for error messages."""

    def __init__(self, what: str, limits: Mapping[str, int]) -> None:
        self.what = what
        self.limits = limits
        # not a Counter, which takes three times as long
        self._used: dict[Hashable, int] = {}

    def __getitem__(self, scope: Hashable) -> int:
        """Return the count of a scope."""
        return self._used.get(scope, 0)

    def __bool__(self) -> bool:
        """Return whether any count is not zero."""
        return bool(self._used)

    def has_room(self, scopes: Scopes, count: int) -> bool:
        """Return whether every limit admits `count` more."""
        for kind, scope in scopes.items():
            if self._used.get(scope, 0) + count > self.limits[kind]:
                return False
        return True

    def require_room(self, scopes: Scopes, count: int) -> None:
        """Raise LimitsExceeded if a limit does not admit `count` more."""
        for kind, scope in scopes.items():
            if self[scope] + count > self.limits[kind]:
                raise LimitsExceeded(
                    f"{self[scope]} {self.what} of {_WHOSE[kind]} are being answered, and"
                    f" {self.limits[kind]} is the limit: wait for answers before you ask again"
                )

    def add(self, scopes: Scopes, count: int) -> None:
        """Add `count`, which may be negative, to each scope; the limits are not checked."""
        for scope in scopes.values() if count else ():
            if left := self._used.get(scope, 0) + count:
                self._used[scope] = left
            else:
                del self._used[scope]

    @contextmanager
    def reserve(self, scopes: Scopes, count: int) -> Iterator[None]:
        """Return a context in which `count` is added; raise LimitsExceeded."""
        self.require_room(scopes, count)
        self.add(scopes, count)
        try:
            yield
        finally:
            self.add(scopes, -count)


class Accounts:
    """Connections with their users, and the quotas that count for both."""

    def __init__(self) -> None:
        # scopes of connections with a known user
        self._scopes: dict[str, Scopes] = {}
        self._quotas: list[Quota] = []

    def quota(self, what: str, limits: Mapping[str, int]) -> Quota:
        """Create a quota in which a connection's count also counts for its user, once known."""
        self._quotas.append(Quota(what, limits))
        return self._quotas[-1]

    def scopes(self, sender: str) -> Scopes:
        """Return the scopes of a connection."""
        return self._scopes.get(sender) or {"connection": sender, "total": None}

    def identify(self, sender: str, uid: int) -> None:
        """Set a connection's user, and add the connection's present counts to the user's."""
        if sender not in self._scopes:
            user = User(uid)
            self._scopes[sender] = {"connection": sender, "user": user, "total": None}
            for quota in self._quotas:
                quota.add({"user": user}, quota[sender])

    def user_of(self, sender: str) -> int:
        """Return a connection's uid; -1 before it is known."""
        user = self.scopes(sender).get("user")
        return user.uid if isinstance(user, User) else -1

    def connections_of(self, uid: int | None = None) -> list[str]:
        """Return a user's connections, or all."""
        return [s for s, scopes in self._scopes.items() if uid is None or scopes["user"] == (uid,)]

    def forget(self, sender: str) -> None:
        """Drop a closed connection whose counts are all zero."""
        self._scopes.pop(sender, None)


class RunningCalls:
    """Admits and counts calls; a connection's first calls are exempt from the limit of calls."""

    def __init__(self) -> None:
        self.accounts = Accounts()
        self._calls = self.accounts.quota("calls", MAX_CALLS)
        self._bytes = self.accounts.quota("bytes of calls", MAX_CALLS_BYTES)
        self._files = self.accounts.quota("open files of calls", MAX_FILES)
        self.texts = Quota("texts", {"user": MAX_TEXTS_OF_A_USER})

    def admit(self, call: Call) -> None:
        """Count a call; raise LimitsExceeded if there is no room for it."""
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
        scopes = self.accounts.scopes(call.sender)
        if call.descriptors:
            self._files.require_room(scopes, len(call.descriptors))
            if ELSEWHERE.waiting > MAX_FILES["total"] and any(
                closer_of(file.fileno()) is ELSEWHERE for file in call.descriptors
            ):
                raise LimitsExceeded(
                    "files that came with earlier calls cannot be closed, since their file system"
                    " does not answer: send a memfd; no other file is taken until it does"
                )
        if self._calls[call.sender] >= CALLS_ALWAYS_LET_IN:
            self._calls.require_room(scopes, 1)
        if call.size > SMALL_BYTES:
            self._bytes.require_room(scopes, call.size)
        self._count(call, 1)

    def release(self, call: Call) -> None:
        """Stop counting a call that has ended."""
        self._count(call, -1)

    def _count(self, call: Call, sign: int) -> None:
        scopes = self.accounts.scopes(call.sender)
        self._calls.add(scopes, sign)
        self._bytes.add(scopes, sign * call.size)
        self._files.add(scopes, sign * len(call.descriptors))


class LogLimit:
    """Admits the first refusals of each uid in a minute to the log, and counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._logged: Counter[int] = Counter()
        self._suppressed = 0

    def admit(self, uid: int) -> int | None:
        """Return the number of lines suppressed since the last one; None to suppress this one."""
        if self._clock() - self._since >= _WINDOW_SECONDS:
            self._since = self._clock()
            self._logged.clear()
        is_known = uid in self._logged or len(self._logged) < MOST_USERS
        if not is_known or self._logged[uid] >= MOST_A_USER:
            self._suppressed += 1
            return None
        self._logged[uid] += 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
