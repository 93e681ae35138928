"""What the tests on a booted host share: an installed tree, a host for each message bus."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from booting import booted, why_not
from host import Host
from installing import installed
from service import Service

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests in this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("system")


@pytest.fixture(scope="session")
def layer(pytestconfig: pytest.Config) -> Iterator[Path]:
    """Give the tree that `make install` makes; skips where no host can be booted to use it."""
    if reason := why_not():
        pytest.skip(reason)
    if given := os.environ.get("OP_DBUS_TEST_LAYER"):
        yield Path(given)
        return
    with installed(pytestconfig.cache.mkdir("system")) as tree:
        yield tree


@pytest.fixture(scope="session", params=["dbus", "dbus-broker"])
def host(request: pytest.FixtureRequest, layer: Path) -> Iterator[Host]:
    """Boot a host on which op-dbus is installed, with each of the two message buses."""
    with booted(request.param, layer) as host:
        # what `make install` does where systemd runs already, and a boot does not
        host.ask("journalctl", "--update-catalog")
        for user in ("member", "outsider"):
            host.ask("useradd", "--no-create-home", user)
        host.ask("usermod", "--append", "--groups", "op-dbus", "member")
        yield host


@pytest.fixture
def service(host: Host) -> Iterator[Service]:
    """Give the service as it is after a start with the default settings, whatever was before."""
    service = Service(host)
    service.settle()
    yield service
    service.forget()
