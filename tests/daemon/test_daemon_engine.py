"""A daemon's engine and settings: switched, read again, refused."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.running import (
    ROOT_PATH,
    VECTORIZER,
    Caller,
    Make,
    ask,
    replace,
    search,
)
from harness.sessions import TWO_RUNTIMES
from harness.tiny import write_tiny_model

from opdbus.bus.transport.connection import RemoteError
from opdbus.engine.providers import cpu_engines
from opdbus.models.level_table import LEVELS

ONNXRUNTIME, OPENVINO = "cpu:onnxruntime", "cpu:openvino"


async def vectorize(caller: Caller, text: str = "mail server") -> list[float]:
    """Ask for a vector over the bus."""
    answer = await caller.ask("Vectorize", text, {})
    vector: list[float] = answer[0]
    return vector


async def set_provider(caller: Caller, name: str) -> None:
    """Have another provider serve."""
    await caller.ask("SetProvider", name, "", {})


async def serving(caller: Caller) -> tuple[str, str, str]:
    """Give the provider that serves, the one that is asked for, and the state."""
    names = ("Provider", "RequestedProvider", "State")
    provider, requested, state = [await caller.read(name) for name in names]
    return provider, requested, state


def test_the_first_start_answers_before_precisions_are_graded(daemons: Make) -> None:
    """Serve with fp32 at once, grade meanwhile, compute all with the best; next time at once.

    Grade again when asked to.
    """

    async def first(caller: Caller) -> None:
        await caller.ready()
        assert len(await vectorize(caller)) > 0
        reasons = [body[1] async for body in _changes(caller, "it is proven, and better")]
        assert reasons[0] == "proven at start"
        await caller.vectorized()

    async def _changes(caller: Caller, last: str) -> AsyncIterator[list[str]]:
        await caller.signal("ProviderChanged", lambda body: body[1] == last)
        for _, member, body in caller.signals:
            if member == "ProviderChanged":
                yield body

    async def second(caller: Caller) -> None:
        await caller.vectorized()
        assert await caller.read("Precision") == report["chosen"]
        assert await measured_at(caller) == int(report["checked_at"])

    async def measured_at(caller: Caller) -> int:
        (time,) = {row["checked_at"] for row in await caller.read("Accuracy")}
        return int(time)

    async def third(caller: Caller) -> None:
        await caller.ask("Reload", {})
        before = await measured_at(caller)
        await caller.ask("Reload", {"measure": True})
        assert await measured_at(caller) > before
        assert len(await vectorize(caller)) > 0

    with daemons(PRECISION="auto", EXECUTION_PROVIDER=ONNXRUNTIME) as daemon:
        ask(daemon, first)
        # logged once unused vectors are pruned, which is after all have theirs
        daemon.wait_for_log("vectorized .*computed=[1-9]")
        assert daemon.stop() == 0
        (kept,) = (daemon.state_dir / "gates").glob("*.json")
        report = json.loads(kept.read_text())
        assert len(re.findall("vectorized .*computed=[1-9]", daemon.log)) == 1
        with daemon.start():
            ask(daemon, second)
            assert "proven, and better" not in daemon.log
            assert "grading precisions" not in daemon.log
            ask(daemon, third)
            assert len(re.findall("grading precisions", daemon.log)) == 1


@TWO_RUNTIMES
def test_providers_are_switched_under_load(daemons: Make) -> None:
    """Answer every request while providers are switched over the bus, and tell of each switch."""

    async def work(caller: Caller) -> None:
        await caller.vectorized()
        before = await vectorize(caller)
        stop = asyncio.Event()

        async def asks() -> int:
            answered = 0
            while not stop.is_set():
                found = await vectorize(caller)
                assert max(abs(x - y) for x, y in zip(found, before, strict=True)) < 1e-5
                answered += 1
            return answered

        asking = [asyncio.ensure_future(asks()) for _ in range(2)]
        for name in (OPENVINO, ONNXRUNTIME):
            await set_provider(caller, name)
            assert await serving(caller) == (name, name, "ready")
        stop.set()
        assert min(await asyncio.gather(*asking)) > 3
        told = [body for _, member, body in caller.signals if member == "ProviderChanged"]
        assert [body[0] for body in told[-2:]] == [OPENVINO, ONNXRUNTIME]
        assert told[-1][1] == f"switched to {ONNXRUNTIME}"
        # vectors of the same precision stay: nothing is computed again
        assert await caller.read("Pending") == 0

    with daemons(EXECUTION_PROVIDER=ONNXRUNTIME) as daemon:
        ask(daemon, work)
        assert "Traceback" not in daemon.log


def test_a_failed_switch_changes_nothing(daemons: Make) -> None:
    """Say why another provider cannot serve, tell nobody of a change, and serve on."""

    async def work(caller: Caller) -> None:
        await caller.ready()
        for name, error, sentence in (
            ("migraphx", "org.opdbus.Error.Provider", "migraphx cannot run"),
            ("psychic", "org.freedesktop.DBus.Error.InvalidArgs", "psychic"),
        ):
            with pytest.raises(RemoteError, match=sentence) as caught:
                await set_provider(caller, name)
            assert caught.value.name == error
        assert await serving(caller) == (ONNXRUNTIME, ONNXRUNTIME, "ready")
        assert await vectorize(caller)
        told = [body[0] for _, member, body in caller.signals if member == "ProviderChanged"]
        assert set(told) <= {ONNXRUNTIME}

    with daemons(EXECUTION_PROVIDER=ONNXRUNTIME) as daemon:
        ask(daemon, work)


def settings_file(path: Path, provider: str, precision: str = "fp32") -> Path:
    """Write a file of settings."""
    return replace(path, f'execution_provider = "{provider}"\nprecision = "{precision}"')


@TWO_RUNTIMES
def test_settings_are_read_again(daemons: Make, tmp_path: Path) -> None:
    """Serve as the changed file of settings says after Reload or SIGHUP, or say what is wrong."""
    file = settings_file(tmp_path / "settings.toml", ONNXRUNTIME)

    async def reload(caller: Caller) -> None:
        await caller.ask("Reload", {})

    async def work(caller: Caller) -> None:
        await caller.vectorized()
        settings_file(file, OPENVINO)
        await reload(caller)
        assert await serving(caller) == (OPENVINO, OPENVINO, "ready")
        for precision, error in (("8", "Config"), ("fp16", "Provider")):
            settings_file(file, ONNXRUNTIME, precision)
            with pytest.raises(RemoteError, match=precision) as caught:
                await reload(caller)
            assert caught.value.name == f"org.opdbus.Error.{error}"
            assert await serving(caller) == (OPENVINO, OPENVINO, "ready")
        settings_file(file, ONNXRUNTIME, "int8")
        daemon.send(signal.SIGHUP)
        await caller.signal("ProviderChanged", lambda body: body[1] == f"switched to {ONNXRUNTIME}")
        assert await caller.read("Precision") == "int8"
        await caller.vectorized()
        assert len(await search(caller, "vector")) == 5

    # empty variables unset what the fixture sets, which would win over the file
    with daemons(CONFIG=file, PRECISION="", EXECUTION_PROVIDER="") as daemon:
        ask(daemon, work)
        assert "Traceback" not in daemon.log


def test_the_level_begins_and_ends_with_a_reload(daemons: Make, tmp_path: Path) -> None:
    """Load a model where a reload asks for a level, and do without where it asks for none."""
    file = tmp_path / "op-dbus.toml"
    file.write_text('vector_level = "none"\n')

    async def work(caller: Caller) -> None:
        await caller.ready("ready")
        file.write_text('vector_level = "medium"\n')
        await caller.ask("Reload", {})
        assert await caller.read("Provider") == "cpu:onnxruntime"
        await caller.vectorized()
        assert await search(caller, "vector")
        file.write_text('vector_level = "none"\n')
        await caller.ask("Reload", {})
        assert await caller.read("Provider") == ""
        assert await search(caller, "hybrid")

    with daemons(CONFIG=file, EXECUTION_PROVIDER="cpu:onnxruntime") as daemon:
        ask(daemon, work)


def test_the_level_static(daemons: Make) -> None:
    """The level static finds objects by meaning, and serves its vectors like any other."""

    async def work(caller: Caller) -> None:
        await caller.vectorized()
        assert await caller.read("Provider") == "cpu:numpy"
        assert await search(caller, "vector")
        asked = ["asa{sv}", ["x", "y"], {}]
        found = await caller.call(ROOT_PATH, f"{VECTORIZER}.VectorizeMany", *asked)
        assert (found[0], found[1], len(found[3])) == (2, 256, 2 * 256 * 4)

    with daemons(MODEL="", VECTOR_LEVEL="static") as daemon:
        ask(daemon, work)


def test_opening_a_level_is_part_of_the_timeout(daemons: Make, tmp_path: Path) -> None:
    """Answer TimedOut also where the level must be opened first, and open it all the same."""
    write_tiny_model(tmp_path / "models" / LEVELS["high"].folder, family="mpnet")

    async def work(caller: Caller) -> None:
        await caller.ready("ready")
        asked = ["asa{sv}", ["x"], {"level": "high", "timeout": 0.001}]
        with pytest.raises(RemoteError) as caught:
            await caller.call(ROOT_PATH, f"{VECTORIZER}.VectorizeMany", *asked)
        assert caught.value.name == "org.freedesktop.DBus.Error.Timeout"
        patient = ["asa{sv}", ["x"], {"level": "high"}]
        assert (await caller.call(ROOT_PATH, f"{VECTORIZER}.VectorizeMany", *patient))[0] == 1

    with daemons(MODEL_DIR=tmp_path / "models") as daemon:
        ask(daemon, work)


def test_settings_that_wait_for_a_restart(daemons: Make, tmp_path: Path) -> None:
    """Name the settings that Reload cannot change, and keep serving with the old ones."""
    file = replace(tmp_path / "settings.toml", 'drift_threshold = "error"')

    async def work(caller: Caller) -> None:
        await caller.ready()
        replace(file, 'drift_threshold = "info"')
        await caller.ask("Reload", {})
        daemon.wait_for_log("settings wait for a restart.*OP_DBUS_DRIFT_THRESHOLD")
        assert (await serving(caller))[2] == "ready"

    with daemons(CONFIG=file, VECTOR_LEVEL="none") as daemon:
        ask(daemon, work)


def test_a_chain_moves_on_and_says_why(daemons: Make) -> None:
    """Serve on the next provider, with the reason in Fallbacks, status and log."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")

    async def work(caller: Caller) -> None:
        assert await caller.ready("degraded") == "degraded"
        assert await caller.read("Provider") == cpu_engines()[0]
        assert await caller.read("RequestedProvider") == "cuda,cpu"
        ((provider, reason),) = await caller.read("Fallbacks")
        assert (provider, reason[:15]) == ("cuda", "cuda cannot run")
        await caller.vectorized()
        assert len(await search(caller, "vector")) == 5

    with daemons(EXECUTION_PROVIDER="cuda,cpu") as daemon:
        ask(daemon, work)
        assert re.search("Fallbacks +cuda cannot run", daemon.cli("status").stdout)
        assert "provider refused" in daemon.log
