"""Runs the observers side by side: each is started again when its source was lost or comes."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from opdbus.errors import OpDbusError
from opdbus.index.memory import Memory
from opdbus.observe.report import Absent, LostSource, Observer, Report
from opdbus.observe.writer import Writer
from opdbus.state.object import LIVE
from opdbus.tasks import pauses, until_first_ends

log = structlog.get_logger()

# Before an observer is started again: a source that restarts is back soon.
_RETRY_SECONDS: Final = (0.2, 1.0, 5.0, 20.0, 60.0)
# An observer that ran for so long begins with the short pause again.
_STEADY_SECONDS: Final = 60.0
STARTING, UP, ABSENT, FAILED = "starting", "up", "absent", "failed"


class Status(NamedTuple):
    """How an observer is: its name, starting, up, absent or failed, its objects, and why."""

    name: str
    state: str
    objects: int
    detail: str


class _Watched:
    """One observer, and how it is."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.report = Report()
        self.state = STARTING
        self.reason = ""

    @property
    def detail(self) -> str:
        return "; ".join(filter(None, (self.reason, self.report.refused, self.report.said)))

    def set(self, state: str, reason: str = "") -> None:
        if (state, reason) != (self.state, self.reason):
            write = log.warning if state == FAILED else log.info
            write("observer", name=self.observer.name, state=state, reason=reason or None)
        self.state, self.reason = state, reason


class Supervisor:
    """Keeps observers running; a fault of one concerns no other."""

    def __init__(
        self,
        observers: Sequence[Observer],
        memory: Memory,
        retry_seconds: Sequence[float] = _RETRY_SECONDS,
    ) -> None:
        self._watched = [_Watched(observer) for observer in observers]
        self._memory = memory
        self._retry_seconds = retry_seconds

    @property
    def statuses(self) -> list[Status]:
        """How each observer is."""
        counts = self._memory.catalogue.sources
        return [
            Status(w.observer.name, w.state, counts[w.observer.source], w.detail)
            for w in self._watched
        ]

    async def run(self) -> None:
        """Observe until cancelled; the objects of other observers are removed first."""
        await self._remove_others()
        async with asyncio.TaskGroup() as group:
            for watched in self._watched:
                group.create_task(self._keep(watched))
            await asyncio.Event().wait()

    async def _remove_others(self) -> None:
        wanted = {watched.observer.source for watched in self._watched}
        entries = [entry.identity for entry in self._memory.catalogue]
        gone = {i for i in entries if i.source.startswith(LIVE) and i.source not in wanted}
        with suppress(OpDbusError):  # at the next start, then
            await self._memory.observe([], gone, {})

    async def _keep(self, watched: _Watched) -> None:
        """Run an observer for ever."""
        clock = asyncio.get_running_loop().time
        delays = pauses(self._retry_seconds)
        while True:
            started = clock()
            state, reason = await self._attempt(watched)
            watched.set(state, reason)
            if clock() - started > _STEADY_SECONDS:
                delays = pauses(self._retry_seconds)
            await asyncio.sleep(next(delays))

    async def _attempt(self, watched: _Watched) -> tuple[str, str]:
        """Run an observer until it ends, and return how it is then, and why."""
        watched.report = Report()
        writer = Writer(watched.observer, watched.report, self._memory)
        try:
            await until_first_ends(
                watched.observer.observe(watched.report), writer.run(), _tell(watched, writer)
            )
        except Absent as error:
            with suppress(OpDbusError):  # those that are left are removed at the next attempt
                await writer.clear()
            return ABSENT, str(error)
        except (LostSource, OpDbusError, OSError) as error:
            return FAILED, str(error)
        except Exception as error:
            # whatever an observer raises must not end the others
            log.exception("observer fault", name=watched.observer.name)
            return FAILED, f"{type(error).__name__}: {error}"
        return FAILED, "it ended, although its source is there"


async def _tell(watched: _Watched, writer: Writer) -> None:
    """Say that an observer is up as soon as its first listing is written."""
    await writer.has_written.wait()
    watched.set(UP)
    await asyncio.Event().wait()
