"""Messages of a started daemon to systemd, and what a watchdog would see."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.remembering import OWNER, disown, run, unit
from harness.running import (
    PATIENCE_SECONDS,
    Bus,
    Running,
    calling,
    replace,
    run_program,
)

from opdbus.errors import ConfigError
from opdbus.systemd import notify
from opdbus.systemd.notify import Systemd

Make = Callable[..., Running]


class Listener:
    """systemd's end of the notification socket: every message that came, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(PATIENCE_SECONDS)

    def receive(self) -> dict[str, str]:
        """Wait for the next message: its assignments."""
        text = self._socket.recv(65536).decode()
        return dict(line.split("=", 1) for line in text.splitlines())

    def until(self, name: str, value: str = "") -> list[dict[str, str]]:
        """Wait for a message that assigns the value, and give all until then."""
        seen = []
        while not seen or name not in seen[-1] or not seen[-1][name].startswith(value):
            seen.append(self.receive())
        return seen

    def drain(self) -> int:
        """Take what is there already, and count it."""
        self._socket.settimeout(0.0)
        count = 0
        try:
            while self._socket.recv(65536):
                count += 1
        except BlockingIOError:
            return count
        finally:
            self._socket.settimeout(PATIENCE_SECONDS)
        raise AssertionError("an empty message")

    def close(self) -> None:
        """Be gone."""
        self._socket.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """Listen as systemd does."""
    found = Listener(tmp_path / "notify")
    yield found
    found.close()


def notifying(daemon: Running, listener: Listener, **more: str) -> Running:
    """Have the daemon started as systemd would."""
    daemon.settings |= {"NOTIFY_SOCKET": str(listener.path), **more}
    return daemon


def statuses(messages: list[dict[str, str]]) -> list[str]:
    """Give the status of each message that has one."""
    return [message["STATUS"] for message in messages if "STATUS" in message]


# the daemon's life


def test_life_is_told_in_order(daemons: Make, listener: Listener) -> None:
    """Say READY first, with the model still to be loaded, then ready with what, and STOPPING."""
    provider = "cpu:onnxruntime"
    with notifying(daemons(EXECUTION_PROVIDER=provider), listener) as daemon:
        first = listener.receive()
        assert first == {"READY": "1", "STATUS": "Loading the model"}
        # a caller that systemd lets through finds us
        assert asyncio.run(_owner(daemon.bus)) is True
        assert "serving" in daemon.log
        seen = listener.until("STATUS", "Ready: ")
        assert statuses(seen)[-1] == f"Ready: 100 objects, medium on {provider} fp32"
        daemon.send(signal.SIGTERM)
        assert listener.until("STOPPING")[-1] == {"STOPPING": "1", "STATUS": "Stopping"}
        assert daemon.exit_code() == 0
        assert listener.drain() == 0


async def _owner(bus: str) -> bool:
    async with calling(bus) as caller:
        owned: bool = (await caller.connection.ask_bus("NameHasOwner", "s", "org.opdbus"))[0]
        return owned


def test_a_daemon_that_cannot_serve_is_never_ready(daemons: Make, listener: Listener) -> None:
    """Say only why it ended where the name cannot be owned."""
    with daemons(VECTOR_LEVEL="none") as first:
        first.wait_for_log("serving")
        with notifying(daemons("two", bus=first.bus), listener) as second:
            assert second.exit_code() == 4
    message = listener.receive()
    assert message.keys() == {"STATUS"}
    assert message["STATUS"].startswith("Failed: org.opdbus is owned already")
    assert listener.drain() == 0


@pytest.mark.parametrize(
    ("settings", "code", "sentence"),
    [
        ({"MODEL": "", "MODEL_DIR": "/nonexistent", "VECTOR_LEVEL": "high"}, 3, "the high model"),
        ({"EXECUTION_PROVIDER": "coreml"}, 3, "coreml cannot run"),
        ({"THREADS": "many"}, 2, "OP_DBUS_THREADS='many' is not accepted"),
    ],
)
def test_what_is_missing_is_found_before_ready(
    daemons: Make, listener: Listener, settings: dict[str, str], code: int, sentence: str
) -> None:
    """Never be ready without model, provider or good settings, and leave the fault as status."""
    with notifying(daemons(**settings), listener) as daemon:
        assert daemon.exit_code() == code
    message = listener.receive()
    assert message.keys() == {"STATUS"}
    assert message["STATUS"].startswith(f"Failed: {sentence}")
    assert listener.drain() == 0


def test_a_fault_while_serving_stays_as_the_status(daemons: Make, listener: Listener) -> None:
    """Say from STOPPING on by which fault the service ends: callers may ask before its end."""
    bus = Bus()
    with notifying(daemons(bus=bus.address, VECTOR_LEVEL="none"), listener) as daemon:
        listener.until("READY")
        bus.kill()
        stopping = listener.until("STOPPING")[-1]
        assert stopping["STATUS"].startswith("Failed: the connection to the message bus was lost")
        assert daemon.exit_code() == 1


def test_reload_by_signal_is_told(daemons: Make, listener: Listener) -> None:
    """Say RELOADING with the time, then READY, after SIGHUP, also where there was a fault."""
    daemon = notifying(daemons(VECTOR_LEVEL="none"), listener)
    file = replace(daemon.folder / "state.json", '{"version": 1, "plugins": {}}')
    daemon.settings["OP_DBUS_STATE_FILE"] = str(file)
    with daemon:
        listener.until("STATUS", "Ready")
        before = time.monotonic_ns() // 1000
        daemon.send(signal.SIGHUP)
        told = listener.until("RELOADING")[-1]
        assert before <= int(told["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        assert told["STATUS"] == "Reading settings and state file again"
        listener.until("READY")
        replace(file, "{")
        assert listener.until("STATUS", "Degraded: ")[-1]["STATUS"].count("state.json") == 1
        daemon.send(signal.SIGHUP)
        listener.until("RELOADING")
        listener.until("READY")


def test_reload_over_the_bus_is_told(daemons: Make, listener: Listener) -> None:
    """Say RELOADING and READY when somebody calls Reload, before the caller has the answer."""

    async def work(bus: str) -> None:
        async with calling(bus) as caller:
            await caller.ask("Reload", {})

    with notifying(daemons(VECTOR_LEVEL="none"), listener) as daemon:
        listener.until("STATUS", "Ready")
        asyncio.run(work(daemon.bus))
        assert "MONOTONIC_USEC" in listener.until("RELOADING")[-1]
        listener.until("READY")
        assert daemon.stop() == 0


def test_degraded_says_why(daemons: Make, listener: Listener) -> None:
    """Say which provider was passed over, and why, in the status."""
    with notifying(daemons(EXECUTION_PROVIDER="cuda,cpu:onnxruntime"), listener):
        status = listener.until("STATUS", "Degraded: ")[-1]["STATUS"]
    assert "medium on cpu:onnxruntime fp32; cuda cannot run" in status


# the watchdog


def test_watchdog_is_pinged_while_the_loop_turns(daemons: Make, listener: Listener) -> None:
    """Ping at a third of the time from before READY on, and no more when stopped."""
    daemon = notifying(daemons(VECTOR_LEVEL="none"), listener, WATCHDOG_USEC="300000")
    with daemon:
        assert listener.receive() == {"WATCHDOG": "1"}
        listener.until("STATUS", "Ready")
        began = time.monotonic()
        listener.drain()
        for _ in range(5):
            listener.until("WATCHDOG")
        assert time.monotonic() - began > 0.35
        daemon.send(signal.SIGSTOP)
        os.waitid(os.P_PID, daemon.pid, os.WSTOPPED | os.WNOWAIT)
        listener.drain()
        listener._socket.settimeout(0.6)
        with pytest.raises(TimeoutError):
            listener.receive()
        listener._socket.settimeout(PATIENCE_SECONDS)
        daemon.send(signal.SIGCONT)
        assert listener.receive() == {"WATCHDOG": "1"}
        assert daemon.stop() == 0


async def test_a_blocked_loop_does_not_ping_and_a_busy_one_does() -> None:
    """Ping whatever the loop is busy with, but only if it turns."""
    messages: list[str] = []
    service = Systemd(messages.append, watchdog_seconds=0.03)
    watched = asyncio.create_task(service.ping_watchdog())

    async def turn() -> None:
        while len(messages) < 5:  # noqa: ASYNC110 -- a busy loop is meant
            await asyncio.sleep(0)

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(turn() for _ in range(100)))
    busy = len(messages)
    time.sleep(0.3)  # noqa: ASYNC251 -- what must not be
    blocked = len(messages) - busy
    watched.cancel()
    assert busy >= 5
    assert blocked == 0


def test_child_inherits_no_systemd_variables(tmp_path: Path) -> None:
    """Start children without the variables of systemd's notification protocol."""
    variables = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}
    script = (
        "import asyncio\nfrom opdbus.models import child\nprint(asyncio.run(child.run('environ')))"
    )
    (tmp_path / "environ.py").write_text("import os\nprint(dict(os.environ))")
    said = run_program(
        [sys.executable, "-c", script],
        env={**os.environ, **variables, "PYTHONPATH": str(tmp_path), "KEPT": "1"},
        check=True,
    ).stdout
    assert "'KEPT': '1'" in said
    assert not [name for name in variables if name in said]


# the parts


def test_nobody_listens() -> None:
    """Tell nobody where systemd did not start us."""
    deaf = notify.connect({}, 1)
    deaf.ready()
    deaf.stopping()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_PID": "7"}, 0.0),
        ({}, 0.0),
    ],
)
def test_watchdog_is_for_one_process(environ: dict[str, str], seconds: float) -> None:
    """Ping only where there is a time, and the process is meant."""
    assert notify._watchdog_seconds(environ, 7) == seconds


@pytest.mark.parametrize("given", ["soon", "-1", "1.5", "٣", ""])
def test_bad_watchdog_is_a_sentence(given: str) -> None:
    """Refuse a time that is no number, as a bad setting."""
    with pytest.raises(ConfigError, match="WATCHDOG_USEC"):
        notify._watchdog_seconds({"WATCHDOG_USEC": given}, 7)


TAKE_PASSED = """
import os, sys
from opdbus.systemd import notify
os.environ["LISTEN_PID"] = os.environ["LISTEN_PID"] or str(os.getpid())
for name, one in notify.take_sockets(os.environ, os.getpid()).items():
    print(name, one.fileno(), one.get_inheritable())
print(*(key for key in os.environ if key.startswith("LISTEN_")))
"""


def take_passed(owner: str, count: str, names: str) -> subprocess.CompletedProcess[str]:
    """Take sockets in a process that has two of them as its descriptors 3 and 4."""
    given = {"LISTEN_PID": owner, "LISTEN_FDS": count, "LISTEN_FDNAMES": names}
    one, two = socket.socketpair()
    with one, two:
        files = f"3<&{one.fileno()} 4<&{two.fileno()}"
        return run_program(
            ["/bin/bash", "-c", f'exec "$@" {files}', "bash", sys.executable, "-c", TAKE_PASSED],
            env=os.environ | given,
            pass_fds=[one.fileno(), two.fileno()],
        )


def test_passed_sockets_have_names() -> None:
    """Take the sockets by the names of their units, for this process alone."""
    assert take_passed("", "2", "diag:route").stdout == "diag 3 False\nroute 4 False\n\n"


def test_sockets_of_another_process_are_left_alone() -> None:
    """Take nothing that was passed to another process, which left its environment."""
    assert take_passed("1", "2", "diag:route").stdout == "\n"


@pytest.mark.parametrize(("count", "names"), [("x", "a"), ("2", "a"), ("", ""), ("3", "a:b:c")])
def test_passed_sockets_that_are_none_are_a_sentence(count: str, names: str) -> None:
    """Malformed LISTEN_FDS is a ConfigError."""
    assert "LISTEN_FDS" in take_passed("", count, names).stderr.splitlines()[-1]


@pytest.mark.parametrize("is_abstract", [False, True])
@pytest.mark.parametrize("has_package", [False, True])
def test_systemd_gets_whole_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_package: bool, is_abstract: bool
) -> None:
    """Notify over either kind of socket, with systemd-python or without it."""
    if has_package:
        pytest.importorskip("systemd.daemon", reason="the extra systemd is not installed")
    else:
        monkeypatch.setitem(sys.modules, "systemd.daemon", None)
    path = f"@{tmp_path}" if is_abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path.replace("@", "\0"))
        connected = notify.connect(os.environ, os.getpid())
        connected.describe = lambda: "Ready: ünits"
        connected.ready()
        assert listening.recv(4096).decode() == "READY=1\nSTATUS=Ready: ünits"


def test_a_systemd_that_is_gone_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on where nobody listens at the socket any more."""
    monkeypatch.setitem(sys.modules, "systemd.daemon", None)
    notify.connect({"NOTIFY_SOCKET": "/nowhere/notify"}, os.getpid()).ready()


def recording_systemd(status_seconds: float) -> tuple[Systemd, list[str]]:
    """Give a systemd whose messages are kept."""
    messages: list[str] = []
    return Systemd(messages.append, status_seconds=status_seconds), messages


class Kept(list[str]):
    """Messages, of which one can be waited for."""

    def __init__(self) -> None:
        self.last = asyncio.Event()

    def take(self, message: str) -> None:
        """Keep a message."""
        self.append(message)
        if message.endswith("99"):
            self.last.set()


async def test_status_is_coalesced() -> None:
    """Tell the first status at once and, of those that follow quickly, only the last."""
    messages = Kept()
    service = Systemd(messages.take, status_seconds=0.05)
    for count in range(100):
        service.describe = lambda count=count: f"at {count}"  # type: ignore[misc]
        service.renew()
    await messages.last.wait()
    assert messages == ["STATUS=at 0", "STATUS=at 99"]


async def test_the_same_status_is_told_once() -> None:
    """Say nothing where nothing is new."""
    service, messages = recording_systemd(0.0)
    service.describe = lambda: "at rest"
    for _ in range(3):
        service.renew()
        await asyncio.sleep(0.01)
    assert messages == ["STATUS=at rest"]


@pytest.mark.parametrize("before", [0, 2])
async def test_no_status_follows_stopping(before: int) -> None:
    """Be silent after STOPPING, whatever still happens, and whatever still waited."""
    service, messages = recording_systemd(0.0)
    service.describe = lambda: f"at {len(messages)}"
    for _ in range(before):
        service.renew()
    service.stopping()
    service.renew()
    await asyncio.sleep(0.01)
    assert messages[-1] == "STOPPING=1\nSTATUS=Stopping"


def test_ready_does_not_follow_stopping() -> None:
    """Send no end of a reload that stopping cut short: systemd would take us for serving again."""
    service, messages = recording_systemd(0.0)

    def cut_short() -> None:
        with service.reloading():
            service.stopping()
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        cut_short()
    assert messages[1:] == ["STOPPING=1\nSTATUS=Stopping"]


async def test_status_is_one_bounded_line() -> None:
    """Keep line breaks in one line, backslashes for systemd, and no more than systemctl shows."""
    service, messages = recording_systemd(0.0)
    service.describe = lambda: "bad '\\n'\nMAINPID=1 " + "x" * 10_000
    service.renew()
    (message,) = messages
    # systemd takes one of two backslashes away
    assert message.startswith(r"STATUS=bad '\\n' MAINPID=1 xxx")
    assert len(message) < 600


def test_ready_follows_a_failed_reload() -> None:
    """Say READY after a reload that raised."""
    service, messages = recording_systemd(0.0)
    with pytest.raises(ConfigError), service.reloading():
        raise ConfigError("bad")
    assert [message.partition("=")[0] for message in messages] == ["RELOADING", "READY"]


async def test_long_work_before_ready_extends_the_start() -> None:
    """Ask for more time with each report before READY, and none after it."""
    service, messages = recording_systemd(0.0)
    service.describe = lambda: "at rest"
    service.progress()
    service.ready()
    service.progress()
    await asyncio.sleep(0)
    first, ready, *rest = messages
    assert first.startswith("EXTEND_TIMEOUT_USEC=120000000\nSTATUS=Making the database ready")
    assert (ready, rest) == ("READY=1\nSTATUS=at rest", [])


def test_a_start_that_redacts_tells_that_it_goes_on(daemons: Make, listener: Listener) -> None:
    """Extend the start while objects of an older version are looked through, and then be ready."""
    daemon = daemons(VECTOR_LEVEL="none")
    run(daemon.state_dir, lambda memory: memory.publish([unit("a", state="b")], OWNER))
    disown(daemon.state_dir / "memory.db")
    with notifying(daemon, listener):
        seen = listener.until("READY")
    assert any("EXTEND_TIMEOUT_USEC" in message for message in seen)
