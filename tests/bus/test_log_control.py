"""The log's level and target over the bus, as systemctl and busctl set them."""

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest
from harness.running import Caller, Running, ask, run_program

from opdbus.bus.names import LOG_CONTROL
from opdbus.bus.paths import LOG_CONTROL as PATH


@pytest.fixture(scope="module")
def served(shared_daemons: Callable[..., Running]) -> Running:
    """Run a daemon that says little."""
    daemon = shared_daemons(VECTOR_LEVEL="none", LOG_LEVEL="warning", LOG_FORMAT="json").start()
    ask(daemon, Caller.ready)
    return daemon


def busctl(daemon: Running, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run busctl on the daemon's bus."""
    if not shutil.which("busctl"):
        pytest.skip("there is no busctl: `apt install systemd`")
    command = ["busctl", f"--address={daemon.bus}", "--json=short", *arguments]
    return run_program(command)


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
    where = "org.opdbus", "/org/opdbus", "org.opdbus.Vectorizer1"
    done = busctl(daemon, "call", *where, "Reload", "a{sv}", "0")
    assert done.returncode == 0, done.stderr


def test_busctl_sets_the_level(served: Running) -> None:
    """Begin as the settings say, say more at once when busctl asks for it, and less again."""
    found = [get(served, name) for name in ("LogLevel", "LogTarget", "SyslogIdentifier")]
    assert found == ["warning", "console", "op-dbus"]
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
    assert PATH in busctl(served, "--list", "tree", "org.opdbus").stdout.split()
