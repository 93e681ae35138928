"""Calls that run: how many of a connection, of a user, and in all, and the bytes they hold."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from opdbus.bus.admission.accounting import Accounts, User, add, require_room
from opdbus.bus.admission.limits import (
    CALLS_ALWAYS_LET_IN,
    MAX_CALL_BYTES,
    MAX_CALLS,
    MAX_CALLS_BYTES,
    MAX_FILES,
    MAX_TEXTS_OF_A_USER,
    SMALL_BYTES,
)
from opdbus.bus.transport.fd_closer import ELSEWHERE, closer_of
from opdbus.errors import LimitsExceeded

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from opdbus.bus.transport.connection import Call
    from opdbus.bus.transport.descriptors import Descriptor


class RunningCalls:
    """Lets calls in and counts them; a connection's first ones go past what others have running."""

    def __init__(self) -> None:
        self.scopes = Accounts()
        self._calls = self.scopes.counter()
        self._bytes = self.scopes.counter()
        self._files = self.scopes.counter()
        self._texts = self.scopes.counter()

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
        scopes = self.scopes.of(call.sender)
        if call.descriptors:
            self._require_room_for_files(scopes, call.descriptors)
        if self._calls[call.sender] >= CALLS_ALWAYS_LET_IN:
            require_room(self._calls, scopes, 1, MAX_CALLS, "calls")
        if call.size > SMALL_BYTES:
            require_room(self._bytes, scopes, call.size, MAX_CALLS_BYTES, "bytes of calls")
        self._count(call, 1)

    def leave(self, call: Call) -> None:
        """Forget a call that has ended."""
        self._count(call, -1)

    @contextmanager
    def texts(self, uid: int, count: int) -> Iterator[None]:
        """Count texts that wait for their vectors; raises LimitsExceeded past a user's share."""
        user = User(uid)
        require_room(self._texts, {"user": user}, count, {"user": MAX_TEXTS_OF_A_USER}, "texts")
        add(self._texts, [user], count)
        try:
            yield
        finally:
            add(self._texts, [user], -count)

    def _count(self, call: Call, sign: int) -> None:
        scopes = self.scopes.of(call.sender).values()
        add(self._calls, scopes, sign)
        add(self._bytes, scopes, sign * call.size)
        add(self._files, scopes, sign * len(call.descriptors))

    def _require_room_for_files(
        self, scopes: Mapping[str, Hashable], files: Sequence[Descriptor]
    ) -> None:
        require_room(self._files, scopes, len(files), MAX_FILES, "open files of calls")
        if ELSEWHERE.waiting > MAX_FILES["total"] and any(
            closer_of(file.fileno()) is ELSEWHERE for file in files
        ):
            raise LimitsExceeded(
                "files that came with earlier calls cannot be closed, since their file system does"
                " not answer: send a memfd; no other file is taken until it does"
            )
