"""The sender: keeps the fleet's database equal to this host, by the daemon's signals."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from opdbus.bus import paths
from opdbus.client import Client, following
from opdbus.errors import AccessDenied, BusError, ConfigError, LimitsExceeded, OpDbusError
from opdbus.fleet import host_reader
from opdbus.fleet.host_reader import BATCH_ROWS, Model
from opdbus.fleet.uplink import ChangeRow, StateRow, Uplink
from opdbus.platform.tasks import at_most, cancel, signals, until_first_ends
from opdbus.state.object import Json
from opdbus.systemd.notify import Systemd

log = structlog.get_logger()

# Objects that are remembered by name: once there are more, all are compared instead.
_MOST_CHANGED: Final = 20_000
# Objects that are remembered until they have their vectors; workers compute those of the others.
_MOST_AWAITING: Final = 50_000
_DRIFT_SIGNALS: Final = frozenset({"DriftDetected"})


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in seconds; tests have shorter ones."""

    # news that come together are sent together
    gather: float = 1.0
    # the connection is kept so long without news
    linger: float = 15.0
    keep_alive: float = 60.0
    comparison: float = 3600.0
    drift: float = 5.0
    first_retry: float = 1.0
    longest_retry: float = 60.0
    # after a refusal, which only a person can mend
    refused: float = 300.0


_PACE: Final = Pace()


class _Interrupted(Exception):
    """The daemon or its history is another one: the synchronization begins again."""


@dataclass(slots=True)
class _Memory:
    """The state that outlives sessions."""

    model: Model = field(default_factory=Model)
    epoch: int = 0
    # paths of objects whose texts lack a vector in the database and here
    awaiting: dict[str, None] = field(default_factory=dict)
    # paths of objects whose states were too large to send when they were read last
    too_large: set[str] = field(default_factory=set)


class News:
    """Everything that the daemon's signals say must be sent; bounded."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.has_come = asyncio.Event()
        # set when the daemon or the bus came, or went
        self.has_interruption = asyncio.Event()
        self.needs_comparison = True
        self.has_drift = True
        self.has_vectors = False
        self._changed: dict[str, None] = {}

    def take(self, client: Client, signals: Iterable[tuple[str, list[Any]]]) -> None:
        """Take signals of `Client.all_news`."""
        if client is not self.client:
            self.client = client
            self.interrupt()
        for name, body in signals:
            if name == "Changed":
                self.add_changed(path for path, _ in body[1])
            elif name == "NameOwnerChanged":
                self.interrupt()
            elif name in _DRIFT_SIGNALS:
                self.has_drift = True
            elif name == "Vectorized":
                self.has_vectors = True
        self.has_come.set()

    def interrupt(self) -> None:
        """Note that signals may have been missed."""
        self.needs_comparison = self.has_drift = self.has_vectors = True
        self.has_interruption.set()
        self._changed.clear()

    def lose_bus(self) -> None:
        """Note that there is no bus any more."""
        self.client = None
        self.has_come.set()

    def add_changed(self, objects: Iterable[str]) -> None:
        """Remember objects whose state must be sent."""
        self._changed.update(dict.fromkeys(objects))
        if len(self._changed) > _MOST_CHANGED:
            self.needs_comparison = True
            self._changed.clear()

    def take_changed(self) -> list[str]:
        """Return the next objects whose state must be sent, at most those of a batch."""
        found = list(self._changed)[:BATCH_ROWS]
        for path in found:
            del self._changed[path]
        return found

    def begin_comparison(self) -> None:
        """Forget changed objects: all are compared now."""
        self.needs_comparison = False
        self._changed.clear()


@dataclass
class Progress:
    """The state of the sender in words and numbers, for its status and for tests."""

    renew: Callable[[], object] = lambda: None
    text: str = "Connecting"
    comparisons: int = 0
    batches: int = 0
    rows: int = 0

    def say(self, text: str) -> None:
        """Set the text."""
        if text != self.text:
            self.text = text
            self.renew()


class Sender:
    """Sends one host's objects, history, vectors and drift to the fleet's database.

    `connect` returns a new connection to the database as a context.
    """

    def __init__(
        self,
        bus: str,
        connect: Callable[[], Uplink],
        progress: Progress | None = None,
        pace: Pace = _PACE,
    ) -> None:
        self.progress = progress or Progress()
        self._bus = bus
        self._connect = connect
        self._pace = pace
        self._news = News()
        self._memory = _Memory()
        self._fault = ""
        self._retries = 0
        # by time.monotonic()
        self._compared_at = self._alive_at = self._drift_at = self._sent_at = float("-inf")

    async def run(self) -> None:
        """Send until cancelled; faults are logged, and it goes on."""
        listening = asyncio.create_task(self._listen())
        try:
            # the first signal says that the bus is there
            await self._wait(time.monotonic() + self._pace.longest_retry)
            while True:
                async with at_most(await self._try_session()):
                    await self._news.has_interruption.wait()
                await self._wait(self._next_due())
        finally:
            await cancel([listening])

    async def _listen(self) -> None:
        def connect() -> Awaitable[Client]:
            return following.connect_without_user(self._bus)

        async with aclosing(following.follow(connect, Client.all_news)) as bursts:
            async for burst in bursts:
                if burst:
                    self._news.take(*burst)
                else:
                    self._news.lose_bus()

    async def _wait(self, until: float) -> None:
        """Wait for news, and a little longer for those that come with them, or until a time."""
        async with at_most(max(0.0, until - time.monotonic())):
            await self._news.has_come.wait()
            await asyncio.sleep(self._pace.gather)
        self._news.has_come.clear()

    def _next_due(self) -> float:
        """Return the time at which something must be sent without news."""
        if self._retries or self._news.needs_comparison:
            return 0.0
        due = min(self._alive_at + self._pace.keep_alive, self._compared_at + self._pace.comparison)
        return min(due, self._drift_due()) if self._news.has_drift else due

    def _drift_due(self) -> float:
        return self._drift_at + self._pace.drift

    async def _try_session(self) -> float:
        """Run a session; return the seconds to wait after a fault, else 0."""
        try:
            await self._session()
        except _Interrupted:
            return self._pace.gather
        except (AccessDenied, ConfigError, LimitsExceeded) as error:
            return self._note_fault(error, self._pace.refused)
        except OpDbusError as error:
            longest = self._pace.longest_retry
            return self._note_fault(error, min(longest, self._pace.first_retry * 2**self._retries))
        return 0.0

    def _note_success(self) -> None:
        if self._fault:
            log.info("fleet is reached again", after=self._fault)
        self._fault, self._retries = "", 0

    def _note_fault(self, error: OpDbusError, seconds: float) -> float:
        """Log a fault once, note that all must be compared; return the pause, with jitter."""
        self._news.needs_comparison = True
        self._retries = min(self._retries + 1, 30)
        pause = seconds * random.uniform(0.5, 1.0)  # noqa: S311 -- hosts must not come together
        if str(error) != self._fault:
            self._fault = str(error)
            log.warning("cannot send to the fleet", reason=self._fault, retry_in=f"{pause:.0f} s")
        self.progress.say(f"Cannot send, next attempt in {pause:.0f} s: {error}")
        return pause

    async def _session(self) -> None:
        """Send all that is new over one connection, until there have been no news for a while."""
        # cleared first: an interruption from now on is one of this session
        self._news.has_interruption.clear()
        client = self._news.client
        if not client:
            raise BusError(f"there is no {self._bus} bus")
        if not await client.is_served():
            # a call would start a daemon that was stopped
            raise BusError("op-dbus is not running: `systemctl start op-dbus`")
        async with self._connect() as uplink:
            session = _Session(client, uplink, self._news, self._memory, self.progress)
            await session.begin()
            while True:
                await self._send(session)
                self._note_success()
                self.progress.say(f"All is sent, up to row {session.seq} of history")
                end = time.monotonic() + self._pace.linger
                await self._wait(min(end, self._next_due()))
                if time.monotonic() >= end:
                    return
                if self._news.client is not client or self._news.has_interruption.is_set():
                    raise _Interrupted

    async def _send(self, session: "_Session") -> None:
        """Send everything that is due now."""
        news = self._news
        now = time.monotonic()
        if news.needs_comparison or now >= self._compared_at + self._pace.comparison:
            self._compared_at = time.monotonic()
            if not await session.compare():
                self._compared_at += self._pace.refused - self._pace.comparison
            news.has_drift = True
            self._drift_at = float("-inf")
        if await session.send_news():
            self._sent_at = time.monotonic()
        if news.has_vectors:
            await session.send_late_vectors()
        if time.monotonic() >= self._alive_at + self._pace.keep_alive:
            await session.keep_alive()
            self._alive_at = time.monotonic()
            # Drift below the threshold has no signal, and follows its cause after a while: read it
            # until a read began two keep-alives after the last batch.
            news.has_drift |= self._drift_at < self._sent_at + 2 * self._pace.keep_alive
        if news.has_drift and (began := time.monotonic()) >= self._drift_due():
            await session.send_drift()
            self._drift_at = began


class _Session:
    """One connection to the database, and what was sent over it."""

    def __init__(
        self, client: Client, uplink: Uplink, news: News, memory: _Memory, progress: Progress
    ) -> None:
        self.seq = 0
        self._client = client
        self._uplink = uplink
        self._news = news
        self._memory = memory
        self._progress = progress
        self._last = 0
        # the drift that was sent over this connection
        self._drift: list[list[Json]] | None = None
        # states are those of this row of history or of later ones
        self._compared_to = 0

    async def begin(self) -> None:
        """Begin where the stored history ends; raises AccessDenied for another machine."""
        memory = self._memory
        if self._news.has_vectors:
            memory.model = await host_reader.read_model(self._client)
        facts = await host_reader.read_facts(self._client, memory.model)
        stored, digest = await self._uplink.stored_history()
        own = await host_reader.hash_at(self._client, stored)
        self.seq = await self._uplink.begin(facts, own)
        self._last = facts.last
        if stored and (facts.last < stored or (own and digest and own != digest)):
            log.warning(
                "history is not the one that the fleet has: it is stored beside the other",
                stored_row=stored,
                last_row=facts.last,
            )
        elif self._uplink.epoch > 1 and memory.epoch and self._uplink.epoch != memory.epoch:
            log.warning("rows of history were pruned before they were sent", until=self.seq)
        if self._uplink.epoch != memory.epoch:
            memory.epoch = self._uplink.epoch
            self._news.needs_comparison = True

    async def compare(self) -> bool:
        """Send every state that differs, and remove what is gone; return False if some may differ.

        Objects of an observer that has not listed any yet are not removed, and may be missing;
        states that are too large are not sent.
        """
        self._progress.say("Comparing all objects")
        self._progress.comparisons += 1
        self._news.begin_comparison()
        last = self._last = await self._client.last_row()
        observers = await host_reader.read_observers(self._client)
        unlisted = host_reader.unlisted_sources(observers)
        stored = await self._uplink.stored_digests()
        wanted = []
        async with aclosing(host_reader.read_digests(self._client)) as digests:
            async for name, digest in digests:
                known = stored.pop(name, None)
                if known is None or known.digest != digest:
                    wanted.append(host_reader.path_of(*name))
        kept = {name for name, state in stored.items() if state.source in unlisted}
        # removals first: they make room for new objects on a host at its limit
        wanted = [host_reader.path_of(*name) for name in stored.keys() - kept] + wanted
        for at in range(0, len(wanted), BATCH_ROWS):
            await self._send_batch([], wanted[at : at + BATCH_ROWS], is_last=False)
        self._compared_to = last
        if kept:
            log.info("objects are kept whose observer has not listed yet", objects=len(kept))
        # those that are gone or equal are not among the wanted ones
        self._memory.too_large &= set(wanted)
        # one that failed without objects may never list any
        is_listing = any(state == "starting" for _, state, *_ in observers)
        if kept or is_listing or self._memory.too_large:
            return False
        await self._uplink.end_comparison()
        return True

    async def send_news(self) -> bool:
        """Send new rows of history, and the states of all objects that changed.

        Return whether there were any.
        """
        has_news = False
        while True:
            self._last = await self._client.last_row()
            rows = await host_reader.read_changes(self._client, self.seq, self._last)
            if self._last < self.seq or (rows and rows[0].row.seq != self.seq + 1):
                self._news.needs_comparison = True
                raise _Interrupted
            objects = dict.fromkeys(r.path for r in rows if r.row.seq > self._compared_to)
            if len(objects) < BATCH_ROWS:
                objects.update(dict.fromkeys(self._news.take_changed()))
            if not rows and not objects:
                return has_news
            await self._send_batch([r.row for r in rows], list(objects), is_last=True)
            has_news = True

    async def _send_batch(
        self, changes: list[ChangeRow], objects: list[str], *, is_last: bool
    ) -> None:
        """Send rows and the states of objects, in several transactions if states are large.

        The rows are in the last of them. With `is_last`, all is sent that was known.
        """
        seq = changes[-1].seq if changes else self.seq
        remaining = self._last - seq if is_last else max(1, self._last - seq)
        if remaining > 1:
            self._progress.say(f"Sending: {remaining} rows of history are left")
        lacking: list[StateRow] = []
        states: list[StateRow] | None = None
        skipped: set[str] = set()
        async with aclosing(host_reader.read_states(self._client, objects, skipped)) as parts:
            async for part in parts:
                if states is not None:
                    lacking += await self._uplink.send([], states, max(1, remaining))
                states = part
        self._note_too_large(objects, skipped)
        lacking += await self._uplink.send(changes, states or [], remaining)
        self.seq = seq
        self._progress.batches += 1
        self._progress.rows += len(changes)
        await self._offer(host_reader.path_of(*row[:3]) for row in lacking)

    def _note_too_large(self, objects: list[str], skipped: set[str]) -> None:
        """Remember which of the objects that were read are too large, and say so of new ones."""
        known = self._memory.too_large
        for path in sorted(skipped - known):
            log.warning(
                "a state is too large to send: the fleet keeps what it had of this object, and"
                " counts this host as not compared; make the state smaller than 4 MiB, or split it"
                " into several objects",
                object="/".join(paths.parse(path)),
            )
        known.difference_update(objects)
        known |= skipped

    async def _offer(self, objects: Iterable[str]) -> None:
        """Offer the vectors of objects; those that have none yet are remembered."""
        model, wanted = self._memory.model, list(objects)
        if model.numerics and wanted:
            parts = host_reader.read_vectors(self._client, wanted, model)
            wanted = []
            async with aclosing(parts):
                async for vectors, later in parts:
                    wanted += later
                    if vectors:
                        await self._uplink.offer_vectors(vectors)
        free = _MOST_AWAITING - len(self._memory.awaiting)
        self._memory.awaiting.update(dict.fromkeys(wanted[: max(0, free)]))

    async def send_late_vectors(self) -> None:
        """Offer the vectors that were missing before; begin again if another model made them."""
        self._news.has_vectors = False
        if await host_reader.read_model(self._client) != self._memory.model:
            self._news.has_vectors = True
            await self.begin()
            self._news.has_vectors = False
        wanted, self._memory.awaiting = self._memory.awaiting, {}
        await self._offer(wanted)

    async def send_drift(self) -> None:
        """Replace the drift, unless it is the same as the last time."""
        self._news.has_drift = False
        drift = await host_reader.read_drift(self._client)
        if drift != self._drift:
            await self._uplink.put_drift(drift)
            self._drift = drift

    async def keep_alive(self) -> None:
        """Say that this host is there, and how its observers are."""
        await self._uplink.keep_alive(await host_reader.read_observers(self._client))


async def send_until_stopped(sender: Sender, service: Systemd) -> None:
    """Run a sender as a service until SIGTERM."""
    async with signals(asyncio.Event()) as stopped:
        service.describe = lambda: sender.progress.text
        sender.progress.renew = service.renew
        service.ready()
        await until_first_ends(sender.run(), stopped.wait(), service.ping_watchdog())
        service.stopping()
