"""What many tests need: a tiny model, a private message bus, settings in a folder of their own."""

import asyncio
import inspect
import math
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

# before numpy: as the program does, which else would wait in turns on both processors
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import pytest

from opdbus import config
from opdbus.config import Config
from opdbus.engine import cpus
from opdbus.errors import ModelError
from opdbus.models import build, folder
from opdbus.models.level_table import LEVELS
from opdbus.settings.parsing import ProviderRequest

sys.path.insert(0, str(Path(__file__).parent))
from harness.house import House, house
from harness.running import PATIENCE_SECONDS, Bus, Running
from harness.tiny import write_tiny_model

# the same examples in every run: what CI tests today it tests tomorrow;
# HYPOTHESIS_PROFILE=explore looks for new ones
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# A job that a script starts with `&` ignores SIGINT, and so would every program started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "state.example.json"
_SYSTEM = "tests/system/"
# To load OpenVINO as well, as `cpu` does, takes each of hundreds of starts a second more.
ONE_RUNTIME = ProviderRequest(("cpu:onnxruntime",))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run two workers more than there are processors: tests of services mostly wait."""
    return cpus.usable() + 2


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with booted hosts, whose tests run one after another and mostly wait."""
    items.sort(key=lambda it: (not _is_of_shared_host(it.nodeid), _SYSTEM not in it.nodeid))


def _is_of_shared_host(node: str) -> bool:
    # tests with a host of their own do not have the name of its bus in theirs
    return _SYSTEM in node and "[dbus" in node


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file together, and those of the shared hosts: they share fixtures."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "system" if _is_of_shared_host(nodeid) else nodeid.partition("::")[0]

    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    names = inspect.signature(pyfuncitem.function).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session", autouse=True)
def _words_are_waited_for() -> Iterator[None]:
    """Have a first search wait for the words in memory, however busy the processors are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opdbus.index.fulltext.word_index._PATIENCE_SECONDS", PATIENCE_SECONDS)
        yield


@pytest.fixture
def any_speed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep reports on speeds, whatever else runs; that unsteady ones are not has its own test."""
    monkeypatch.setattr("opdbus.engine.gate.STEADY", math.inf)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder with the tiny model."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Write a tiny model for the test to break."""
    return write_tiny_model(tmp_path / "mine")


@pytest.fixture(scope="session")
def medium_model() -> folder.Model:
    """Find the medium model, or skip."""
    try:
        return folder.load_model(LEVELS["medium"], config.load({"HOME": "/nonexistent"}))
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture
def settings(tmp_path: Path, tiny_model: Path) -> Config:
    """Give settings that use the tiny model and nothing of this machine's.

    In fp32, exact on every processor; which precision `auto` takes is for the gate's tests.
    """
    return config.load(
        {
            "HOME": str(tmp_path),
            "OP_DBUS_STATE_DIR": str(tmp_path / "state"),
            "OP_DBUS_STATE_FILE": str(EXAMPLE),
            "OP_DBUS_MODEL": str(tiny_model),
            "OP_DBUS_PRECISION": "fp32",
        }
    )


@pytest.fixture
def live(settings: Config, tiny_graphs: Path) -> Callable[..., Any]:
    """Run work with a house whose graph is built already."""
    shutil.copytree(tiny_graphs, settings.state_dir / "graphs")

    def run(work: Callable[[House], Awaitable[Any]], **more: Any) -> Any:
        async def both() -> Any:
            given = {"execution_provider": ONE_RUNTIME, **more.pop("settings", {})}
            async with house(replace(settings, **given), **more) as made:
                return await work(made)

        return asyncio.run(both())

    return run


@pytest.fixture(scope="session")
def bus_address() -> Iterator[str]:
    """Run a private dbus-daemon with the limits of a system bus."""
    bus = Bus()
    yield bus.address
    bus.kill()


@pytest.fixture
def system_bus(bus_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the private bus be the system's."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus_address)
    return bus_address


@pytest.fixture(scope="session")
def tiny_graphs(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Build the tiny model's graph as a daemon keeps it, so that tests need not wait for it."""
    cache = tmp_path_factory.mktemp("graphs")
    level = LEVELS["medium"]
    asyncio.run(build.ensure(folder.read_model(tiny_model, level), cache))
    return cache


@contextmanager
def making(home: Path, model: Path, graphs: Path) -> Iterator[Callable[..., Running]]:
    """Make daemons, not started yet, each with a bus and a folder of its own unless given."""
    with ExitStack() as stack:

        def make(name: str = "one", bus: str = "", **settings: object) -> Running:
            here = home / name
            if not bus:
                private = Bus()
                stack.callback(private.kill)
                bus = private.address
            shutil.copytree(graphs, here / "state" / "graphs")
            ours = {"MODEL": model, "STATE_FILE": EXAMPLE, "PRECISION": "fp32"}
            ours |= {"EXECUTION_PROVIDER": ONE_RUNTIME, "LOG_LEVEL": "debug"}
            given = {**ours, **settings}
            running = Running(here, bus, **given)
            stack.callback(running.kill)
            return running

        yield make


@pytest.fixture
def daemons(
    tmp_path: Path, tiny_model: Path, tiny_graphs: Path
) -> Iterator[Callable[..., Running]]:
    """Make daemons for a test."""
    with making(tmp_path, tiny_model, tiny_graphs) as make:
        yield make


@pytest.fixture(scope="module")
def shared_daemons(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, tiny_graphs: Path
) -> Iterator[Callable[..., Running]]:
    """Make daemons for all tests of a file, which change nothing that others see."""
    with making(tmp_path_factory.mktemp("shared"), tiny_model, tiny_graphs) as make:
        yield make


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Name a model directory that is not there yet."""
    return tmp_path / "var" / "models"
