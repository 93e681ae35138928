"""Runs a module with one part of the bus's admission switched off: PART PYTHON -m MODULE ..."""

from __future__ import annotations

import os
import runpy
import sys
from collections import deque
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FunctionType

    from opdbus.bus.transport.send_queue import SendQueue, Written

_UNLIMITED = 1 << 60


class Part(NamedTuple):
    """A part, the attacks that it should withstand, and what stands in its place without it."""

    says: str
    attacks: Sequence[str]
    # module:name, both without what all have in common
    target: str
    replaced: Callable[[Any], object]

    def switch_off(self) -> None:
        """Replace it, before modules import what is replaced."""
        module, _, path = self.target.partition(":")
        *owners, name = path.split(".")
        owner = reduce(getattr, owners, import_module(f"opdbus.bus.{module}"))
        setattr(owner, name, self.replaced(getattr(owner, name)))


def _unlimited(limit: object) -> object:
    return dict.fromkeys(limit, _UNLIMITED) if isinstance(limit, dict) else _UNLIMITED


def _always(*, answer: bool) -> Callable[[object], object]:
    return lambda _: lambda *_: answer


def _constant(value: object) -> Callable[[object], object]:
    return lambda _: value


def _all_at_once(_: object) -> object:
    async def acquire(_turns: object, _turn: object) -> None:
        """Let every call work at once."""

    return acquire


def _no_lease(create: FunctionType) -> object:
    _, *others = create.__defaults__ or ()
    create.__defaults__ = (1e6, *others)
    return create


def _fifo(_: object) -> object:
    def enqueue(self: SendQueue, written: Written) -> None:
        self.size += len(written.data)
        if "" not in self._queues:
            self._queues[""] = deque()
            self._shares.add("")
        self._queues[""].append(written)

    return enqueue


FLOODS = ("flood of 10,000", "flood of 10,000, no replies", "8 floods")
SLOW = ("32 slow readers of large", "32 slow readers of vectors")
FAST = ("4 fast readers",)
UNREAD = ("4 floods, answers unread",)
_LIMITS, _REPLIES = "admission.limits:", "admission.replies:Replies."
_SCHEDULER, _SOCKET = "admission.fair_scheduler:", "transport.message_socket:"
PARTS = {
    "calls": Part("a limit of running calls", FLOODS[1:], _LIMITS + "MAX_CALLS", _unlimited),
    "first calls": Part(
        "a connection's first calls pass the limits of its user",
        FLOODS[2:],
        _LIMITS + "CALLS_ALWAYS_LET_IN",
        _constant(0),
    ),
    "call size": Part(
        "calls of more than 4 MiB are not read",
        ("32 MiB of variants",),
        _LIMITS + "MAX_CALL_BYTES",
        _unlimited,
    ),
    "call bytes": Part(
        "a limit of the bytes of running calls",
        ("calls of 3 MiB, no replies",),
        _LIMITS + "MAX_CALLS_BYTES",
        _unlimited,
    ),
    "files": Part("a limit of open files", ("files",), _LIMITS + "MAX_FILES", _unlimited),
    "texts": Part(
        "a limit of a user's texts in the queue",
        ("4 floods of new texts",),
        _LIMITS + "MAX_TEXTS_OF_A_USER",
        _unlimited,
    ),
    "scheduler": Part(
        "one call works at a time", FLOODS, _SCHEDULER + "FairScheduler.acquire", _all_at_once
    ),
    "fair turns": Part(
        "the next call is one of the connection served least, not the first that came",
        FLOODS[::2],
        _SCHEDULER + "FairScheduler.turn",
        lambda turn: lambda self, *_: turn(self, 0, ""),
    ),
    "lease": Part(
        "a turn ends after 0.1 s",
        ("publishing 8,000 at a time",),
        _SCHEDULER + "FairScheduler.__init__",
        _no_lease,
    ),
    "priority": Part(
        "the engine serves users with few calls first",
        FLOODS[2:],
        _SCHEDULER + "Turn.is_one_of_many",
        lambda _: property(lambda _: False),
    ),
    "send queue": Part(
        "the next message sent is for the receiver that was sent least, not the first",
        (FLOODS[2], SLOW[1], *FAST),
        "transport.send_queue:SendQueue.enqueue",
        _fifo,
    ),
    "unread": Part("a limit of unread replies", SLOW, _LIMITS + "MAX_UNREAD", _unlimited),
    "waiting": Part("a limit of replies held back", SLOW, _LIMITS + "MAX_WAITING", _unlimited),
    "behind": Part(
        "no work for clients that do not read", SLOW, _REPLIES + "is_behind", _always(answer=False)
    ),
    "errors": Part(
        "no errors to clients that do not read",
        UNREAD,
        _REPLIES + "may_send_error",
        _always(answer=True),
    ),
    "reading": Part(
        "4 ms of reading in a turn of the loop",
        (FLOODS[1], *UNREAD),
        _SOCKET + "_READ_SECONDS",
        _constant(1e6),
    ),
    "small reads": Part(
        "8 KiB read at a time", FLOODS[1:2], _SOCKET + "_SMALL", _constant(64 << 10)
    ),
    "signals": Part(
        "signals that nobody wants are skipped",
        ("signals of 4 MiB",),
        "authorization.authorizer:Authorizer.trusts",
        _always(answer=True),
    ),
    "closer": Part(
        "received files are closed on threads",
        ("files slow to close",),
        "transport.descriptors:Received._close_number",
        lambda _: lambda _, number: os.close(number),
    ),
}


def main() -> None:
    """Switch the part off, and run the module."""
    part, _python, _, module, *arguments = sys.argv[1:]
    PARTS[part].switch_off()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
