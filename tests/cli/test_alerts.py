"""`op-dbus notify` beside a daemon: nothing is lost and the order is kept, whatever is killed."""

import asyncio
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from harness.commands import invoke
from harness.running import PATIENCE_SECONDS, Running, calling, environment, is_alive
from test_alert_rules import DRIFT, FAILED, STOPPED

from opdbus.cli.alerts.alert_rules import read_rules
from opdbus.cli.alerts.delivery import Cursor, Delivery, Setting
from opdbus.client import Client
from opdbus.platform.tasks import cancel

RULES = """
[[rule]]
name = "failed"
on = "failed"

[[rule]]
name = "lamps"
on = "change"
where = "after.lit=yes"
run = ["gated"]

[[rule]]
name = "drift"
on = "drift"
severity = "error"
run = ["plain"]
"""
# Each tells in a FIFO what it got, in one write; `gated` then waits for the exit code to give.
PLAIN = '#!/bin/sh\nread -r alert\necho "$alert" >{folder}/plain.out\n'
GATED = (
    '#!/bin/sh\nread -r alert\necho "$alert" >{folder}/gated.out\n'
    "read -r code <{folder}/gate\necho '{{}}' >{folder}/gated.out\nexit $code\n"
)


class Fifo:
    """A FIFO that is open for reading and writing here, so that nobody waits to open it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def line(self) -> Any:
        """Wait for the next line."""
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._descriptor], [], [], PATIENCE_SECONDS)
            assert ready, "nothing came"
            self._rest += os.read(self._descriptor, 65536)
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def write(self, text: str) -> None:
        """Write a line."""
        os.write(self._descriptor, f"{text}\n".encode())

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


class Notifier:
    """`op-dbus notify` as a child process with two executables, and what it says to systemd."""

    def __init__(self, folder: Path, daemon: Running) -> None:
        self.folder = folder
        self._daemon = daemon
        self.config = folder / "notify.toml"
        self.config.write_text(RULES)
        for name in ("notify.d", "done"):
            (folder / name).mkdir()
        for name, text in (("plain", PLAIN), ("gated", GATED)):
            (folder / "notify.d" / name).write_text(text.format(folder=folder))
            (folder / "notify.d" / name).chmod(0o755)
        self.plain, self.gated, self.gate = (
            Fifo(folder / name) for name in ("plain.out", "gated.out", "gate")
        )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "systemd"))
        self._socket.settimeout(PATIENCE_SECONDS)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; what it logs goes to one file."""
        environ = environment(self._daemon.bus, self.folder, {})
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "opdbus", "notify", "--config", str(self.config)],
                env=environ
                | {
                    "NOTIFY_SOCKET": str(self.folder / "systemd"),
                    "STATE_DIRECTORY": str(self.folder / "done"),
                },
                stdout=log,
                stderr=log,
            )

    def until_status(self, pattern: str) -> str:
        """Wait for a status."""
        said = []
        with suppress(TimeoutError):
            while True:
                said.append(self._socket.recv(4096).decode())
                if re.search(pattern, said[-1]):
                    return said[-1]
        raise AssertionError(f"no {pattern} in {said}\n{self.log()}")

    def log(self) -> str:
        """Give what all starts logged."""
        return (self.folder / "log").read_text()

    def end(self, number: signal.Signals) -> int:
        """End it, and give the exit code."""
        assert self._process
        self._process.send_signal(number)
        return self._process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        """End it as a crash would."""
        if self._process and self._process.poll() is None:
            self.end(signal.SIGKILL)
        self._socket.close()
        for fifo in (self.plain, self.gated, self.gate):
            fifo.close()


@pytest.fixture
def notifier(daemons: Callable[..., Running], tmp_path: Path) -> Iterator[Notifier]:
    """Give a daemon that declares a unit, and one who is to be notified."""
    state = tmp_path / "state.json"
    unit = {"web.service": {"active_state": "active"}}
    state.write_text(json.dumps({"version": 1, "plugins": {"systemd": {"units": unit}}}))
    daemon = daemons(STATE_FILE=state, VECTOR_LEVEL="none").start()
    found = Notifier(tmp_path, daemon)
    yield found
    found.close()


def publish(daemon: Running, *units: str, of: str = "t/systemd/unit", **properties: Any) -> int:
    """Publish units, failed ones unless something else is given; give the newest row's number."""
    values = properties or {"active_state": "failed"}
    source, *kind_id = of.split("/")

    async def work() -> int:
        async with calling(daemon.bus) as caller:
            await caller.ready()
            objects = [(*kind_id, name, values) for name in units]
            await caller.ask("Publish", source, objects, {})
            (row,) = (await caller.ask("Changes", {}, 1))[0]
            return int(row["seq"])

    return asyncio.run(work())


def name_of(alert: dict[str, Any]) -> str:
    """Give the name of an alert's object."""
    return str(alert["object"]).removeprefix("systemd/unit/")


def test_nothing_is_lost_and_the_order_is_kept(notifier: Notifier) -> None:
    """Give each executable each alert in order, the one in work at a kill or a failure again."""
    daemon, gated, plain = notifier._daemon, notifier.gated, notifier.plain
    publish(daemon, "old")
    notifier.start()
    # the first start begins at the newest change
    notifier.until_status(r"READY=1\nSTATUS=gated is at change \d+; plain is at change \d+")
    last = publish(daemon, "a", "b", "c")
    alerts = [plain.line() for _ in "abc"]
    assert [name_of(one) for one in alerts] == ["a", "b", "c"]
    assert [one["sequence"] for one in alerts] == [last - 2, last - 1, last]
    assert {**alerts[0], "time": 0, "causes": 0, "text": 0} == {
        "format_version": "1.1",
        "kind": "failed",
        "what": "appeared",
        "sequence": last - 2,
        "time": 0,
        "host": socket.gethostname(),
        "object": "systemd/unit/a",
        "severity": "error",
        "before": {},
        "after": {"active_state": "failed"},
        "declared": {},
        "causes": 0,
        "by": "",
        "as_root": [],
        "why": "",
        "lines": [],
        "rules": ["failed"],
        "text": 0,
    }
    # one that fails holds no other up, and gets the same alert again
    notifier.until_status(f"plain is at change {last:,}")
    assert name_of(gated.line()) == "a"
    notifier.gate.write("3")
    assert gated.line() == {}
    notifier.until_status("gated is at change .*, and failed 1 time since: its exit code was 3")
    assert name_of(gated.line()) == "a"
    # killed while the executable runs, which goes on alone
    notifier.end(signal.SIGKILL)
    notifier.gate.write("0")
    assert gated.line() == {}
    publish(daemon, "d")
    notifier.start()
    for name in "abcd":
        assert name_of(gated.line()) == name
        notifier.gate.write("0")
        assert gated.line() == {}
    assert name_of(plain.line()) == "d"
    # while op-dbus is away it waits, and does not start it
    daemon.stop()
    daemon.start()
    last = publish(daemon, "lamp", lit="yes")
    lamp = gated.line()
    assert (lamp["kind"], lamp["rules"], lamp["after"]) == ("change", ["lamps"], {"lit": "yes"})
    notifier.gate.write("0")
    assert gated.line() == {}
    notifier.until_status(f"gated is at change {last:,}")
    assert notifier.end(signal.SIGTERM) == 0
    publish(daemon, "e")
    notifier.start()
    assert name_of(plain.line()) == name_of(gated.line()) == "e"
    notifier.gate.write("0")
    assert gated.line() == {}
    # what is other than declared, after two seconds
    publish(daemon, "web.service")
    assert plain.line()["kind"] == "failed"
    drift = plain.line()
    assert (drift["kind"], drift["what"], drift["severity"]) == ("drift", "drift", "error")
    said = "web.service is other than declared: active_state is failed, declared active"
    assert drift["text"].startswith(said)


def test_what_history_does_not_have(notifier: Notifier) -> None:
    """Go on after changes that history has no more, or never had, and say so in one line."""
    daemon = notifier._daemon
    last = publish(daemon, "a")
    (notifier.folder / "done" / "gated").write_text(f"{last}\n")
    (notifier.folder / "done" / "plain").write_text("999999\n")
    notifier.start()
    assert name_of(notifier.plain.line()) == "a"
    notifier.until_status(f"gated is at change {last:,}; plain is at change {last:,}")
    assert notifier.log() == "plain: history began anew, and so do its alerts\n"
    # a second one would give each alert twice
    words = ["notify", "--config", str(notifier.config), "--state-dir", f"{notifier.folder}/done"]
    done = invoke(environment(daemon.bus, notifier.folder, {}), *words)
    assert (done.returncode, "another `op-dbus notify` uses" in done.stderr) == (2, True)


def test_alerts_say_why_a_unit_failed(notifier: Notifier) -> None:
    """Give what the journal says of a unit that failed; warn of a kind that nothing has."""
    daemon, place = notifier._daemon, f"{notifier.config}:{RULES.count(chr(10)) + 4}"
    rule = '[[rule]]\nname = "typo"\non = "change"\nwhere = "kind=grup"\n'
    notifier.config.write_text(f"{RULES}{rule}")
    publish(daemon, "op-dbus-journal", of="journal.reader/journal/reader", pid=1)
    notifier.start()
    notifier.until_status("READY=1")
    now = datetime.now(UTC).isoformat()
    failed = [{"at": now, "why": "no disk", "lines": ["starts", "no disk"]}]
    publish(daemon, "a", of="journal/journal/failure", failed=failed)
    publish(daemon, "a")
    alert = notifier.plain.line()
    assert (alert["why"], alert["lines"]) == ("no disk", ["starts", "no disk"])
    assert alert["text"].endswith(", why: no disk")
    assert f"{place}: rule 'typo' chooses nothing: there is no kind 'grup'" in notifier.log()


def test_a_failed_unit_that_works_again_is_an_alert(notifier: Notifier) -> None:
    """After the alert of a failure, tell that the unit works, also if it took its time to start."""
    daemon = notifier._daemon
    rule = '[[rule]]\nname = "works"\non = "recovered"\nrun = ["plain"]\n'
    failed = '[[rule]]\nname = "failed"\non = "failed"\nrun = ["plain"]\n'
    notifier.config.write_text(f"{failed}{rule}")
    publish(daemon, "old", active_state="inactive")
    notifier.start()
    notifier.until_status("READY=1")
    publish(daemon, "a", "b")
    got = [notifier.plain.line() for _ in "ab"]
    publish(daemon, "a", active_state="active")
    publish(daemon, "old", active_state="activating")
    publish(daemon, "b", active_state="activating")
    publish(daemon, "old", active_state="active")
    publish(daemon, "b", active_state="active")
    got += [notifier.plain.line() for _ in "ab"]
    told = [(name_of(one), one["kind"], one["severity"], one["rules"]) for one in got]
    assert told == [
        ("a", "failed", "error", ["failed"]),
        ("b", "failed", "error", ["failed"]),
        ("a", "recovered", "info", ["works"]),
        ("b", "recovered", "info", ["works"]),
    ]
    assert got[2]["text"].startswith("a works again: failed -> active")
    assert got[3]["text"].startswith("b works again: activating -> active")


@pytest.mark.parametrize("at", [1 << 52, 1])
async def test_alerts_of_drift_wait_for_who_did_it(tmp_path: Path, at: int) -> None:
    """Take who did it from the change that made an object drift, once the journal says it."""
    change = {**STOPPED, "seq": 3, "cause": "job:9 stop"}
    # of a clock that was set back or forward since: it waits no longer, and no shorter, for that
    drift = {**DRIFT, "seq": 4, "cause": "job:9 stop", "object": "/x", "at": at}
    drift["fields"] = STOPPED["fields"]
    other = {**change, "seq": 2, "by": "eve with su"}
    # a newer change of the same cause, but of a field that does not drift
    newer = {**change, "fields": [["user", '"a"', '"b"']], "by": "alice with sudo vi"}

    class Drifted(History):
        """The changes of an object that drifts, one of which is explained when it is read again."""

        async def is_journal_read(self) -> bool:
            """Return that the journal is read."""
            return True

        async def changes(self, wanted: dict[str, Any], _limit: int) -> list[dict[str, Any]]:
            """Return them, the newest first."""
            assert wanted == {"object": "/x", "below": 5}
            found = [drift, {**FAILED, "seq": 4}, newer, {**change}, other]
            change["by"] = "bob with sudo halt"
            delivery.news.set()
            return found

    got = tmp_path / "cat.out"
    executable = tmp_path / "cat"
    executable.write_text(PLAIN.format(folder=tmp_path).replace("plain", "cat"))
    executable.chmod(0o755)
    (tmp_path / "cat.toml").write_text('[[rule]]\nname = "d"\non = "drift"\n')
    rules = read_rules(tmp_path / "cat.toml", ["cat"])
    setting = Setting(cast("Client", Drifted(1, 0)), rules, "h", 0, lambda: None)
    delivery = Delivery(setting, executable, Cursor(tmp_path, "cursor"))
    delivery._heard_at = time.monotonic()
    await delivery._take(drift)
    assert json.loads(got.read_text())["by"] == "bob with sudo halt"


def test_alerts_go_on_where_nothing_can_be_noted(notifier: Notifier) -> None:
    """Deliver from memory while the cursor cannot be written, and say so until it can."""
    daemon = notifier._daemon
    publish(daemon, "old")
    script = notifier.folder / "notify.d" / "gated"
    script.write_text("#!/bin/sh\r\nexit 0\r\n")
    notifier.start()
    notifier.until_status("READY=1")
    # as on a full disk, the file cannot be written
    hindrance = notifier.folder / "done" / "plain"
    hindrance.unlink(missing_ok=True)
    hindrance.mkdir()
    last = publish(daemon, "a", "b")
    assert [name_of(notifier.plain.line()) for _ in "ab"] == ["a", "b"]
    said = notifier.until_status(f"plain is at change {last:,}, and cannot note that: Is a direc")
    assert "gated is at change" in said
    assert "its first line names an interpreter that is not there" in notifier.log()
    assert len(re.findall("plain: cannot note change", notifier.log())) == 1
    hindrance.rmdir()
    last = publish(daemon, "c")
    notifier.until_status(f"plain is at change {last:,}$")
    assert (notifier.folder / "done" / "plain").read_text() == f"{last}\n"


class History:
    """A history of failed units, some of which may be hidden or pruned."""

    def __init__(self, first: int, hidden: int) -> None:
        self.first = first
        self.hidden = hidden

    async def is_served(self) -> bool:
        """Return that a daemon answers."""
        return True

    async def kept_rows(self) -> tuple[range, int]:
        """Return the numbers of rows up to 6."""
        return range(self.first, 7), self.hidden

    async def is_journal_read(self) -> bool:
        """Return that nobody reads the journal."""
        return False

    async def changes(self, wanted: dict[str, int], _limit: int) -> list[dict[str, Any]]:
        """Return the rows between two numbers."""
        rest = range(max(self.first, wanted["after"] + 1), wanted["below"])
        return [{**FAILED, "name": str(number), "seq": number} for number in rest]


@pytest.mark.parametrize(
    ("hidden", "names", "said"),
    [
        (4, ["2", "3", "4", "5", "6"], "cat waits: 4 changes are looked through for secrets"),
        (0, ["5", "6"], "cat: changes 2 to 4 are not in history any more: it gets no alerts"),
    ],
)
async def test_older_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hidden: int, names: list[str], said: str
) -> None:
    """Wait for changes that are hidden after an update; of pruned ones, say which are lost."""
    history, cursor, changed = History(5, hidden), Cursor(tmp_path, "cat"), asyncio.Event()
    (tmp_path / "cat.toml").write_text(RULES.replace('run = ["plain"]', "").replace("gated", "cat"))
    rules = read_rules(tmp_path / "cat.toml", ["cat"])
    executable = tmp_path / "bin" / "cat"
    executable.parent.mkdir()
    executable.write_text(f"#!/bin/sh\ncat >>{tmp_path}/got\n")
    executable.chmod(0o755)
    cursor.write(1)
    setting = Setting(cast("Client", history), rules, "h", 0, changed.set)
    delivery = Delivery(setting, executable, cursor)
    task = asyncio.create_task(delivery.run())
    err = ""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while cursor.read() != 6:
            err += capsys.readouterr().err
            if err:
                # they have been looked through meanwhile
                history.first, history.hidden = 1 if hidden else 5, 0
                delivery.news.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await changed.wait()
            changed.clear()
    await cancel([task])
    assert (err + capsys.readouterr().err).startswith(said)
    got = map(json.loads, (tmp_path / "got").read_text().splitlines())
    assert [name_of(one) for one in got] == names


def test_a_first_start_may_begin_earlier(notifier: Notifier) -> None:
    """Begin where --since says, for an executable that has no cursor yet, and end it in time."""
    daemon = notifier._daemon
    publish(daemon, "a", "b")
    # far more than the other executable takes
    notifier.config.write_text(f"timeout = 5\n{RULES}")
    stuck = notifier.folder / "notify.d" / "gated"
    stuck.write_text(f"#!/bin/sh\nsleep 1000 & echo $! >{notifier.folder}/gated.out; wait\n")
    environ = environment(daemon.bus, notifier.folder, {})
    words = ["--config", str(notifier.config), "--state-dir", str(notifier.folder / "done")]
    with subprocess.Popen(
        [sys.executable, "-m", "opdbus", "notify", *words, "--since", "today"],
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        assert [name_of(notifier.plain.line()) for _ in "ab"] == ["a", "b"]
        said = process.stderr.readline()
        pid = str(notifier.gated.line())
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    assert re.fullmatch(r"gated: did not take change \d+: it took longer than 5 s; .*\n", said)
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (
            lambda n: n.config.unlink(),
            "cannot read the rules of alerts .*notify.toml: No such file",
        ),
        (lambda n: n.config.write_text("x = 1"), ".*notify.toml:1: there is no setting 'x'"),
        (
            lambda n: [(n.folder / "notify.d" / name).chmod(0o644) for name in ("plain", "gated")],
            "there is no executable in .*notify.d: put one there",
        ),
    ],
)
def test_nothing_runs_half_configured(
    tmp_path: Path, break_it: Callable[[Notifier], Any], said: str
) -> None:
    """End with exit code 2 and a sentence, before anything is asked or run."""
    broken = Notifier(tmp_path, Running(tmp_path, "unix:path=/nowhere"))
    break_it(broken)
    words = ["notify", "--config", str(broken.config), "--state-dir", str(tmp_path / "done")]
    done = invoke({"OP_DBUS_BUS": "unix:path=/nowhere", "PATH": os.environ["PATH"]}, *words)
    broken.close()
    assert done.returncode == 2
    assert re.match(f"op-dbus: {said}", done.stderr)
