"""The log's level and target over the bus, as systemctl and busctl set them."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.running import Running, calling

from opdbus.bus.names import LOG_CONTROL
from opdbus.bus.paths import LOG_CONTROL as PATH
from opdbus.bus.service.contract import Caller
from opdbus.bus.service.standard import LogControlInterface
from opdbus.errors import InvalidArgs

CALLER = Caller(":1.1", 0)
Make = Callable[..., Running]


class Told:
    """A log that only remembers what it was told."""

    level, target = "info", "console"

    def set_level(self, level: str) -> None:
        """Take any level but one."""
        if level == "loud":
            raise InvalidArgs("there is no log level 'loud'")
        self.level = level

    def set_target(self, target: str) -> None:
        """Take a target."""
        self.target = target


def test_the_face_is_the_log() -> None:
    """Show the log's level and target, and change them."""
    told = Told()
    interface = LogControlInterface(told)  # type: ignore[arg-type]

    async def work() -> Any:
        await interface.set_log_level(CALLER, "debug")
        await interface.set_log_target(CALLER, "journal")
        with pytest.raises(InvalidArgs):
            await interface.set_log_level(CALLER, "loud")
        return await interface.properties()

    assert asyncio.run(work()) == {
        "LogLevel": "debug",
        "LogTarget": "journal",
        "SyslogIdentifier": "op-dbus",
    }


@pytest.fixture
def served(daemons: Make) -> Iterator[Running]:
    """Run a daemon that says little."""
    with daemons(VECTOR_LEVEL="none", LOG_LEVEL="warning", LOG_FORMAT="json") as daemon:
        asyncio.run(_ready(daemon))
        yield daemon


async def _ready(daemon: Running) -> None:
    async with calling(daemon.bus) as caller:
        await caller.ready("ready")


def busctl(daemon: Running, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run busctl on the daemon's bus."""
    if not shutil.which("busctl"):
        pytest.skip("there is no busctl: `apt install systemd`")
    return subprocess.run(
        ["busctl", f"--address={daemon.bus}", "--json=short", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def get(daemon: Running, name: str) -> str:
    """Read a property as busctl shows it."""
    done = busctl(daemon, "get-property", "org.opdbus", PATH, LOG_CONTROL, name)
    assert done.returncode == 0, done.stderr
    value: str = json.loads(done.stdout)["data"]
    return value


def put(daemon: Running, name: str, value: str) -> subprocess.CompletedProcess[str]:
    """Set a property by busctl."""
    return busctl(daemon, "set-property", "org.opdbus", PATH, LOG_CONTROL, name, "s", value)


def reload(daemon: Running) -> None:
    """Have the daemon do something that it logs at the level info."""
    done = busctl(
        daemon,
        "call",
        "org.opdbus",
        "/org/opdbus",
        "org.opdbus.Vectorizer1",
        "Reload",
        "a{sv}",
        "0",
    )
    assert done.returncode == 0, done.stderr


def test_busctl_reads(served: Running) -> None:
    """Give busctl what the settings said, in syslog's words."""
    found = [get(served, name) for name in ("LogLevel", "LogTarget", "SyslogIdentifier")]
    assert found == ["warning", "console", "op-dbus"]


def test_busctl_sets_the_level(served: Running) -> None:
    """Say more at once when busctl asks for it, and less again."""
    reload(served)
    assert "reloading" not in served.log
    assert put(served, "LogLevel", "info").returncode == 0
    reload(served)
    assert served.log.count('"reloading"') == 1
    assert get(served, "LogLevel") == "info"
    assert "settings read" not in served.log
    assert put(served, "LogLevel", "debug").returncode == 0
    reload(served)
    assert served.log.count('"settings read"') == 1
    assert put(served, "LogLevel", "err").returncode == 0
    reload(served)
    assert served.log.count('"reloading"') == 2


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("LogLevel", "loud", "there is no log level 'loud'"),
        ("LogTarget", "syslog", "cannot log to 'syslog'"),
        ("LogTarget", "kmsg", "cannot log to 'kmsg'"),
        ("SyslogIdentifier", "other", "SyslogIdentifier"),
    ],
)
def test_what_cannot_be_is_refused(served: Running, name: str, value: str, says: str) -> None:
    """Answer a sentence for what no log can do, and change nothing."""
    before = get(served, name)
    done = put(served, name, value)
    assert done.returncode != 0
    assert says in done.stderr
    assert get(served, name) == before


def test_the_root_shows_it(served: Running) -> None:
    """Let whoever walks the tree find the log from the root."""
    done = busctl(served, "--list", "tree", "org.opdbus")
    assert PATH in done.stdout.split()
