"""Long operations that clients can watch and cancel: org.opdbus.Job1 below /org/opdbus/job."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from opdbus.bus import names, paths
from opdbus.bus.service import contract
from opdbus.bus.service.contract import Caller, Node
from opdbus.bus.transport.values import Plain
from opdbus.errors import AccessDenied, Cancelled

Notify = Callable[[str, str, Mapping[str, Plain]], None]

# Seconds for which an ended job stays visible, and the most of these jobs.
KEEP_SECONDS: Final = 60.0
KEPT: Final = 100
# The least interval between signals of progress.
_NOTIFY_SECONDS: Final = 0.5
_ROOT_UID: Final = 0

RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"


class Job:
    """org.opdbus.Job1: an operation on `total` items.

    `on_change` is called after each change of a property.
    """

    info = contract.interface(names.JOB)

    def __init__(self, kind: str, total: int, owner: Caller, on_change: Callable[[], None]) -> None:
        self.kind = kind
        self.total = total
        self.owner = owner
        self.done = 0
        self.state = RUNNING
        self._on_change = on_change
        self._work: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def end(self, state: str) -> None:
        """Set the final state."""
        self.state = state
        if state == DONE:
            # fewer items may have been found than were counted
            self.total = self.done
        self._on_change()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Await the work; raise Cancelled if `cancel` ended it."""
        self._work = asyncio.create_task(work)
        try:
            await self._work
        except asyncio.CancelledError:
            if self._is_cancelled:
                raise Cancelled(
                    f"the job was cancelled when {self.done} of {self.total} were done"
                ) from None
            raise

    def advance(self, count: int) -> None:
        """Add to the number of completed items."""
        self.done += count
        self._on_change()

    async def cancel(self, caller: Caller) -> None:
        """Cancel the work, if it has not ended; raise AccessDenied for other users than its own."""
        if caller.uid not in {_ROOT_UID, self.owner.uid}:
            raise AccessDenied(
                f"uid {caller.uid} may not cancel this job: its owner, uid {self.owner.uid},"
                " and root may"
            )
        if self._work and not self._work.done():
            self._is_cancelled = True
            self._work.cancel()

    async def properties(self) -> Mapping[str, Plain]:
        """Return every property's value."""
        return self.values()

    def values(self) -> dict[str, Plain]:
        """Return every property's value."""
        return {
            "Kind": self.kind,
            "Progress": self.done / self.total if self.total else float(self.state == DONE),
            "Done": self.done,
            "Total": self.total,
            "State": self.state,
            "Caller": self.owner.sender,
            "User": self.owner.uid,
        }


class Jobs:
    """The visible jobs: running ones, and recently ended ones.

    `notify` gets path, interface and properties of a changed job, with no properties for a removed
    one; `on_change` is called when a job is added or removed.
    """

    def __init__(
        self,
        notify: Notify,
        on_change: Callable[[], None] = lambda: None,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._notify = notify
        self._keep_seconds = keep_seconds
        self._seen: dict[int, Job] = {}
        self._count = 0
        self._waiting: dict[int, asyncio.TimerHandle] = {}
        self.on_change = on_change

    @contextmanager
    def begin(self, kind: str, total: int, owner: Caller, *, is_seen: bool) -> Iterator[Job]:
        """Return a context with a job, visible if `is_seen`; the job ends with the context."""
        job = Job(kind, total, owner, lambda: None)
        if is_seen:
            self._count += 1
            number = self._count
            job = self._seen[number] = Job(
                kind, total, owner, lambda: self._signal_progress(number)
            )
            self._notify_of(number)
            self.on_change()
        try:
            yield job
        except BaseException as error:
            was_cancelled = isinstance(error, asyncio.CancelledError | Cancelled)
            job.end(CANCELLED if was_cancelled else FAILED)
            raise
        job.end(DONE)

    def paths(self) -> list[str]:
        """Return the paths of all visible jobs, the oldest first."""
        return [_path(number) for number in self._seen]

    def names(self) -> list[str]:
        """Return the last elements of these paths."""
        return list(map(str, self._seen))

    def find(self, path: str) -> Node | None:
        """Return the node of a job, or of the parent of jobs, or None."""
        if path == paths.JOBS:
            return Node((), self.names)
        for number, job in self._seen.items():
            if path == _path(number):
                return Node((job,), list)
        return None

    def _signal_progress(self, number: int) -> None:
        """Signal progress after a while, but an end at once.

        An ended job is removed after a while, and so are the oldest ended ones past KEPT.
        """
        loop = asyncio.get_running_loop()
        if self._seen[number].state == RUNNING:
            if number not in self._waiting:
                self._waiting[number] = loop.call_later(_NOTIFY_SECONDS, self._notify_of, number)
            return
        if number in self._waiting:
            self._waiting[number].cancel()
        self._notify_of(number)
        ended = [n for n, job in self._seen.items() if job.state != RUNNING]
        for oldest in ended[:-KEPT]:
            self._forget(oldest)
        loop.call_later(self._keep_seconds, self._forget, number)

    def _notify_of(self, number: int) -> None:
        self._waiting.pop(number, None)
        self._notify(_path(number), names.JOB, self._seen[number].values())

    def _forget(self, number: int) -> None:
        if self._seen.pop(number, None):
            self._notify(_path(number), names.JOB, {})
            self.on_change()


def _path(number: int) -> str:
    return f"{paths.JOBS}/{number}"
