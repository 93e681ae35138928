"""Runs a module with one part of the bus's admission switched off: PART PYTHON -m MODULE ..."""

from __future__ import annotations

import os
import runpy
import sys
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FunctionType


_UNLIMITED = 1 << 60


class Part(NamedTuple):
    """What is replaced, as module:name, by what, and the attacks against which the part stands."""

    target: str
    replaced: Callable[[Any], object]
    attacks: Sequence[str]

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


FLOOD, QUIET_FLOOD, FLOODS = "flood of 10,000", "flood of 10,000, no replies", "8 floods"
SLOW = ("32 slow readers of large", "32 slow readers of vectors")
FAST, UNREAD = "4 fast readers", "4 floods, answers unread"
_LIMITS, _REPLIES = "admission.limits:", "admission.replies:Replies."
_SCHEDULER, _SOCKET = "admission.fair_scheduler:", "transport.message_socket:"
PARTS = {
    "limit of calls": Part(_LIMITS + "MAX_CALLS", _unlimited, (QUIET_FLOOD, FLOODS)),
    "first calls": Part(_LIMITS + "CALLS_ALWAYS_LET_IN", _constant(0), (FLOODS,)),
    "call size": Part(_LIMITS + "MAX_CALL_BYTES", _unlimited, ("32 MiB of variants",)),
    "call bytes": Part(_LIMITS + "MAX_CALLS_BYTES", _unlimited, ("calls of 3 MiB, no replies",)),
    "limit of files": Part(_LIMITS + "MAX_FILES", _unlimited, ("files",)),
    "queued texts": Part(_LIMITS + "MAX_TEXTS_OF_A_USER", _unlimited, ("4 floods of new texts",)),
    "large replies wait": Part(_REPLIES + "_is_clear", _always(answer=True), (FAST, SLOW[1])),
    "unread replies": Part(_LIMITS + "MAX_UNREAD", _unlimited, SLOW),
    "held replies": Part(_LIMITS + "MAX_WAITING", _unlimited, SLOW),
    "slow readers wait": Part(_REPLIES + "is_behind", _always(answer=False), SLOW),
    "unread errors": Part(_REPLIES + "may_send_error", _always(answer=True), (UNREAD,)),
    "one call at a time": Part(
        _SCHEDULER + "FairScheduler.acquire", _all_at_once, (FLOOD, QUIET_FLOOD, FLOODS)
    ),
    "fair turns": Part(
        _SCHEDULER + "FairScheduler.turn",
        lambda turn: lambda s, *_: turn(s, 0, ""),
        (FLOOD, FLOODS),
    ),
    "lease": Part(
        _SCHEDULER + "FairScheduler.__init__", _no_lease, ("publishing 8,000 at a time",)
    ),
    "priority": Part(
        _SCHEDULER + "Turn.is_one_of_many", lambda _: property(lambda _: False), (FLOODS,)
    ),
    "4 ms of reading": Part(_SOCKET + "READ_SECONDS", _constant(1e6), (QUIET_FLOOD, UNREAD)),
    "8 KiB of reading": Part(_SOCKET + "_SMALL", _constant(64 << 10), (QUIET_FLOOD,)),
    "unwanted signals": Part(
        "authorization.polkit:Polkit.trusts", _always(answer=True), ("signals of 4 MiB",)
    ),
    "closing threads": Part(
        "transport.descriptors:Received._close_number",
        lambda _: lambda _, number: os.close(number),
        ("files slow to close",),
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
