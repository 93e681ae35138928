"""What the tests on a booted host share: an installed tree, a host for each message bus."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.booting import booted, why_not
from system.host import Host
from system.installing import installed
from system.service import SETTINGS, STORE, UNITS, Service

HERE = Path(__file__).parent
IS_ALL = "OP_DBUS_TEST_BUSES" in os.environ


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark all tests in this folder, and leave out those that need not run on another bus."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker("system")
    repeated = [item for item in ours if not IS_ALL and _is_repeated(item)]
    config.hook.pytest_deselected(items=repeated)
    items[:] = [item for item in items if item not in repeated]


def _is_repeated(item: pytest.Item) -> bool:
    # the others are not about what the bus does for the service: `make test-all` runs them on each
    return "dbus-broker" in item.name and not item.get_closest_marker("each_bus")


@pytest.fixture(scope="session")
def layer(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the tree that `make install` makes; skips where no host can be booted to use it."""
    if reason := why_not():
        pytest.skip(reason)
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    with installed(cache.mkdir("system") if cache else tmp_path_factory.mktemp("system")) as tree:
        yield tree


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder for what the first host's service builds, so that the second's need not."""
    return tmp_path_factory.mktemp("built")


@pytest.fixture(scope="session", params=["dbus", "dbus-broker"])
def host(request: pytest.FixtureRequest, layer: Path, built: Path) -> Iterator[Host]:
    """Boot a host on which op-dbus is installed, with each of the two message buses."""
    with booted(request.param, layer) as host:
        shutil.copytree(built, host.path(STORE), dirs_exist_ok=True)
        # what `make install` does where systemd runs already, and a boot does not
        host.ask("journalctl", "--update-catalog")
        # a start with the model takes two seconds more, which few tests need
        settings = "OP_DBUS_OBSERVE=none\nOP_DBUS_VECTOR_LEVEL=static\n"
        host.write(SETTINGS, host.path(SETTINGS).read_text() + settings)
        for user in ("member", "outsider"):
            host.ask("useradd", "--no-create-home", user)
        host.ask("usermod", "--append", "--groups", "op-dbus", "member")
        yield host
        for folder in ("graphs", "gates"):
            if host.path(f"{STORE}/{folder}").exists():
                shutil.copytree(host.path(f"{STORE}/{folder}"), built / folder, dirs_exist_ok=True)


@pytest.fixture
def service(host: Host) -> Iterator[Service]:
    """Give the service as it is after a start with the default settings, whatever was before."""
    service = Service(host)
    service.settle()
    yield service
    service.forget()


@pytest.fixture(scope="module")
def observing(request: pytest.FixtureRequest, host: Host) -> Iterator[Service]:
    """Give the service while it observes what a file of tests names in OBSERVED."""
    service = Service(host)
    service.declare(UNITS)
    service.observe(request.module.OBSERVED)
    yield service
    service.forget()


@pytest.fixture
def observer(host: Host) -> Iterator[Service]:
    """Give the service not started yet, as the test says what it observes."""
    service = Service(host)
    service.declare(UNITS)
    yield service
    service.forget()
