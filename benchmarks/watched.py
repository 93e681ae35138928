"""The daemon with a watch of how long its interpreter's lock is kept: `watched.py MARKS`.

A thread wakes each millisecond, and is late for as long as another thread keeps the lock. Turns of
the event loop are measured between two selects. The longest times go to the file MARKS, two doubles
that lock.py reads; LOCK_TRACE=MS writes the stacks of longer times to the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import runpy
import selectors
import struct
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MARKS: Final = struct.Struct("dd")
TRACED: Final = float(os.environ.get("LOCK_TRACE", "inf")) / 1000
_LOCK, _LOOP = 0, 1
_WAKE: Final = 0.001
# Short, so that several threads that take turns are not taken for one that keeps the lock.
_TURN: Final = 0.0005


class _Stat:
    """The time for which this thread has waited for a processor so far; see proc(5)."""

    def __init__(self) -> None:
        self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def waited(self) -> float:
        return int(os.pread(self._file, 99, 0).split()[1]) / 1e9


class _Selector(selectors.EpollSelector):
    """Measures the turns of the event loop, which lie between two selects."""

    def __init__(self, note: Callable[[int, float], None]) -> None:
        super().__init__()
        self._note = note
        self._stat = _Stat()
        self.thread = threading.get_ident()
        self.began: tuple[float, float, float] | None = None

    def select(self, timeout: float | None = None) -> Any:  # noqa: ANN401 -- as the class above
        if self.began:
            wall, cpu, waited = (b - a for a, b in zip(self.began, self._now(), strict=True))
            self.began = None
            self._note(_LOOP, min(wall - waited, cpu))
        found = super().select(timeout)
        self.began = self._now()
        return found

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), self._stat.waited()


class _Watch(asyncio.DefaultEventLoopPolicy):
    """Gives the daemon a loop whose turns are measured, and a thread that measures the lock."""

    def __init__(self, path: str) -> None:
        super().__init__()
        with open(path, "r+b") as file:  # noqa: PTH123 -- the descriptor is what is wanted
            self._memory = mmap.mmap(file.fileno(), MARKS.size)
        self._selector: _Selector | None = None
        self._traced: object = None
        threading.Thread(target=self._watch, daemon=True).start()

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        self._selector = _Selector(self._note)
        return asyncio.SelectorEventLoop(self._selector)

    def _note(self, which: int, seconds: float) -> None:
        marks = [*MARKS.unpack(self._memory[:])]
        marks[which] = max(marks[which], seconds)
        self._memory[:] = MARKS.pack(*marks)

    def _watch(self) -> None:
        sys.setswitchinterval(_TURN)
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
        while True:
            start, cpu = time.monotonic(), time.process_time()
            time.sleep(_WAKE)
            late, spent = time.monotonic() - start - _WAKE, time.process_time() - cpu
            held = min(late, spent)
            self._note(_LOCK, held)
            if held > TRACED:
                _trace(f"the lock was kept for {1000 * held:.0f} ms", sys._current_frames())
            self._trace_turn()

    def _trace_turn(self) -> None:
        turn = self._selector and self._selector.began
        if self._selector and turn and turn is not self._traced:
            held = time.monotonic() - turn[0]
            if held > TRACED:
                self._traced = turn
                own = self._selector.thread
                frames = {own: sys._current_frames()[own]}
                _trace(f"the loop has stood for {1000 * held:.0f} ms", frames)


def _trace(why: str, frames: dict[int, Any]) -> None:
    print(f"== {why}", file=sys.stderr)
    for thread, frame in frames.items():
        stack = traceback.extract_stack(frame)
        if thread == threading.get_ident() or stack[-1].name in {"_worker", "wait", "select"}:
            continue
        lines = [f"{one.filename.rpartition('/')[2]}:{one.lineno} {one.name}" for one in stack]
        print("   ", " < ".join(reversed(lines[-12:])), file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.set_event_loop_policy(_Watch(sys.argv[1]))
    sys.argv = ["op-dbus", "daemon"]
    runpy.run_module("opdbus", run_name="__main__")
