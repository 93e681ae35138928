"""What op-dbus costs a whole host: first start, rest, each change, and a busy day in ten minutes.

Run it as root, by the program's own Python, on a host that has op-dbus installed and that may be
changed: `python day.py [--idle 300] [--seconds 600] [--json FILE]`. `make bench-host` boots such a
host from this machine's files, and runs it there. The service observes with the settings that it is
installed with, and its followers of the journal and of alerts run beside it. It ends with 1 where a
bar does not hold: memory grows by less than 3% after minute 2 of the day; less than 10 log lines an
hour of the day, and no warnings among them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import cpu_seconds, milliseconds, parse, say, timed, write

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import OpDbusError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

UNIT: Final = "op-dbus.service"
FOLLOWERS: Final = ("op-dbus-journal.service", "op-dbus-notify.service")
STATE_FILE: Final = Path("/etc/op-dbus/state.json")
ALERT: Final = Path("/usr/local/share/doc/op-dbus/notify.d/journal")
DATABASE: Final = Path("/var/lib/op-dbus/memory.db")
UNITS: Final = Path("/run/systemd/system")
HOURS: Final = 24
MOST_GROWTH, MOST_LINES_AN_HOUR = 0.03, 10.0
# In a day checkpoints are written every ten minutes by the clock, which the day here is too short
# for: the bar counts those of a real day.
_CHECKPOINT, _CHECKPOINTS_AN_HOUR = "history_checkpoint", 6
_WARNING = 4
_SETTLE_SECONDS = 30.0
_SAMPLE_SECONDS = 2.0
_GIVE_UP_SECONDS = 20.0
# What follows from a change has followed by then.
_FOLLOWED_SECONDS = 1.0
_QUESTIONS: Final = (
    "which services have failed?",
    "file systems that are nearly full",
    "who may become root?",
    "what listens on the network?",
    "address of this machine",
    "what changed on the web server?",
)


def run(*command: str) -> str:
    """Run a command that has to succeed, and return what it printed."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout.strip()


def pid_of(unit: str) -> int:
    """Return the main process of a unit, 0 if it does not run."""
    return int(run("systemctl", "show", unit, "--property=MainPID", "--value"))


def memory(unit: str) -> dict[str, float]:
    """Return the memory of a unit's process in MiB: resident, and its share of what is shared."""
    lines = Path(f"/proc/{pid_of(unit)}/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {name: round(kib[name] / 1024, 1) for name in ("Rss", "Pss")}


async def is_ready(client: Client) -> bool:
    """Return whether every observer has listed, and every object has its vector."""
    with suppress(OpDbusError):
        values, status = await client.state(), await client.status()
        is_listed = not any(row[1] == "starting" for row in values["Observers"])
        return is_listed and status["State"] in {"ready", "degraded"} and not status["Pending"]
    return False


async def start(client: Client) -> dict[str, float]:
    """Start the service, and return the seconds until it serves, and has every vector."""
    began = time.monotonic()
    run("systemctl", "start", UNIT)
    serves = time.monotonic() - began
    while not await is_ready(client):  # noqa: ASYNC110 -- not everything that changes says so
        await asyncio.sleep(0.1)
    return {"serves": round(serves, 2), "every vector": round(time.monotonic() - began, 2)}


async def cost(client: Client, idle: float) -> dict[str, Any]:
    """Return what starts, searches and rest cost."""
    run("systemctl", "stop", UNIT)
    for path in DATABASE.parent.glob("*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    found: dict[str, Any] = {"first start s": await start(client)}
    found["highest MiB of it"] = _highest_mib(pid_of(UNIT))
    run("systemctl", "stop", UNIT)
    found["restart s"] = await start(client)
    # an executable of alerts, as an administrator switches it on
    run("install", "-g", "op-dbus-config", "-m", "750", str(ALERT), "/etc/op-dbus/notify.d/")
    run("systemctl", "start", *FOLLOWERS)
    values = await client.state()
    found["objects"] = values["Count"]
    found["observers"] = {row[0]: row[2] for row in values["Observers"] if row[2]}
    ask = lambda n: client.search(_QUESTIONS[n % len(_QUESTIONS)], 10, {})  # noqa: E731
    found["search ms"] = milliseconds(await timed(200, ask))
    await asyncio.sleep(_SETTLE_SECONDS)
    # also what PID 1 and the bus do for it is not counted
    used = {unit: cpu_seconds(pid_of(unit)) for unit in (UNIT, *FOLLOWERS)}
    await asyncio.sleep(idle)
    found["at rest, percent of a core"] = {
        unit: round(100 * (cpu_seconds(pid_of(unit)) - before) / idle, 3)
        for unit, before in used.items()
    }
    found["MiB"] = {unit: memory(unit) for unit in used}
    found["state MiB"] = _folder_mib(DATABASE.parent)
    found["exposure"] = run("systemd-analyze", "security", UNIT).splitlines()[-1].split()[-3]
    return found


def _folder_mib(folder: Path) -> float:
    return round(
        sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) / 2**20, 1
    )


def _highest_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024, 1)


# changes


class Event(NamedTuple):
    """A command, the object that it changes, and what that then shows; None if it is gone."""

    name: str
    command: str
    object_id: tuple[str, str, str]
    wanted: dict[str, Any] | None


_LISTEN: Final = (
    "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 4711)); s.listen();"
    " time.sleep(1e6)"
)
_FILES: Final = {
    "probe-run.service": "[Service]\nExecStart=/bin/sleep infinity\n",
    "probe-fail.service": "[Service]\nExecStart=/bin/false\n",
    "probe-enable.service": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=default.target\n",
    "probe-port.service": f'[Service]\nExecStart={sys.executable} -c "{_LISTEN}"\n',
}


def _unit(name: str) -> tuple[str, str, str]:
    return "systemd", "unit", f"probe-{name}"


def events(package: Path) -> list[Event]:
    """Return the changes, in an order in which each is one."""
    timer = UNITS / "probe-enable.timer"
    port, address = ("net", "listener", "tcp 127.0.0.1:4711"), "192.0.2.77/32"
    lo, deb = ("net", "address", f"{address} on lo"), ("packages", "package", "op-dbus-probe")
    job, sysctl = ("cron", "job", "/etc/cron.d/probe save"), ("kernel", "sysctl", "vm.swappiness")
    setting, table = "/etc/sysctl.d/90-probe.conf", "/etc/cron.d/probe"
    run_, enable = _unit("run.service"), _unit("enable.service")
    active, idle = {"active_state": "active"}, {"active_state": "inactive"}
    failing = "systemctl start probe-fail; systemctl is-failed --wait probe-fail"
    timing = f"printf '[Timer]\\nOnCalendar=daily\\n' >{timer}; systemctl daemon-reload;"
    return [
        Event("start", "systemctl start probe-run", run_, active),
        Event("stop", "systemctl stop probe-run", run_, idle),
        Event("fail", failing, _unit("fail.service"), {"active_state": "failed"}),
        Event("enable", "systemctl enable probe-enable", enable, {"enabled": True}),
        Event("disable", "systemctl disable probe-enable", enable, {"enabled": False}),
        Event(
            "a new timer", f"{timing} systemctl start {timer.name}", _unit("enable.timer"), active
        ),
        Event("a port opened", "systemctl start probe-port", port, {"unit": "probe-port.service"}),
        Event("a port closed", "systemctl stop probe-port", port, None),
        Event("an address added", f"ip address add {address} dev lo", lo, {"interface": "lo"}),
        Event("an address removed", f"ip address del {address} dev lo", lo, None),
        Event("a user added", "useradd -M probe", ("users", "account", "probe"), {}),
        Event("a package installed", f"dpkg --install {package}", deb, {"version": "1.0"}),
        Event("a package removed", "dpkg --purge op-dbus-probe", deb, None),
        Event("a cron job added", f"echo '10 3 * * * root /opt/save' >{table}", job, {}),
        Event("a cron job removed", f"rm {table}", job, None),
        Event("a sysctl set", f"echo 'vm.swappiness = 7' >{setting}", sysctl, {"differs": True}),
        Event("a sysctl unset", f"rm {setting}", sysctl, None),
    ]


async def _shown(client: Client, event: Event) -> bool:
    """Return whether an object shows what it should."""
    try:
        found = await client.show(paths.of(*event.object_id))
    except OpDbusError:
        return event.wanted is None
    observed = json.loads(found["Observed"])
    return event.wanted is not None and observed.items() >= event.wanted.items()


async def measure_events(client: Client) -> dict[str, float | None]:
    """Return the seconds from the end of each command until its object shows it; None: never."""
    for name, text in _FILES.items():
        (UNITS / name).write_text(text)
    run("systemctl", "daemon-reload")
    run("ip", "link", "set", "lo", "up")
    found: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for event in events(_build(Path(folder), "op-dbus-probe", "1.0")):
            await asyncio.sleep(_FOLLOWED_SECONDS)
            await asyncio.to_thread(_shell, event.command)
            ended = time.monotonic()
            while not (is_shown := await _shown(client, event)):
                if time.monotonic() - ended > _GIVE_UP_SECONDS:
                    break
                await asyncio.sleep(0.005)
            found[event.name] = round(time.monotonic() - ended, 3) if is_shown else None
            say(f"{event.name}: {found[event.name]}")
    return found


def _shell(command: str) -> str:
    """Run a command of the shell, and return what went wrong."""
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)
    return f"{command}: {done.stderr}"[:200] if done.returncode else ""


def _build(folder: Path, name: str, version: str) -> Path:
    """Build a package without files."""
    control = folder / name / "DEBIAN" / "control"
    control.parent.mkdir(parents=True)
    control.write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <a@b.c>\n"
        "Description: a package that comes and goes\n"
    )
    run("dpkg-deb", "--build", str(folder / name), str(folder / f"{name}.deb"))
    return folder / f"{name}.deb"


# a busy day

_DAEMONS: Final = ("stockroom", "helpdesk", "quickstore", "logcatcher", "thermowatch")
_PEOPLE: Final = ("alice", "bob", "carol")
_PACKAGES: Final = ("dnscrab", "inkwell", "libraster2")
_DEBS: Final = Path("/run/debs")
_DROP_IN: Final = UNITS / "quickstore.service.d/limits.conf"
_SCRATCH: Final = Path("/run/scratch")
# Runs of timers in a day: a mail queue, a web application's jobs, statistics, large logs.
TIMERS: Final = {"probe-mail": 720, "probe-jobs": 288, "probe-statistics": 144, "probe-hourly": 24}


def _turn(up: str, down: str) -> Callable[[int], str]:
    """Give one command in even turns and the other in odd ones, so that nothing piles up."""
    return lambda number: down if number % 2 else up


# What happens, how often a day and why so often, and what is run the nth time.
ACTS: Final[dict[str, tuple[int, Callable[[int], str]]]] = {
    # five services, deployed, reloaded or killed for memory 19 times each
    "unit restarted": (96, lambda n: f"systemctl restart {_DAEMONS[n % 5]}"),
    # a job that fails every half hour until somebody looks
    "unit failed": (48, lambda _: "systemctl start ledger-dump || true"),
    # six deployments that change and restore a drop-in
    "unit file changed": (
        12,
        lambda n: (
            f"mkdir -p {_DROP_IN.parent}; printf '[Service]\\nMemoryMax={64 + n % 2}M\\n'"
            f" >{_DROP_IN}; systemctl daemon-reload"
        ),
    ),
    # ten logins an hour, people's and programs' over ssh
    "session": (
        240,
        lambda n: (
            f"systemd-run --quiet --collect --property=PAMName=login --uid={_PEOPLE[n % 3]} sleep 4"
        ),
    ),
    # 24 containers or build jobs an hour
    "scope": (576, lambda n: f"systemd-run --quiet --scope --unit=build-{n} sleep 0.3"),
    # two runs of unattended upgrades and some hands, in each a few of these
    "package changed": (
        24,
        lambda n: _turn(f"dpkg -i {_DEBS}/{_PACKAGES[n % 3]}.deb", f"dpkg -P {_PACKAGES[n % 3]}")(
            n // 3
        ),
    ),
    # configuration management every half hour, which finds one file to mend
    "file of /etc changed": (
        48,
        _turn("date >>/etc/motd", "date '+%M 3 * * * root /opt/report' >/etc/cron.d/report"),
    ),
    # accounts of short-lived jobs or trainees; somebody becomes administrator for an hour
    "user added or deleted": (12, _turn("useradd erin", "userdel erin")),
    "group changed": (12, _turn("gpasswd --add bob adm", "gpasswd --delete bob adm")),
    # containers' cards and leases: one comes or goes every five minutes
    "address changed": (
        288,
        _turn(
            "ip link add veth7 type veth peer name veth7-peer; ip link set veth7 up;"
            " ip address add 203.0.113.7/32 dev veth7",
            "ip link del veth7",
        ),
    ),
    # a backup mounts its target every hour; scratch space that jobs fill and clear
    "mount changed": (
        48,
        _turn("mkdir -p /mnt/t; mount -t tmpfs -o size=4M tmpfs /mnt/t", "umount /mnt/t"),
    ),
    "disk filled": (48, _turn(f"head -c 12M /dev/zero >{_SCRATCH}/more", f"rm {_SCRATCH}/more")),
}


async def _publish(client: Client, number: int) -> None:
    """Report 20 jobs as a probe does every five minutes, of which some changed."""
    states = ("done", "running", "late")
    objects = [
        ("backup", "job", f"job-{n}", {"state": states[(number + n) // 7 % 3], "target": "vault"})
        for n in range(20)
    ]
    await client.publish("backup-probe", objects)


async def _declare(_client: Client, number: int) -> None:
    """Edit the state file: services that should run, one described anew each time."""
    unit = {"active_state": "active", "description": f"declared, edit {number}"}
    units = {f"{name}.service": unit for name in _DAEMONS}
    part = STATE_FILE.with_suffix(".new")
    part.write_text(json.dumps({"version": 1, "plugins": {"systemd": {"units": units}}}))
    part.chmod(0o644)
    part.rename(STATE_FILE)


# What clients do, and how often a day.
CALLS: Final[dict[str, tuple[int, Callable[[Client, int], Awaitable[object]]]]] = {
    "status": (1440, lambda c, _: c.status()),
    "search": (1440, lambda c, n: c.search(_QUESTIONS[n % 6], 10, {})),
    "ask": (288, lambda c, n: c.ask(_QUESTIONS[n % 6], 10)),
    "list": (288, lambda c, _: c.pages({"where": "active_state=failed"}, 0, None)),
    "changes": (144, lambda c, _: c.changes({}, 50)),
    "drift": (144, lambda c, _: c.drift({})),
    "metrics": (1440, lambda c, _: c.metrics()),
    "state file edited": (12, _declare),
    "publication": (288, _publish),
    "withdrawal": (48, lambda c, n: c.withdraw([paths.of("backup", "job", f"job-{n % 20}")])),
}


class Day:
    """A busy day: what was done and failed, and how long searches took, by minute."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        self.done: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.searches: dict[int, list[float]] = {}
        self.samples: dict[int, list[dict[str, float]]] = {}

    @property
    def minute(self) -> int:
        """The minute of the run."""
        return int(time.monotonic() - self._began) // 60

    async def repeat(self, name: str, a_day: int, work: Callable[[int], Awaitable[str]]) -> None:
        """Do something as often as it happens in a day, evenly, and never twice at once."""
        pause = self._seconds / a_day
        for number in range(a_day):
            wanted = self._began + (number + 0.5) * pause
            await asyncio.sleep(max(0.0, wanted - time.monotonic()))
            began = time.monotonic()
            if began >= self._began + self._seconds:
                return
            fault = await work(number)
            self.done[name] += 1
            self.faults[f"{name}: {fault}"] += bool(fault)
            if name == "search":
                self.searches.setdefault(self.minute, []).append(time.monotonic() - began)

    async def live(self) -> None:
        """Let everything go on side by side."""
        sampling = asyncio.create_task(self._sample())

        async def act(command: Callable[[int], str], number: int) -> str:
            return await asyncio.to_thread(_shell, command(number))

        async def call(ask: Callable[[Client, int], Awaitable[object]], number: int) -> str:
            async with Client("system") as client:
                try:
                    await ask(client, number)
                except OpDbusError as error:
                    return f"{type(error).__name__}: {error}"
            return ""

        async with asyncio.TaskGroup() as group:
            for works, do in ((ACTS, act), (CALLS, call)):
                for name, (a_day, given) in works.items():
                    work = lambda n, do=do, given=given: do(given, n)  # noqa: E731
                    group.create_task(self.repeat(name, a_day, work))
        sampling.cancel()

    async def _sample(self) -> None:
        while True:
            row = {**memory(UNIT), "state": _folder_mib(DATABASE.parent)}
            self.samples.setdefault(self.minute, []).append(row)
            await asyncio.sleep(_SAMPLE_SECONDS)

    def minutes(self) -> list[dict[str, float]]:
        """Return a row for each whole minute: median memory, database, and searches."""
        rows = []
        for number in range(int(self._seconds) // 60):
            some = self.samples[number]
            row = {name: statistics.median(each[name] for each in some) for name in some[0]}
            rows.append({**row, "search p99 ms": milliseconds(self.searches[number], 99)["p99"]})
        return rows


def _prepare(seconds: float) -> None:
    """Make the people, units, packages and timers of the day."""
    _DEBS.mkdir(exist_ok=True)
    for name in _PACKAGES:
        _build(_DEBS, name, "1.0")
    for name in _PEOPLE:
        run("useradd", "--create-home", name)
    service = "[Unit]\nDescription=Regular work of {0}\n[Service]\n{1}\n"
    for name in _DAEMONS:
        text = service.format(name, "ExecStart=/bin/sleep infinity")
        (UNITS / f"{name}.service").write_text(text)
    text = service.format("ledger-dump", "Type=oneshot\nExecStart=/bin/false")
    (UNITS / "ledger-dump.service").write_text(text)
    for name, a_day in TIMERS.items():
        text = service.format(name, "Type=oneshot\nExecStart=/bin/true")
        (UNITS / f"{name}.service").write_text(text)
        (UNITS / f"{name}.timer").write_text(
            f"[Timer]\nOnActiveSec=0\nOnUnitActiveSec={int(seconds / a_day * 1000)}ms\n"
            "AccuracySec=10ms\n"
        )
    _SCRATCH.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", "size=20M", "tmpfs", str(_SCRATCH))
    run("systemctl", "daemon-reload")
    run("systemctl", "start", *_DAEMONS, *(f"{name}.timer" for name in TIMERS))


def _log_lines(since: float) -> dict[str, Any]:
    """Count the service's log lines by event."""
    run("journalctl", "--sync")
    command = ("journalctl", f"--unit={UNIT}", f"--since=@{since}", "--output=json", "--quiet")
    entries = [json.loads(line) for line in run(*command).splitlines()]
    counts = Counter(each.get("OPDBUS_EVENT", "none of ours") for each in entries)
    others = sum(count for name, count in counts.items() if name != _CHECKPOINT)
    return {
        "by event": dict(counts.most_common()),
        "an hour of the day": round(others / HOURS + _CHECKPOINTS_AN_HOUR, 1),
        "warnings": [each["MESSAGE"] for each in entries if int(each["PRIORITY"]) <= _WARNING],
    }


async def busy_day(seconds: float) -> dict[str, Any]:
    """Let a busy day pass, and judge it."""
    _prepare(seconds)
    await asyncio.sleep(_SETTLE_SECONDS)
    since, day = time.time(), Day(seconds)
    await day.live()
    minutes, log = day.minutes(), _log_lines(since)
    base = minutes[min(1, len(minutes) - 1)]
    growth = max(
        each[name] / base[name] - 1 for each in minutes[2:] or [base] for name in ("Rss", "Pss")
    )
    bars = {
        "memory growth": [round(growth, 4), growth < MOST_GROWTH],
        "log lines an hour": [
            log["an hour of the day"],
            log["an hour of the day"] < MOST_LINES_AN_HOUR and not log["warnings"],
        ],
    }
    faults = {name: count for name, count in day.faults.items() if count}
    found = {"seconds": seconds, "bars": bars, "minutes": minutes, "log": log}
    return {**found, "done": dict(day.done), "faults": faults}


async def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure one part after the other."""
    async with Client("system") as client:
        found = {"cost": await cost(client, given.idle), "seconds": await measure_events(client)}
    return {**found, "busy day": await busy_day(given.seconds)} if given.seconds else found


def main() -> None:
    """Measure, write the report, and exit with 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=float, default=300.0, help="seconds of rest")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the busy day")
    given = parse(parser)
    found = asyncio.run(measure(given))
    write(given, found)
    bars = found.get("busy day", {}).get("bars", {})
    sys.exit(not all(holds for _, holds in bars.values()))


if __name__ == "__main__":
    main()
