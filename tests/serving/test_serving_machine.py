"""Serving, index and indexer under random interleavings of everything that can happen to them.

Each sequence is a life of the daemon: it starts, callers ask, providers die and come back, settings
change, callers leave; then all is repaired, and everything must be answered, and be right.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import structlog
from harness.virtual import FakeRuntime, VirtualLoop, vector
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from opdbus import config
from opdbus.errors import (
    Internal,
    ModelError,
    NoVector,
    ProviderError,
    ShuttingDown,
    UnknownObject,
)
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import SearchRequest
from opdbus.index.search.rerank import Reranker
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors import indexer as indexer_module
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.serving import level as level_module
from opdbus.serving import serving as serving_module
from opdbus.serving.states import State
from opdbus.state.object import Identity, ObjectId, StateObject

# Sequences of a run of this test; `make test-all` asks for 20,000.
SEQUENCES = int(os.environ.get("OP_DBUS_TEST_SEQUENCES", "100"))
PROVIDERS = ("cuda", "cpu:onnxruntime", "cuda,cpu:onnxruntime", "cpu:onnxruntime,cuda")
NAMES = ("cuda", "cpu:onnxruntime")
WORDS = ("network", "mail", "disk", "clock")
TIMEOUT = 5.0
# what a caller may be told; anything else is a defect
DOCUMENTED = (ProviderError, ModelError, Internal, NoVector, UnknownObject, TimeoutError)
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 -- memory, for speed


class Machine(RuleBasedStateMachine):
    """A daemon's core without its bus."""

    serving_class = serving_module.Serving
    indexer_class = indexer_module.Indexer

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        # after a violation, tasks are left as they are
        self.loop.set_exception_handler(lambda _loop, _context: None)
        asyncio.set_event_loop(self.loop)
        self.folder = tempfile.mkdtemp(dir=SCRATCH)
        self.runtime = FakeRuntime()
        self.calls: list[tuple[asyncio.Task[Any], float | None]] = []
        self.changes: list[asyncio.Task[Any]] = []
        self.stopped = False

    # the daemon's life

    @initialize(provider=st.sampled_from(PROVIDERS), level=st.sampled_from(["medium", "none"]))
    def start(self, provider: str, level: str) -> None:
        """Open what the daemon opens, in its order."""
        given = {"execution_provider": provider, "vector_level": level, "max_loaded_bytes": "15"}
        self.base = config.load({"HOME": self.folder}, given)
        self.life = self.loop.create_task(self._live())
        self.loop.settle()

    async def _live(self) -> None:
        memory = StateStore(Path(self.folder) / "memory.db", clock=lambda: 0.0)
        opening = self.serving_class(self.base, self.runtime.open_engine, (1.0, 2.0))
        async with memory as self.memory, opening as self.serving:
            self.vectors = ObjectVectors(memory, self.serving)
            self.finder = Finder(self.vectors, Reranker(self.serving))
            self.starting = asyncio.create_task(self.serving.start())
            self.indexing = asyncio.create_task(
                self.indexer_class(self.vectors, retry_seconds=(1.0, 2.0)).run()
            )
            self.stop_asked = asyncio.Event()
            await self.stop_asked.wait()
            self.indexing.cancel()
            await asyncio.wait([self.indexing])

    # what happens to it

    @rule(
        number=st.integers(0, 3),
        how=st.sampled_from(["open", "open", "open", "refuse", "explode"]),
    )
    @precondition(lambda self: self.runtime.gates)
    def finish_an_opening(self, number: int, how: str) -> None:
        """Let an engine be opened, refused, or fail in a way that no code of ours foresees."""
        gate = self.runtime.gates[number % len(self.runtime.gates)]
        if how == "open":
            gate.set_result(None)
        elif how == "refuse":
            gate.set_exception(ProviderError("refused"))
        else:
            gate.set_exception(RuntimeError("a defect of a runtime"))
        self.loop.settle()

    @rule(provider=st.sampled_from(PROVIDERS))
    def set_provider(self, provider: str) -> None:
        """Ask for another provider, as SetProvider does."""
        self._change(lambda: self.serving.config.on(provider))

    @rule(
        level=st.sampled_from(["medium", "low", "none"]),
        precision=st.sampled_from(["fp32", "int8"]),
    )
    def reload(self, level: str, precision: str) -> None:
        """Serve with other settings, as Reload does."""
        given = {
            "execution_provider": str(self.base.execution_provider),
            "vector_level": level,
            "precision": precision,
            "max_loaded_bytes": "15",
        }
        self._change(lambda: config.load({"HOME": self.folder}, given))

    @rule(number=st.integers(0, 3))
    @precondition(lambda self: self.runtime.open)
    def lose(self, number: int) -> None:
        """Let an engine die, perhaps in the middle of a run."""
        engines = list(self.runtime.open)
        engines[number % len(engines)].scheduler.lose()
        self.loop.settle()

    @rule(name=st.sampled_from(NAMES))
    def unplug_or_plug_in(self, name: str) -> None:
        """Let a provider die, or come back."""
        self.runtime.dead ^= {name}

    @rule(number=st.integers(0, 3))
    @precondition(lambda self: self.runtime.open)
    def run_batches(self, number: int) -> None:
        """Let an engine run what waits."""
        engines = list(self.runtime.open)
        engines[number % len(engines)].scheduler.run()
        self.loop.settle()

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.loop.advance(seconds)

    # what callers do

    @rule(
        word=st.sampled_from(WORDS),
        level=st.sampled_from(["", "", "low", "high"]),
        timeout=st.sampled_from([None, TIMEOUT]),
    )
    def embed(self, word: str, level: str, timeout: float | None) -> None:
        """Ask for a vector; a level that is not loaded is opened, and another one unloaded."""
        self._call(self._embed(word, level), timeout)

    async def _embed(self, word: str, level: str) -> None:
        found = await self.serving.embed([word], level)
        expected = vector(found.numerics, self.runtime.tokenizer.number(word))
        np.testing.assert_array_equal(found.vectors[0], expected)

    @rule(
        word=st.sampled_from(WORDS),
        mode=st.sampled_from(["hybrid", "vector", "lexical"]),
        level=st.sampled_from(["", "", "high"]),
    )
    def search(self, word: str, mode: str, level: str) -> None:
        """Search, with or without a second look by another level."""
        if mode != "lexical" or not level:
            self._call(self.finder.search(word, SearchRequest(3), mode, level), TIMEOUT)

    @rule(word=st.sampled_from(WORDS))
    def similar(self, word: str) -> None:
        """Look for what is like an object."""
        self._call(self.finder.similar(ObjectId("p", "k", word), SearchRequest(3)), TIMEOUT)

    @rule(names=st.sets(st.sampled_from(WORDS), min_size=1), value=st.integers(0, 2))
    def publish(self, names: set[str], value: int) -> None:
        """Publish objects."""
        objects = [
            StateObject(Identity("publish:x", "p", "k", name), {"description": f"{name} {value}"})
            for name in names
        ]
        self._call(self.memory.publish(objects, 1000), None)

    @rule(number=st.integers(0, 9))
    @precondition(lambda self: self.calls)
    def leave(self, number: int) -> None:
        """Let a caller leave."""
        task, _ = self.calls.pop(number % len(self.calls))
        task.cancel()
        self.loop.settle()

    def _call(self, work: Coroutine[Any, Any, Any], timeout: float | None) -> None:
        task = self.loop.create_task(asyncio.wait_for(work, timeout))
        self.calls.append((task, None if timeout is None else self.loop.now + timeout))
        self.loop.settle()

    def _change(self, wanted: Callable[[], config.Config]) -> None:
        async def change() -> None:
            await self.serving.switch(wanted())

        self.changes.append(self.loop.create_task(change()))
        self.loop.settle()

    # what must always hold

    @invariant()
    def all_holds(self) -> None:
        """Check everything after each step."""
        if hasattr(self, "serving"):
            self.callers_are_answered()
            self.no_closed_engine_serves()
            self.the_state_says_what_answers()
            self.nothing_leaks()
            self.the_indexer_lives()

    def callers_are_answered(self) -> None:
        """Answer within the timeout, with vectors or a documented error."""
        for task, limit in list(self.calls):
            if task.done():
                self.calls.remove((task, limit))
                error = None if task.cancelled() else task.exception()
                assert error is None or isinstance(error, DOCUMENTED), repr(error)
            else:
                assert limit is None or self.loop.now <= limit

    def no_closed_engine_serves(self) -> None:
        """Serve with engines that are open, and opened with the settings that are in force."""
        for embedder in self.serving.loaded.values():
            assert embedder in self.runtime.open
            assert self.runtime.open[embedder] is self.serving.config

    def the_state_says_what_answers(self) -> None:
        """Show an engine where there is one, and an error where callers get one."""
        phase = self.serving.phase
        has_level = self.serving.config.vector_level != "none"
        serves = phase.state in {State.READY, State.DEGRADED}
        assert (phase.embedder is not None) == (serves and has_level)
        assert (phase.error is not None) == (phase.state is State.FAILED or not has_level)
        if phase.embedder:
            assert phase.embedder.fell_back == (phase.state is State.DEGRADED)

    def nothing_leaks(self) -> None:
        """Keep no engine open that neither serves nor is held by a caller."""
        serving = set(self.serving.loaded.values())
        for embedder in self.runtime.open:
            # one that is lost is waited for two seconds
            assert embedder in serving or embedder.is_held or embedder.fault

    def the_indexer_lives(self) -> None:
        """Go on indexing after whatever failed."""
        assert not self.indexing.done(), self.indexing

    def teardown(self) -> None:
        """Repair everything; then all is answered and right; then stop, which settles the rest."""
        try:
            if hasattr(self, "serving"):
                self._repair()
                self._all_is_well()
                self._stop()
        finally:
            # after a failure, too, nothing of this life may be left to the next
            while left := asyncio.all_tasks(self.loop):
                for task in left:
                    task.cancel()
                self.loop.advance(3.0)
            self.loop.close()
            asyncio.set_event_loop(None)
            shutil.rmtree(self.folder)

    def _repair(self) -> None:
        self.runtime.dead.clear()
        # each change of settings that waits takes a turn
        for _ in range(12 + len(self.changes)):
            for gate in list(self.runtime.gates):
                if not gate.done():
                    gate.set_result(None)
            self.loop.settle()
            for embedder in list(self.runtime.open):
                embedder.scheduler.run()
            self.loop.settle()
            self.callers_are_answered()
            self.loop.advance(1.0)

    def _all_is_well(self) -> None:
        assert self.calls == []
        assert all(task.done() for task in self.changes)
        for task in self.changes:
            error = task.exception()
            assert error is None or isinstance(error, DOCUMENTED), repr(error)
        if self.starting.exception() is not None:
            return  # the daemon ends here: exit code 3
        phase = self.serving.phase
        if self.serving.config.vector_level == "none":
            return
        assert phase.embedder is not None, phase
        index = self.vectors.current
        assert index is not None
        assert index.numerics == phase.embedder.numerics
        assert self.vectors.missing_object_count() == 0

    def _stop(self) -> None:
        self._call(self.serving.embed(["last"]), None)
        self.stop_asked.set()
        self.loop.settle()
        self.loop.advance(3.0)
        assert self.life.done()
        self.life.result()
        assert self.runtime.open == {}
        for task, _ in self.calls:
            assert isinstance(task.exception(), ShuttingDown | ModelError | ProviderError)
        left = asyncio.all_tasks(self.loop)
        assert left == set(), left


@contextmanager
def silence() -> Iterator[None]:
    """Log nothing: to write tracebacks takes longer than all the rest."""

    def drop(*_: object) -> dict[str, object]:
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[drop])
    try:
        yield
    finally:
        structlog.configure(**before)


def sequences(count: int, steps: int = 25) -> settings:
    """Return the settings of a run."""
    return settings(
        max_examples=count,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
        print_blob=False,
        report_multiple_bugs=False,
    )


def test_serving_survives_whatever_happens() -> None:
    """Hold every invariant in all random sequences."""
    with silence():
        run_state_machine_as_test(Machine, settings=sequences(SEQUENCES))


# what the machine is for: each row takes one fix out, and names a seed that finds the defect then

DEFECTS = {
    "a failed engine ends the indexer": (
        indexer_module,
        """
            try:
                await self._catch_up(await self._serving.embedder())
""",
        """
            embedder = await self._serving.embedder()
            try:
                await self._catch_up(embedder)
""",
        1,
    ),
    "start attaches an engine that was retired meanwhile": (
        serving_module,
        """
            await self.embedder()
        except OpDbusError:
""",
        """
            level = self._get_or_create_level("")
            while level.phase.state is State.LOADING:
                await asyncio.sleep(0.1)
            self._levels[level.name] = level
        except OpDbusError:
""",
        1,
    ),
    "recovery overwrites the choice of a switch": (
        serving_module,
        """
        if self._levels.get(level.name) is not level:
            return
""",
        """
        if level.phase.embedder:
            self._levels[level.name] = level
""",
        1,
    ),
    "callers wait for ever after an exception that is not ours": (
        level_module,
        "        except Exception as error:  #",
        "        except ZeroDivisionError as error:  #",
        1,
    ),
}


def without(module: ModuleType, fix: str, defect: str) -> ModuleType:
    """Return a copy of a module in which the fix is taken out."""
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert source.count(fix) == 1, f"{module.__name__} no longer has this text: {fix}"
    copy = ModuleType(module.__name__)
    sys.modules[copy.__name__], original = copy, sys.modules[copy.__name__]
    try:
        exec(compile(source.replace(fix, defect), str(module.__file__), "exec"), copy.__dict__)  # noqa: S102 -- our own source
    finally:
        sys.modules[copy.__name__] = original
    return copy


@pytest.mark.parametrize("name", DEFECTS)
def test_the_machine_finds_each_defect(name: str) -> None:
    """Find each of the defects that this machine was written for, if its fix is taken out."""
    module, fix, defect, number = DEFECTS[name]
    broken = without(module, fix, defect)

    class Broken(Machine):
        indexer_class = getattr(broken, "Indexer", indexer_module.Indexer)
        serving_class = getattr(broken, "Serving", serving_module.Serving)

    if module is level_module:
        around = without(serving_module, "return Level(", "return Level(")
        around.Level = broken.Level  # type: ignore[attr-defined]
        Broken.serving_class = around.Serving
    with silence(), pytest.raises(AssertionError):
        run_state_machine_as_test(seed(number)(Broken), settings=sequences(300))
