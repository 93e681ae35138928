"""A busy day of a host in minutes: `busy_acts.py host|clients SECONDS`; runs inside the host.

Everything goes on side by side, each row of `ACTS` and `CALLS` as often as it does in a day, evenly
spread. Writes JSON to standard output: how often each was done, how often it failed, and of a
search the p99 of each five seconds. What `populate.py` made is there already.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from acts import build
from populate import UNITS

from opdbus.bench.figures import percentiles
from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import OpDbusError

SOURCE, JOBS = "backup-probe", 20
_STATE = Path("/etc/op-dbus/state.json")
_DROP_INS = UNITS / "quickstore.service.d"
_WINDOW_SECONDS = 5.0
_QUESTIONS = (
    "which services have failed?",
    "file systems that are nearly full",
    "who may become root?",
    "what listens on the network?",
    "address of this machine",
    "what changed on the web server?",
)
_DAEMONS = ("stockroom", "helpdesk", "quickstore", "logcatcher", "thermowatch")
_PACKAGES = ("dnscrab_1.0", "inkwell_3.1", "libraster2_2.0.1")
# Timers of the day: how often each runs, and why so often.
TIMERS = {
    "probe-mail": (720, "a queue that is looked at every two minutes"),
    "probe-jobs": (288, "jobs of a web application, every five minutes"),
    "probe-statistics": (144, "sysstat, every ten minutes"),
    "probe-hourly": (24, "rotation of large logs"),
}


class Act(NamedTuple):
    """Something that happens: how often a day, why so often, and what is run the nth time."""

    name: str
    a_day: int
    reason: str
    command: Callable[[int], str]


class Call(NamedTuple):
    """A question of clients: how often a day, why so often, and what is asked the nth time."""

    name: str
    a_day: int
    reason: str
    ask: Callable[[Client, int], Awaitable[object]]


def _turn(number: int, up: str, down: str) -> str:
    """Give one command in even turns and the other in odd ones, so that nothing piles up."""
    return down if number % 2 else up


ACTS = (
    Act(
        "unit restarted",
        96,
        "five services, deployed, reloaded or killed for memory 19 times each",
        lambda n: f"systemctl restart {_DAEMONS[n % 5]}",
    ),
    Act(
        "unit failed",
        48,
        "a job that fails every half hour until somebody looks",
        lambda _: "systemctl start ledger-dump.service || true",
    ),
    Act(
        "unit file changed",
        12,
        "six deployments that change and restore a drop-in",
        lambda n: (
            f"mkdir -p {_DROP_INS}; printf '[Service]\\nMemoryMax={64 + n % 2}M\\n'"
            f" >{_DROP_INS}/limits.conf; systemctl daemon-reload"
        ),
    ),
    Act(
        "session",
        240,
        "ten logins an hour, people's and programs' over ssh",
        lambda n: (
            "systemd-run --quiet --collect --property=PAMName=login"
            f" --uid={('alice', 'bob', 'carol')[n % 3]} sleep 4"
        ),
    ),
    Act(
        "scope",
        576,
        "24 containers or build jobs an hour",
        lambda n: f"systemd-run --quiet --scope --unit=build-{n} sleep 0.3",
    ),
    Act(
        "package changed",
        24,
        "two runs of unattended upgrades and some hands, in each a few of these",
        lambda n: _turn(
            n // 3,
            f"dpkg --install /run/debs/{_PACKAGES[n % 3]}.deb",
            f"dpkg --purge {_PACKAGES[n % 3].split('_')[0]}",
        ),
    ),
    Act(
        "file of /etc changed",
        48,
        "configuration management every half hour, which finds one file to mend",
        lambda n: _turn(
            n,
            f"sed -i 's/^interval.*/interval = {n}/' /etc/acme-agent.conf",
            f"echo '{n % 60} 3 * * * root /usr/local/bin/report' >/etc/cron.d/sales-report",
        ),
    ),
    Act(
        "user added or deleted",
        12,
        "six accounts of short-lived jobs or trainees",
        lambda n: _turn(n, "useradd --shell=/bin/bash erin", "userdel erin"),
    ),
    Act(
        "group changed",
        12,
        "somebody becomes administrator for an hour, six times",
        lambda n: _turn(n, "gpasswd --add bob sudo", "gpasswd --delete bob sudo"),
    ),
    Act(
        "address changed",
        288,
        "containers' cards and leases: one comes or goes every five minutes",
        lambda n: _turn(
            n,
            "ip link add veth7 type veth peer name veth7-peer; ip link set veth7 up;"
            f" ip address add 203.0.113.{n % 250 + 1}/32 dev veth7",
            "ip link del veth7",
        ),
    ),
    Act(
        "mount changed",
        48,
        "a backup mounts its target every hour",
        lambda n: _turn(
            n,
            "mkdir -p /srv/target; mount -t tmpfs -o size=4M tmpfs /srv/target",
            "umount /srv/target",
        ),
    ),
    Act(
        "disk filled",
        48,
        "scratch space of jobs that fill it and clear it every hour",
        lambda n: _turn(n, "head -c 12M /dev/zero >/srv/scratch/more", "rm /srv/scratch/more"),
    ),
    Act("state file edited", 12, "declared state is changed twelve times", lambda n: f"@state {n}"),
    Act(
        "publication",
        288,
        "a probe reports 20 jobs every five minutes, of which some changed",
        lambda n: f"@publish {n}",
    ),
    Act("withdrawal", 48, "a job ends every half hour", lambda n: f"@withdraw {n}"),
)
CALLS = (
    Call("status", 1440, "monitoring, once a minute", lambda c, _: c.status()),
    Call(
        "search",
        1440,
        "one a minute, of people, scripts and an assistant",
        lambda c, n: c.search(_QUESTIONS[n % len(_QUESTIONS)], 10, {}),
    ),
    Call("ask", 288, "one in five minutes", lambda c, n: c.ask(_QUESTIONS[n % 6], 10)),
    Call(
        "list",
        288,
        "scripts that list failed units every five minutes",
        lambda c, _: c.pages({"where": "active_state=failed"}, 0, None),
    ),
    Call("changes", 144, "a look back every ten minutes", lambda c, _: c.changes({}, 50)),
    Call("drift", 144, "a check every ten minutes", lambda c, _: c.drift({})),
    Call("metrics", 1440, "Prometheus, once a minute", lambda c, _: c.metrics()),
)


class Day:
    """What was done by now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.times: dict[str, list[tuple[float, float]]] = {}

    async def repeat(self, name: str, a_day: int, work: Callable[[int], Awaitable[str]]) -> None:
        """Do something as often as it happens in a day, evenly, and never twice at once."""
        pause, begin = self.seconds / a_day, self.end - self.seconds
        for number in range(a_day):
            await asyncio.sleep(max(0.0, begin + (number + 0.5) * pause - time.monotonic()))
            began = time.monotonic()
            if began >= self.end:
                return
            fault = await work(number)
            self.done[name] += 1
            self.failed[name] += bool(fault)
            self.faults[fault[:200]] += bool(fault)
            self.times.setdefault(name, []).append((began - begin, time.monotonic() - began))

    def report(self) -> dict[str, Any]:
        """Sum up."""
        windows: dict[int, list[float]] = {}
        for at, took in self.times.get("search", []):
            windows.setdefault(int(at / _WINDOW_SECONDS), []).append(took)
        p99 = {
            number * _WINDOW_SECONDS: round(percentiles(each, 99)["p99"], 1)
            for number, each in windows.items()
        }
        return {
            "done": dict(self.done),
            "failed": {name: count for name, count in self.failed.items() if count},
            "faults": dict(self.faults.most_common(5)) if any(self.failed.values()) else {},
            "search p99 ms": p99,
        }


def declared(number: int) -> str:
    """Give the state file of an edit: services that should run, one described anew each time."""
    units = {
        f"{name}.service": {"active_state": "active", "description": f"declared, edit {number}"}
        for name in _DAEMONS
    }
    return json.dumps({"version": 1, "plugins": {"systemd": {"units": units}}})


async def _publish(client: Client, number: int) -> None:
    states = ("done", "running", "late")
    objects = [
        ("backup", "job", f"job-{n}", {"state": states[(number + n) // 7 % 3], "target": "vault"})
        for n in range(JOBS)
    ]
    await client.publish(SOURCE, objects)


async def _act(client: Client, command: str) -> str:
    """Run a command, or do what begins with @ without one; give what went wrong."""
    word, _, number = command.partition(" ")
    if word == "@state":
        part = _STATE.with_suffix(".new")
        part.write_text(declared(int(number)))
        part.chmod(0o644)
        part.rename(_STATE)
        return ""
    if word in {"@publish", "@withdraw"}:
        name = paths.of("backup", "job", f"job-{int(number) % JOBS}")
        publishing = word == "@publish"
        return await _asked(
            _publish(client, int(number)) if publishing else client.withdraw([name])
        )
    process = await asyncio.create_subprocess_shell(
        command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    return f"{command}: {errors.decode()}" if process.returncode else ""


async def _asked(work: Awaitable[object]) -> str:
    try:
        await work
    except OpDbusError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _set_up(seconds: float) -> None:
    """Build packages, and write timers that run as often in the time as others do in a day."""
    for package in _PACKAGES:
        build(*package.split("_"))
    for name, (a_day, _) in TIMERS.items():
        (UNITS / f"{name}.service").write_text(
            f"[Unit]\nDescription=Regular work of {name}\n[Service]\nType=oneshot\n"
            "ExecStart=/bin/true\n"
        )
        (UNITS / f"{name}.timer").write_text(
            f"[Timer]\nOnActiveSec=0\nOnUnitActiveSec={int(seconds / a_day * 1000)}ms\n"
            "AccuracySec=10ms\n"
        )


async def _host(seconds: float) -> Day:
    _set_up(seconds)
    start = "systemctl daemon-reload; systemctl start " + " ".join(f"{t}.timer" for t in TIMERS)
    async with Client("system") as client:
        fault = await _act(client, start)
        if fault:
            sys.exit(fault)
        day = Day(seconds)
        async with asyncio.TaskGroup() as group:
            for act in ACTS:
                work = lambda n, act=act: _act(client, act.command(n))  # noqa: E731
                group.create_task(day.repeat(act.name, act.a_day, work))
        stop = " ".join(f"{name}.timer" for name in TIMERS)
        await _act(client, f"systemctl stop {stop}")
    return day


async def _clients(seconds: float) -> Day:
    day = Day(seconds)

    async def call(each: Call, number: int) -> str:
        async with Client("system") as client:
            return await _asked(each.ask(client, number))

    async def follow() -> None:
        async with Client("system") as client:
            async for _ in client.new_rows():
                day.done["signals followed"] += 1

    follower = asyncio.create_task(follow())
    async with asyncio.TaskGroup() as group:
        for each in CALLS:
            group.create_task(day.repeat(each.name, each.a_day, lambda n, each=each: call(each, n)))
    follower.cancel()
    return day


if __name__ == "__main__":
    part = {"host": _host, "clients": _clients}[sys.argv[1]]
    json.dump(asyncio.run(part(float(sys.argv[2]))).report(), sys.stdout)
