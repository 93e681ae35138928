"""Serving: levels on demand, switching, and providers that are lost and found again."""

import asyncio
import gc
import shutil
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.running import PATIENCE_SECONDS
from harness.sessions import TWO_RUNTIMES, Mortal
from harness.tiny import write_tiny_model

from opdbus.config import Config
from opdbus.engine.embedder import Embedder
from opdbus.engine.opening import open_level
from opdbus.engine.provider import Placement, Provider, Session
from opdbus.engine.sessions import open_session
from opdbus.errors import (
    Internal,
    InvalidArgs,
    NoModel,
    ProviderError,
    ProviderLost,
    ShuttingDown,
)
from opdbus.models.level_table import LEVELS
from opdbus.serving.serving import Serving
from opdbus.serving.states import State
from opdbus.settings.parsing import ProviderRequest

CPU, OPENVINO = "cpu:onnxruntime", "cpu:openvino"
CHAIN = ProviderRequest((OPENVINO, CPU))
TEXTS = ["alpha beta", "gamma", "delta alpha gamma beta"]


class Hospital:
    """Opens sessions that die with their provider, and remembers what was served when."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        # providers that are opened only when something has happened
        self.slow: dict[str, threading.Event] = {}
        self.seen: list[tuple[str, str]] = []
        self.news = asyncio.Event()

    def open(self, graph: Path, provider: Provider, placement: Placement) -> Session:
        """Open the real thing."""
        if provider.name in self.slow:
            assert self.slow[provider.name].wait(PATIENCE_SECONDS)
        return Mortal(open_session(graph, provider, placement), provider.name, self.dead)

    async def follow(self, serving: Serving) -> None:
        """Take note of every change."""
        async with aclosing(serving.watch_phases()) as changes:
            async for phase in changes:
                provider = phase.embedder.provider if phase.embedder else ""
                self.seen.append((provider, phase.reason))
                self.news.set()

    async def until(self, provider: str) -> None:
        """Wait until a provider serves."""
        while not self.seen or self.seen[-1][0] != provider:
            self.news.clear()
            await self.news.wait()


@pytest.fixture
def fp32(settings: Config, tiny_graphs: Path) -> Config:
    """Give settings that need no gate, with the graph built already."""
    shutil.copytree(tiny_graphs, settings.state_dir / "graphs")
    return replace(settings, precision="fp32", execution_provider=CHAIN)


def run(
    settings: Config,
    work: Callable[[Serving, Hospital], Awaitable[Any]],
    retry_seconds: tuple[float, ...] = (60.0,),
) -> Any:
    """Run work with serving that are started."""

    async def both() -> Any:
        hospital = Hospital()
        opening = Serving(settings, partial(open_level, opener=hospital.open), retry_seconds)
        async with asyncio.timeout(PATIENCE_SECONDS), opening as serving:
            following = asyncio.create_task(hospital.follow(serving))
            await asyncio.sleep(0)
            await serving.start()
            try:
                return await work(serving, hospital)
            finally:
                following.cancel()

    return asyncio.run(both())


@TWO_RUNTIMES
def test_the_chain_goes_on_where_a_provider_is_lost(fp32: Config) -> None:
    """Answer the very calls that met the loss on the next provider, and record the reason."""

    async def work(serving: Serving, hospital: Hospital) -> None:
        before = (await serving.embed(TEXTS)).vectors
        hospital.dead.add(OPENVINO)
        many = await asyncio.gather(*(serving.embed(TEXTS) for _ in range(20)))
        assert all(np.abs(found.vectors - before).max() < 1e-5 for found in many)
        await hospital.until(CPU)
        (engine,) = serving.loaded.values()
        (fallback,) = engine.proven.fallbacks
        assert fallback.provider == OPENVINO
        assert "stopped working: CUDA failure 719" in fallback.reason
        assert [name for name, _ in hospital.seen] == [OPENVINO, "", CPU]
        samples = {family.name: family.samples for family in serving.metrics()}
        assert samples["provider_fallbacks_total"] == {(OPENVINO, CPU, "lost"): 1}
        assert samples["provider_fell_back"] == {(engine.level,): 1}

    run(fp32, work)


@TWO_RUNTIMES
def test_a_lost_provider_is_tried_again(fp32: Config) -> None:
    """Go back to the better provider once it can be proven again."""

    async def work(serving: Serving, hospital: Hospital) -> None:
        hospital.dead.add(OPENVINO)
        await serving.embed(TEXTS)
        await hospital.until(CPU)
        hospital.dead.clear()
        await hospital.until(OPENVINO)
        assert (await serving.embedder()).proven.fallbacks == ()
        await serving.embed(TEXTS)

    run(fp32, work, retry_seconds=(0.0, 0.0))


@TWO_RUNTIMES
def test_all_providers_lost(fp32: Config) -> None:
    """Refuse with every reason while nothing can be proven, and serve when something can."""

    async def work(serving: Serving, hospital: Hospital) -> None:
        hospital.dead.update({OPENVINO, CPU})
        with pytest.raises(ProviderError, match=r"cpu:onnxruntime.*; cpu:openvino"):
            await serving.embed(TEXTS)
        assert isinstance(serving.phase.error, ProviderError)
        hospital.dead.clear()
        await hospital.until(CPU)
        assert serving.phase.error is None
        await serving.embed(TEXTS)

    run(fp32, work, retry_seconds=(0.01,))


def test_a_strict_provider_is_opened_anew(fp32: Config) -> None:
    """Prove the only provider again when it was lost: there is nothing else to fall to."""

    async def work(serving: Serving, hospital: Hospital) -> None:
        hospital.dead.add(CPU)
        with pytest.raises(ProviderError):
            await serving.embed(TEXTS)
        hospital.dead.clear()
        await hospital.until(CPU)
        await serving.embed(TEXTS)

    strict = replace(fp32, execution_provider=ProviderRequest((CPU,)))
    run(strict, work, retry_seconds=(0.01,))


@TWO_RUNTIMES
def test_switching_under_load_loses_nothing(fp32: Config) -> None:
    """Answer every request while providers are switched back and forth under them."""

    async def work(serving: Serving, hospital: Hospital) -> None:
        before = (await serving.embed(TEXTS)).vectors
        stop, answered = asyncio.Event(), 0

        async def ask() -> None:
            nonlocal answered
            while not stop.is_set():
                found = await serving.embed(TEXTS)
                assert np.abs(found.vectors - before).max() < 1e-5
                answered += 1

        asking = [asyncio.create_task(ask()) for _ in range(8)]
        for name in (CPU, OPENVINO, CPU):
            await serving.switch(serving.config.on(name))
            assert (await serving.embedder()).proven.provider.name == name
        stop.set()
        await asyncio.gather(*asking)
        assert answered > 24
        assert [name for name, _ in hospital.seen] == [OPENVINO, CPU, OPENVINO, CPU]

    run(fp32, work)


@TWO_RUNTIMES
def test_a_switch_while_the_first_engine_is_opened(fp32: Config) -> None:
    """Serve with what was chosen while the start was still loading, not with what it loaded."""
    begun, finish = threading.Event(), threading.Event()

    def slow(graph: Path, provider: Provider, placement: Placement) -> Session:
        if provider.name == OPENVINO:
            begun.set()
            assert finish.wait(PATIENCE_SECONDS)
        return open_session(graph, provider, placement)

    async def both() -> None:
        async with Serving(fp32, partial(open_level, opener=slow)) as serving:
            starting = asyncio.create_task(serving.start())
            await asyncio.to_thread(begun.wait, 30)
            await serving.switch(serving.config.on(CPU))
            finish.set()
            await starting
            assert (await serving.embedder()).provider == CPU
            assert [engine.provider for engine in serving.loaded.values()] == [CPU]
            await serving.embed(TEXTS)

    asyncio.run(both())


@TWO_RUNTIMES
def test_a_switch_while_a_lost_provider_is_replaced(fp32: Config) -> None:
    """Keep the choice that was made while the next provider of the chain was being opened."""
    finish = threading.Event()

    async def work(serving: Serving, hospital: Hospital) -> None:
        hospital.slow[CPU] = finish
        hospital.dead.add(OPENVINO)
        asking = asyncio.create_task(serving.embed(TEXTS))
        await hospital.until("")
        hospital.dead.clear()
        await serving.switch(serving.config.on(OPENVINO))
        finish.set()
        await asking
        for _ in range(3):
            await serving.embed(TEXTS)
            assert (await serving.embedder()).provider == OPENVINO
        assert [name for name, _ in hospital.seen] == [OPENVINO, "", OPENVINO]

    run(fp32, work)


def test_an_unforeseen_exception_is_an_answer(fp32: Config) -> None:
    """Tell callers of an exception that is not ours instead of letting them wait."""

    def broken(*_: object) -> Session:
        raise ZeroDivisionError("a defect")

    async def both() -> None:
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            Serving(fp32, partial(open_level, opener=broken)) as serving,
        ):
            with pytest.raises(Internal, match="a defect"):
                await serving.embed(TEXTS)

    asyncio.run(both())


@TWO_RUNTIMES
def test_a_failed_switch_changes_nothing(fp32: Config) -> None:
    """Keep serving with the old engine when the new one cannot be had, and say why."""

    async def work(serving: Serving, hospital: Hospital) -> None:
        old = await serving.embedder()
        hospital.dead.add(CPU)
        with pytest.raises(ProviderError, match="opened the model but cannot run it"):
            await serving.switch(serving.config.on(CPU))
        assert await serving.embedder() is old
        assert serving.config.execution_provider == CHAIN
        await serving.embed(TEXTS)

    run(fp32, work)


@TWO_RUNTIMES
def test_a_lease_outlives_switch_and_loss(fp32: Config) -> None:
    """Let work of several steps finish on the engine that it began with, or on its successor."""

    async def work(serving: Serving, hospital: Hospital) -> None:
        old = await serving.embedder()
        with serving.lease(old) as engine:
            rows = await engine.tokenize(TEXTS)
            await serving.switch(serving.config.on(CPU))
            first = await engine.embed(rows)
            assert old.fault == ""
            hospital.dead.add(OPENVINO)
            second = await engine.embed(rows)
        assert np.abs(first - second).max() < 1e-5
        await old.drained()

    run(fp32, work)


def test_a_lease_never_mixes_numerics(fp32: Config) -> None:
    """Refuse to go on with an engine whose vectors must not mix with those given before."""

    async def work(serving: Serving, hospital: Hospital) -> None:
        with serving.lease(await serving.embedder()) as engine:
            rows = await engine.tokenize(TEXTS)
            await serving.switch(replace(serving.config, precision="int8"))
            assert (await serving.embedder()).proven.proof.precision == "int8"
            hospital.dead.add(CPU)
            with pytest.raises(ProviderLost, match="another precision: repeat the whole request"):
                await engine.embed(rows)

    only = ProviderRequest((CPU,))
    run(replace(fp32, execution_provider=only), work)


def test_closing_settles_everything(fp32: Config) -> None:
    """Tell whoever waits that we are stopping, also while an engine is being opened."""

    async def both() -> None:
        async with Serving(fp32) as serving:
            waiting = asyncio.create_task(serving.embedder())
            await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            await waiting
        with pytest.raises(ShuttingDown):
            await serving.embedder()

    asyncio.run(both())


def test_other_levels_are_loaded_when_asked_for(fp32: Config, tmp_path: Path) -> None:
    """Load a level at its first call, and unload the least recently used past the limit."""
    models = tmp_path / "models"
    for level in ("low", "high"):
        write_tiny_model(
            models / LEVELS[level].folder, family="mpnet" if level == "high" else "bert"
        )

    async def work(serving: Serving, _: Hospital) -> None:
        assert list(serving.loaded) == ["medium"]
        await serving.embed(TEXTS, "low")
        assert sorted(serving.loaded) == ["low", "medium"]
        await serving.embed(TEXTS, "high")
        low = serving.loaded.get("low")
        assert low is None
        assert sorted(serving.loaded) == ["high", "medium"]
        await serving.embed(TEXTS, "low")
        assert sorted(serving.loaded) == ["low", "medium"]

    run(replace(fp32, model_dir=models, max_loaded_bytes=1), work)


@pytest.mark.parametrize("name", ["low", "LOW", " Low "])
def test_a_level_is_loading_until_it_serves(fp32: Config, tmp_path: Path, name: str) -> None:
    """Give the phase of a level that a call asks for, however it writes the name."""
    write_tiny_model(tmp_path / "models" / LEVELS["low"].folder)

    async def work(serving: Serving, hospital: Hospital) -> None:
        assert serving.phase_of("low") is None
        hospital.slow[OPENVINO] = threading.Event()
        with pytest.raises(NoModel, match="the level low is loading"):
            serving.refuse_while_loading(name)
        phase = serving.phase_of("low")
        assert phase
        assert phase.state is State.LOADING
        hospital.slow[OPENVINO].set()
        await serving.embedder(name)
        phase = serving.phase_of("low")
        assert phase
        assert phase.state is State.READY
        with pytest.raises(InvalidArgs, match=r"no level 'hihg'; .*did you mean high\?"):
            await serving.embedder("hihg")

    run(replace(fp32, model_dir=tmp_path / "models"), work)


def test_calls_for_one_level_load_it_once(fp32: Config) -> None:
    """Open one engine however many calls wait for it."""

    async def both() -> None:
        opened = []

        def opener(graph: Path, provider: Provider, placement: Placement) -> Session:
            opened.append(provider.name)
            return open_session(graph, provider, placement)

        async with Serving(fp32, partial(open_level, opener=opener)) as serving:
            found = await asyncio.gather(*(serving.embedder() for _ in range(5)))
            assert len(set(map(id, found))) == 1
            proven = found[0].proven
            assert len(opened) == len(proven.sessions) + (proven.solo is not None)

    asyncio.run(both())


def test_a_level_that_cannot_be_had(fp32: Config) -> None:
    """Say what is missing for a level, each time it is asked for, and serve the others."""

    async def work(serving: Serving, _: Hospital) -> None:
        for _attempt in range(2):
            with pytest.raises(Exception, match="op-dbus models pull low"):
                await serving.embed(TEXTS, "low")
        await serving.embed(TEXTS)

    run(fp32, work)


def test_level_none_has_no_vectors(fp32: Config) -> None:
    """Refuse every level where the configured one is none."""

    async def both() -> None:
        async with Serving(replace(fp32, vector_level="none")) as serving:
            with pytest.raises(NoModel):
                await serving.embedder("medium")

    asyncio.run(both())


@TWO_RUNTIMES
@pytest.mark.parametrize("how", ["switched", "lost"])
def test_an_engine_that_was_replaced_is_freed(fp32: Config, how: str) -> None:
    """Free its sessions without a search for garbage: what is kept long is not searched."""
    gone: list[weakref.ref[Embedder]] = []

    async def work(serving: Serving, hospital: Hospital) -> None:
        gone.append(weakref.ref(await serving.embedder()))
        gone.append(weakref.ref(gone[0]().proven.sessions[0]))
        if how == "lost":
            hospital.dead.add(OPENVINO)
            await serving.embed(TEXTS)
            await hospital.until(CPU)
        else:
            await serving.switch(replace(fp32, batch_tokens=64))
        while any(ref() for ref in gone):  # noqa: ASYNC110 -- nothing tells of it
            await asyncio.sleep(0.01)

    gc.disable()
    try:
        run(fp32, work)
    finally:
        gc.enable()
