"""Composition root: creates all parts in order, and determines how the daemon ends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import aclosing, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from opdbus import __version__, config, log
from opdbus.bus import paths
from opdbus.bus.admission.accounting import RunningCalls
from opdbus.bus.admission.limits import MAX_CALL_BYTES
from opdbus.bus.authorization.authorizer import Authorizer
from opdbus.bus.authorization.polkit import Polkit
from opdbus.bus.names import BUS_NAME
from opdbus.bus.service.answers import Answers
from opdbus.bus.service.bulk import Bulk
from opdbus.bus.service.dispatch import Dispatcher
from opdbus.bus.service.history1 import HistoryInterface
from opdbus.bus.service.job1 import Jobs
from opdbus.bus.service.signals import Announcer
from opdbus.bus.service.standard import LogControlInterface, machine_id
from opdbus.bus.service.state1 import StateInterface
from opdbus.bus.service.tree import Tree
from opdbus.bus.service.vectorizer1 import VectorizerInterface
from opdbus.bus.transport.connection import Connection
from opdbus.config import ENGINE_SETTINGS
from opdbus.drift.drift_report import announce
from opdbus.drift.field import Severity
from opdbus.drift.tracker import Tracker
from opdbus.engine import gate, opening
from opdbus.errors import BusError, OpDbusError
from opdbus.history import checkpoint
from opdbus.history.ledger import Limits
from opdbus.index.changes.change_finder import ChangeFinder
from opdbus.index.database.quota import Quota, Usage
from opdbus.index.health import Health
from opdbus.index.search.finder import Finder
from opdbus.index.search.rerank import Reranker
from opdbus.index.state_store.events import Recorded, Vectorized
from opdbus.index.state_store.history_retention import HistoryRetention
from opdbus.index.state_store.state_file_loader import StateFileLoader
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.indexer import Indexer
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.two_stage_search import TwoStageSearch
from opdbus.insight.insight import Insight
from opdbus.language import synonyms
from opdbus.observe import selection
from opdbus.observe.supervisor import Supervisor
from opdbus.observe.systemd.pid1 import find_boot
from opdbus.observe.systemd.unit_mentions import find_mentions
from opdbus.platform import gc_tuning
from opdbus.platform.metrics import Family
from opdbus.platform.tasks import cancel, signals, start, until_first_ends
from opdbus.serving.serving import Serving
from opdbus.systemd import notify

if TYPE_CHECKING:
    from opdbus.bus.transport.library import Message
    from opdbus.config import Config
    from opdbus.engine.embedder import Embedder
    from opdbus.index.state_store.events import Event
    from opdbus.log import Log
    from opdbus.observe.core.report import Observer
    from opdbus.systemd.notify import Systemd

logger = structlog.get_logger()

# The GIL switch interval. While loading records the loop releases the GIL dozens of times and waits
# up to this long to get it back; at 0.5 ms, delays over 20 ms were three times as frequent.
_TURN_SECONDS: Final = 0.0001
_LEAVERS: Final = "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg2=''"


def main(environ: MutableMapping[str, str], flags: Mapping[str, str]) -> int:
    """Run the daemon until a signal stops it, and return its exit code.

    Worker threads may still run; exit the process at once.
    """
    load = partial(config.load, environ, flags)
    try:
        passed = notify.take_sockets(environ, os.getpid())
        settings = load()
    except OpDbusError as error:
        return _report_failure(error, environ)
    gc_tuning.limit_fragmentation()
    sys.setswitchinterval(_TURN_SECONDS)
    with closing(log.configure(settings, environ)) as lines:
        try:
            # fail early, so that `systemctl start` fails with the reason
            wanted = selection.select_observers(settings.observe, passed)
            observers = selection.add_volatile(wanted, settings.volatile)
            for fault in synonyms.add_glosses(settings.glossary):
                logger.error("gloss left out", reason=fault)
            service = notify.connect(environ, os.getpid())
            daemon = Daemon(settings, load, lines, service, observers)
            # never closed: closing would wait for threads that still run
            asyncio.Runner().run(daemon.run())
        except OpDbusError as error:
            to_journal = lines.target == log.JOURNAL
            if to_journal:  # the journal's fields identify it there
                logger.error("failed", reason=str(error), exit_code=error.exit_code)  # noqa: TRY400 -- a sentence, no traceback
            is_logged = to_journal and log.is_journal(environ, sys.stderr)
            return _report_failure(error, environ, is_logged=is_logged)
    return 0


def _report_failure(
    error: OpDbusError, environ: Mapping[str, str], *, is_logged: bool = False
) -> int:
    """Report the fault to systemd and, unless logged, to standard error; return the exit code."""
    notify.leave(environ, os.getpid(), error)
    if not is_logged:
        print(f"op-dbus: {error}", file=sys.stderr)  # noqa: T201 -- the sentence for the operator
    return error.exit_code


class Daemon:
    """All parts of op-dbus and their connections; `run` is the daemon's life."""

    def __init__(
        self,
        settings: Config,
        load: Callable[[], Config],
        lines: Log,
        service: Systemd,
        observers: Sequence[Observer],
    ) -> None:
        self._config = settings
        self._load = load
        self._log = lines
        self._systemd = service
        self._observers = observers
        self._tasks: set[asyncio.Task[Any]] = set()
        self._heap = gc_tuning.Heap()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises StoreError, BusError, ModelError or ProviderError if serving is impossible.
        """
        logger.info("starting", version=__version__, pid=os.getpid())
        self._hung_up = asyncio.Event()
        async with signals(self._hung_up) as stopped:
            await until_first_ends(stopped.wait(), self._live(), self._systemd.ping_watchdog())
        logger.info("stopped")

    async def _live(self) -> None:
        # fail before the service counts as started
        await asyncio.to_thread(opening.require_level, self._config)
        path = self._config.state_dir / "memory.db"
        of_each = Quota(self._config.publish_objects, self._config.publish_bytes)
        self._boot = await find_boot(_kernels_boot_id())
        async with (
            StateStore(
                path,
                self._take_event,
                Usage(of_each),
                boot=self._boot.id,
                booted_at=self._boot.at,
                on_progress=self._progress,
            ) as self._memory,
            Connection(self._config.bus, most=MAX_CALL_BYTES) as self._connection,
            Serving(self._config) as self._serving,
        ):
            gc_tuning.keep_searches_short()
            self._compose()
            self._expose()
            await self._serve()

    def _compose(self) -> None:
        """Create the parts that hold the host's state and history, observe it, and serve."""
        memory, serving, given = self._memory, self._serving, self._config
        # not passed to the constructor: a refresh needs objects that only this method and `_expose`
        # create
        memory.archive.on_change = self._refresh_soon
        self._vectors = ObjectVectors(memory, serving)
        self._two_stage = (
            TwoStageSearch(self._vectors, given.cascade_ms / 1000, always=given.cascade == "always")
            if given.cascade != "never"
            else None
        )
        self._declared = StateFileLoader(
            given.state_file, memory, self._refresh_soon, optional=given.is_default("state_file")
        )
        self._health = Health(self._vectors, self._declared)
        self._reloader = Reloader(self._load, serving, self._declared, self._systemd)
        self._supervisor = Supervisor(self._observers, memory)
        limits = Limits(given.history_days, given.history_rows, given.history_bytes)
        self._retention = HistoryRetention(memory, self._log.to_journal(), _origin(), limits)
        threshold = Severity[given.drift_threshold.upper()]
        self._drifts = Tracker(memory, partial(announce, self._take_event, threshold))
        memory.declarations = self._drifts.declarations

    def _expose(self) -> None:
        """Create the D-Bus interfaces and the parts that answer calls."""
        memory, connection, serving = self._memory, self._connection, self._serving
        finder = Finder(self._vectors, Reranker(serving), self._two_stage)
        self._announcer = Announcer(connection)
        jobs = Jobs(self._announcer.notify, self._refresh_soon)
        load, bulk = RunningCalls(), Bulk(jobs)
        changes = ChangeFinder(self._vectors, find_mentions)
        history = HistoryInterface(memory, changes, self._drifts, find_mentions)
        self._state = StateInterface(
            self._vectors,
            finder,
            Insight(self._vectors, self._two_stage),
            self._declared,
            self._health,
            self._supervisor,
            self._drifts,
            bulk,
            Answers(history, lambda: (self._vectorizer, self._state), self._boot.at),
        )
        self._vectorizer = VectorizerInterface(
            serving, self._health, bulk, load, self._reloader.reload, self._state, self._metrics
        )
        fixed = (history, LogControlInterface(self._log))
        self._tree = Tree(
            self._vectorizer, self._state, *fixed, self._vectors, finder, self._drifts, jobs
        )
        self._polkit = Polkit(connection)
        self._authorizer = Authorizer(connection, self._polkit)
        self._dispatcher = Dispatcher(connection, self._authorizer, self._tree.find, load)

    def _metrics(self) -> Iterator[Family]:
        """Yield the metrics of all parts but the vectorizer's interface."""
        parts = self._serving, self._dispatcher, self._memory, self._drifts, self._supervisor
        for part in (*parts, self._retention):
            yield from part.metrics()

    async def _serve(self) -> None:
        self._heap.hold(len(self._memory.catalogue))
        await self._refresh()
        self._connection.on_call = self._dispatcher.take
        self._connection.wants_signal = lambda header, _size: self._polkit.trusts(header.sender)
        self._connection.on_signal = self._take_signal
        await self._connection.subscribe(_LEAVERS)
        await self._connection.own(BUS_NAME)
        logger.info("serving", bus=self._config.bus, name=BUS_NAME)
        self._systemd.describe = self._health.sentence
        self._systemd.ready()
        try:
            await until_first_ends(
                self._connection_lost(),
                self._memory.archive.raise_when_damaged(),
                self._follow_serving(),
                self._vectorize(),
                *([self._two_stage.run()] if self._two_stage else []),
                self._declared.watch(),
                self._supervisor.run(),
                self._retention.run(),
                self._drifts.run(),
                self._reloader.follow(self._hung_up),
            )
        finally:
            logger.info("stopping")
            self._systemd.stopping(sys.exception())
            self._announcer.flush()
            await self._dispatcher.stop()
            await cancel(self._tasks)
            await self._retention.close()

    async def _vectorize(self) -> None:
        """Load the model, prove it, and keep every object vectorized."""
        await self._serving.start()
        indexer = Indexer(
            self._vectors,
            on_fault=self._remember_fault,
            on_progress=lambda _left: self._systemd.renew(),
        )
        await until_first_ends(indexer.run(), self._build_indexes())

    async def _build_indexes(self) -> None:
        """Load terms and fields into memory; until then searches take longer.

        Vectors are loaded before, since `ready` waits for them.
        """
        with suppress(OpDbusError):
            await self._vectors.current_index()
        await self._memory.words.ready()
        start(self._settle(), self._tasks)
        await self._memory.fields.run()

    async def _settle(self) -> None:
        await self._memory.build_indexes()
        await self._refresh()

    async def _follow_serving(self) -> None:
        """Log and announce each change of the serving engine."""
        async with aclosing(self._serving.watch_phases()) as changes:
            async for phase in changes:
                provider = phase.embedder.provider if phase.embedder else ""
                self._announcer.provider_changed(provider, phase.reason)
                if phase.embedder:
                    self._log_proof(phase.embedder)
                await self._refresh()

    def _log_proof(self, embedder: Embedder) -> None:
        proven = embedder.proven
        logger.info(
            "model proven",
            model=embedder.model.name,
            provider=embedder.provider,
            device=proven.hardware,
            precision=proven.proof.precision,
            nodes=sum(proven.proof.nodes.values()),
            deviation=f"{proven.proof.max_deviation:.1e}",
        )

    async def _connection_lost(self) -> None:
        await self._connection.wait_closed()
        logger.error("bus lost", bus=self._config.bus)
        raise BusLost("the connection to the message bus was lost; start op-dbus again")

    def _take_event(self, event: Event) -> None:
        """Pass an event to drift, observers and the bus, and renew the service's status."""
        size = len(self._memory.catalogue)
        self._heap.hold(size)
        if isinstance(event, Vectorized):
            self._heap.trim_if_shrunk(size)
        if isinstance(event, Recorded):
            self._retention.schedule_checkpoint(event.seq)
        self._drifts.on_event(event)
        self._supervisor.on_event(event)
        self._announcer.announce(event)
        self._systemd.renew()

    async def _refresh(self) -> None:
        """Announce changed properties on the bus, and renew the service's status."""
        self._systemd.renew()
        await self._announcer.refresh(paths.ROOT, self._vectorizer)
        await self._announcer.refresh(paths.STATE, self._state)

    def _refresh_soon(self) -> None:
        start(self._refresh(), self._tasks)

    def _progress(self) -> None:
        """Report progress of long work to systemd, and its end to clients."""
        self._systemd.progress()
        if hasattr(self, "_state") and self._memory.eraser.checked.is_set():
            self._refresh_soon()

    def _remember_fault(self, sentence: str) -> None:
        if self._vectors.fault != sentence:
            self._vectors.fault = sentence
            self._refresh_soon()

    def _take_signal(self, message: Message) -> None:
        """Stop the work for a caller that left the bus; withdraw objects tied to its connection."""
        self._polkit.on_signal(message)
        if message.member != "NameOwnerChanged" or message.sender != "org.freedesktop.DBus":
            return
        name = message.body[0]
        self._dispatcher.caller_left(name)
        start(self._release(name), self._tasks)

    async def _release(self, name: str) -> None:
        try:
            await self._memory.release(name)
        except OpDbusError as error:
            logger.warning("not withdrawn", reason=str(error))


class Reloader:
    """Reloader of settings and state file: one reload at a time; a fault changes nothing."""

    def __init__(
        self,
        load: Callable[[], Config],
        serving: Serving,
        declared: StateFileLoader,
        systemd: Systemd,
    ) -> None:
        self._load = load
        # the settings of the last read: SetProvider may have changed those in use
        self._read = serving.config
        self._serving = serving
        self._declared = declared
        self._systemd = systemd
        self._one_reload = asyncio.Lock()

    async def reload(self, is_measured: bool) -> None:  # noqa: FBT001 -- an option of the call
        """Reload settings and state file; raises ConfigError and the errors of loading either.

        With `is_measured`, grade precisions anew.
        """
        async with self._one_reload:
            logger.info("reloading", reason="Reload")
            with self._systemd.reloading():
                await self._read_settings(is_measured=is_measured)
                await self._declared.load()

    async def follow(self, hung_up: asyncio.Event) -> None:
        """Reload settings and state file after each SIGHUP; errors are logged."""
        while True:
            await hung_up.wait()
            hung_up.clear()
            async with self._one_reload:
                logger.info("reloading", reason="SIGHUP")
                with self._systemd.reloading():
                    try:
                        await self._read_settings()
                    except OpDbusError as error:
                        logger.error("settings not reloaded", reason=str(error))  # noqa: TRY400 -- a sentence, no traceback
                    await self._declared.try_load()

    async def _read_settings(self, *, is_measured: bool = False) -> None:
        """Read the settings; switch the engine if a setting of it has changed, or is measured."""
        settings = self._load()
        changed = settings.differing(self._read)
        logger.debug("settings read", changed=sorted(changed))
        if is_measured:
            await asyncio.to_thread(gate.forget, settings.state_dir / gate.FOLDER)
        if changed & ENGINE_SETTINGS:
            await self._serving.switch(settings)
        elif is_measured:
            await self._serving.switch(self._serving.config)
        if rest := changed - ENGINE_SETTINGS:
            names = ", ".join(sorted(config.BY_KEY[key].variable for key in rest))
            logger.warning("settings wait for a restart", settings=names)
        self._read = settings


def _kernels_boot_id() -> str:
    """Return the id of this boot; "" if the kernel does not provide it."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip().replace("-", "")
    return ""


def _origin() -> str:
    """Return the name of this machine's history in checkpoints."""
    try:
        return checkpoint.origin(machine_id())
    except (OpDbusError, ValueError):
        return checkpoint.origin("")


class BusLost(BusError):
    """Loss of the connection to the bus while serving: systemd restarts the service."""

    exit_code = 1
