"""What tests of the whole program need: private buses, daemons as child processes, waiting."""

import asyncio
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest

from opdbus.bus.service import contract
from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.values import from_wire

# Generous: these only end a test that would otherwise never end.
PATIENCE_SECONDS = 120.0
# Of processor time: so long a daemon may work on when it is told to end.
STOP_SECONDS = 3.0
ROOT_PATH, STATE_PATH = "/org/opdbus", "/org/opdbus/state"
HISTORY_PATH, HISTORY = "/org/opdbus/history", "org.opdbus.History1"
VECTORIZER, STATE, OBJECT = "org.opdbus.Vectorizer1", "org.opdbus.State1", "org.opdbus.Object1"
FIXED = {STATE: STATE_PATH, VECTORIZER: ROOT_PATH, HISTORY: HISTORY_PATH}

POLICY = """
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
    <allow user="*"/>
"""
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={folder}/bus.sock</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">{policy}</policy>
  {included}
  <limit name="max_incoming_bytes">133169152</limit>
  <limit name="max_message_size">33554432</limit>
  <limit name="max_replies_per_connection">128</limit>
  <limit name="max_match_rules_per_connection">512</limit>
  <limit name="max_connections_per_user">256</limit>
</busconfig>
"""


class Bus:
    """A private dbus-daemon with the limits of a system bus.

    A service's policy, a text, goes after the default one, as on a system bus.
    """

    def __init__(self, policy: str = POLICY, service: str = "") -> None:
        if not shutil.which("dbus-daemon"):
            pytest.skip("there is no dbus-daemon: `apt install dbus-daemon`")
        # not pytest's folder, which other users cannot enter
        self._folder = tempfile.TemporaryDirectory(prefix="op-dbus-bus-")
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        (folder / "service.conf").write_text(service)
        included = f"<include>{folder}/service.conf</include>" if service else ""
        config = _CONFIG.format(folder=folder, policy=policy, included=included)
        (folder / "bus.conf").write_text(config)
        self._process = subprocess.Popen(
            ["dbus-daemon", f"--config-file={folder}/bus.conf", "--nofork", "--print-address=1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout
        self.address = self._process.stdout.readline().strip()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._folder.cleanup()


class Running:
    """`op-dbus daemon` as a child process, with its log; use as a context, which kills it."""

    def __init__(self, folder: Path, bus: str, **settings: object) -> None:
        self.folder = folder
        self.bus = bus
        self.state_dir = folder / "state"
        self.settings = {f"OP_DBUS_{key}": str(value) for key, value in settings.items()}
        # what it is started by, such as `setpriv`
        self.starter: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._logs = 0

    def __enter__(self) -> Self:
        """Start it, unless that is done."""
        return self if self._process else self.start()

    def __exit__(self, *_: object) -> None:
        """Kill it, if it still runs."""
        self.kill()

    def start(self, *flags: str) -> Self:
        """Start it; each start has a log of its own."""
        self._logs += 1
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self.starter, sys.executable, "-m", "opdbus", "daemon", *flags],
                env=environment(self.bus, self.state_dir, self.settings),
                stdout=log,
                stderr=log,
            )
        return self

    def vectorized(self) -> Self:
        """Wait until it has read its state file and has a vector of every object."""

        async def wait() -> None:
            async with calling(self.bus) as caller:
                await caller.vectorized()

        asyncio.run(wait())
        return self

    @property
    def _log(self) -> Path:
        return self.folder / f"daemon-{self._logs}.log"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process
        return self._process.pid

    @property
    def log(self) -> str:
        """What the last start has printed so far."""
        return self._log.read_text(errors="replace")

    def logs(self) -> str:
        """Give what all starts have printed."""
        return "".join((self.folder / f"daemon-{n + 1}.log").read_text() for n in range(self._logs))

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def exit_code(self) -> int:
        """Wait for its end."""
        assert self._process
        try:
            return self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end:\n{self.log}") from None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it as systemd does, and give the exit code; it may not work for long any more."""
        spent = cpu_seconds(self.pid)
        self.send(number)
        end = os.pidfd_open(self.pid)
        select.select([end], [], [], PATIENCE_SECONDS)
        os.close(end)
        # until it is waited for
        spent = cpu_seconds(self.pid) - spent
        code = self.exit_code()
        assert spent < STOP_SECONDS, f"it worked on for {spent} s:\n{self.log}"
        return code

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def wait_for_log(self, pattern: str) -> re.Match[str]:
        """Wait until the log of this start matches."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not (match := re.search(pattern, self.log)):
            assert self._process
            assert self._process.poll() is None, f"it ended before {pattern!r}:\n{self.log}"
            assert time.monotonic() < end, f"no {pattern!r} in:\n{self.log}"
            # regular files cannot be waited for; the process can, and this is not the test's clock
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.01)
        return match

    def cli(self, *arguments: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess:
        """Run `op-dbus` beside it."""
        environ = environment(self.bus, self.state_dir, self.settings) | more
        return subprocess.run(
            [sys.executable, "-m", "opdbus", *arguments],
            env=environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )


def run_program(
    command: Sequence[str | Path], *, check: bool = False, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and give its exit code and what it printed, whatever they are."""
    usual = {"capture_output": True, "text": True, "timeout": PATIENCE_SECONDS}
    return subprocess.run(command, check=check, **{**usual, **how})


def work_of(
    run: Callable[..., Any], *fixtures: str, handed: int = 1, **how: Any
) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Run an async test as the work of `run`, which hands it so many first parameters, or more.

    `run` takes the values of the fixtures, the work, and `how`.
    """

    def decorated(test: Callable[..., Awaitable[None]]) -> Any:
        own = [*signature(test).parameters.values()][handed:]
        more = [name for name in fixtures if name not in {each.name for each in own}]

        @wraps(test)
        def call(**given: Any) -> None:
            values = [given[name] for name in fixtures]
            rest = {each.name: given[each.name] for each in own}
            run(*values, lambda *made: test(*made[:handed], **rest), **how)

        first = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in more]
        call.__signature__ = Signature([*first, *own])  # type: ignore[attr-defined]
        return call

    return decorated


def longest_share(work: Callable[[], object]) -> float:
    """Give the longest time that work keeps the interpreter's lock, as a share of all its time.

    All of it is processor time of this thread, however many others run beside it.
    """
    clock = time.pthread_getcpuclockid(threading.get_ident())
    seen, is_over, interval = (
        [time.clock_gettime(clock)],
        threading.Event(),
        sys.getswitchinterval(),
    )

    def look() -> None:
        while not is_over.is_set():
            seen.append(time.clock_gettime(clock))
            time.sleep(0)

    other = threading.Thread(target=look)
    sys.setswitchinterval(1e-6)
    other.start()
    try:
        start = time.clock_gettime(clock)
        work()
        end = time.clock_gettime(clock)
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        other.join()
    times = [start, *(one for one in seen if start < one < end), end]
    return max(b - a for a, b in pairwise(times)) / (end - start)


def cpu_seconds(pid: int) -> float:
    """Give how long a process has worked, however many others did meanwhile; see proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


# what the fixture `daemons` gives: makes a daemon, with settings
Make = Callable[..., Running]


def environment(bus: str, state_dir: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Give an environment that holds nothing of this machine's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OP_DBUS_")}
    own = {"BUS": bus, "STATE_DIR": str(state_dir), "OBSERVE": "none"}
    return kept | {f"OP_DBUS_{key}": value for key, value in own.items()} | dict(settings)


class Caller:
    """A client of the daemon that remembers every signal it saw."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.signals: list[tuple[str, str, list[Any]]] = []
        self._news = asyncio.Event()
        connection.on_signal = self._take

    def _take(self, message: Any) -> None:
        if (message.interface or "").startswith("org.freedesktop.DBus.Local"):
            return
        body = [from_wire(value) for value in message.body]
        self.signals.append((message.path or "", message.member or "", body))
        self._news.set()

    async def call(self, path: str, member: str, signature: str = "", *body: Any) -> list[Any]:
        """Call a method of the daemon, and give the reply's values."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.connection.call("org.opdbus", path, member, signature, *body)

    async def ask(self, method: str, *body: Any) -> list[Any]:
        """Call a method of one of the three interfaces by its name alone."""
        for interface, path in FIXED.items():
            if found := contract.interface(interface).methods.get(method):
                return await self.call(path, f"{interface}.{method}", found.inputs, *body)
        raise KeyError(method)

    async def read(self, name: str) -> Any:
        """Read a property of one of the three interfaces by its name alone."""
        for interface, path in FIXED.items():
            if name in contract.interface(interface).properties:
                return await self.get(path, interface, name)
        raise KeyError(name)

    async def get(self, path: str, interface: str, name: str) -> Any:
        """Read one property."""
        member = "org.freedesktop.DBus.Properties.Get"
        return (await self.call(path, member, "ss", interface, name))[0]

    async def signal(self, member: str, matches: Callable[[list[Any]], object] = bool) -> list[Any]:
        """Wait for a signal whose body matches, seen already or still to come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    for _, name, body in self.signals:
                        if name == member and matches(body):
                            return body
                    self._news.clear()
                    await self._news.wait()
        raise AssertionError(f"no such {member} in {self.signals}")

    async def until(self, ask: Callable[[], Awaitable[Any]], wanted: Any) -> Any:
        """Ask again after each signal until the answer is the wanted one."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (answer := await ask()) != wanted:
                self._news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.2):  # some properties change without a signal
                        await self._news.wait()
            return answer

    async def ready(self, *states: str) -> str:
        """Wait until the daemon serves with its model and has read its state file."""
        wanted = states or ("ready",)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._until_owned()

            async def state() -> bool:
                return await self.get(ROOT_PATH, VECTORIZER, "State") in wanted

            await self.until(state, wanted=True)
        found: str = await self.get(ROOT_PATH, VECTORIZER, "State")
        return found

    async def vectorized(self) -> None:
        """Wait until every object has its vector."""
        await self.ready("ready", "degraded")

        async def pending() -> int:
            count: int = await self.get(STATE_PATH, STATE, "Pending")
            return count

        await self.until(pending, 0)

    async def _until_owned(self) -> None:
        async def owned() -> bool:
            return (await self.connection.ask_bus("NameHasOwner", "s", "org.opdbus"))[0]

        await self.until(owned, wanted=True)


@asynccontextmanager
async def calling(bus: str) -> AsyncIterator[Caller]:
    """Connect to a bus as a client that sees the daemon's signals."""
    async with Connection(bus) as connection:
        caller = Caller(connection)
        await connection.subscribe("type='signal',sender='org.opdbus'")
        owners = "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged'"
        await connection.subscribe(f"{owners},arg0='org.opdbus'")
        yield caller


def ask(daemon: Running, work: Callable[[Caller], Awaitable[Any]]) -> Any:
    """Do work as a client of a daemon."""

    async def both() -> Any:
        async with calling(daemon.bus) as caller:
            return await work(caller)

    return asyncio.run(both())


async def search(caller: Caller, mode: str, question: str = "mail") -> list[Any]:
    """Search over the bus, weak hits included: cosines of a tiny model say nothing."""
    options = {"mode": mode, "all": True}
    found = await caller.call(STATE_PATH, f"{STATE}.Search", "sua{sv}", question, 5, options)
    hits: list[Any] = found[0]
    return hits


def state_file(path: Path, units: Mapping[str, str]) -> Path:
    """Write a state file with a unit of each description, as editors do: by replacing it."""
    described = {name: {"description": text} for name, text in units.items()}
    return replace(path, json.dumps({"version": 1, "plugins": {"systemd": {"units": described}}}))


def many(path: Path, count: int) -> Path:
    """Write a state file of units with texts of their own."""
    words = "network mail disk user time login backup service host rule".split()
    text = [
        f"{words[n % 10]} {words[n // 10 % 10]} {words[n // 100 % 10]} {n}" for n in range(count)
    ]
    return state_file(path, {f"u{n}": text[n] for n in range(count)})


def replace(path: Path, text: str) -> Path:
    """Replace a file in one step."""
    part = path.with_suffix(".new")
    part.write_text(text)
    part.rename(path)
    return path


def read_lines(process: subprocess.Popen[str], wanted: Callable[[str], object]) -> str:
    """Read a program's output until all of it together is wanted."""
    assert process.stdout
    end, text = time.monotonic() + PATIENCE_SECONDS, ""
    while not wanted(text):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"nothing more came after:\n{text}"
        more = os.read(process.stdout.fileno(), 65536).decode(errors="replace")
        assert more, f"it ended after:\n{text}"
        text += more
    return text


def is_alive(pid: str) -> bool:
    """Return whether a process runs, and is not just waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
