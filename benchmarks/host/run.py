"""op-dbus on a whole host: boots systemd in namespaces, installs, and measures what it costs there.

As root: `python benchmarks/host/run.py [--idle SECONDS] [--json FILE]`. The host
has this machine's files, no network and no state file; everything on it is as `make install` leaves
it, but that the journal is read and alerts go to it; one more user, a member of the group op-dbus,
asks all that is asked of the service.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inside import ASKER, asked_by_a_member, parser, python, report, start
from system import lamps
from system.host import PROGRAM
from system.service import STATE, STORE, UNIT, Service

if TYPE_CHECKING:
    from system.host import Host

# What a service did is read over this time, after all vectors are there.
_SETTLE_SECONDS = 30.0
_LOOP_SECONDS = 10.0
# What an administrator switches on besides: who did it and why it failed, and alerts.
_BESIDE = ("op-dbus-journal.service", "op-dbus-notify.service")
_ALERT = "/usr/local/share/doc/op-dbus/notify.d/journal"


class Process:
    """The service's process, as the machine outside counts."""

    def __init__(self, host: Host, pid: str) -> None:
        self._folder = host.path(f"/proc/{pid}")

    def cpu(self) -> float:
        """Return the seconds of processor time that it has used, its children's included."""
        fields = (self._folder / "stat").read_text().rpartition(") ")[2].split()
        return sum(map(int, fields[11:15])) / 100

    def written(self) -> int:
        """Return the bytes that it has had written to disk."""
        lines = dict(line.split(": ") for line in (self._folder / "io").read_text().splitlines())
        return int(lines["write_bytes"])

    def memory(self) -> dict[str, float]:
        """Return its memory in MiB: resident, and its share of what is shared."""
        lines = (self._folder / "smaps_rollup").read_text().splitlines()[1:]
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        return {name: round(kib[name] / 1024, 1) for name in ("Rss", "Pss")}

    def peak(self) -> float:
        """Return the most MiB that were resident."""
        text = (self._folder / "status").read_text()
        return round(int(text.partition("VmHWM:")[2].split()[0]) / 1024, 1)


def switch_on(host: Host) -> list[Process]:
    """Switch on the services beside op-dbus, and return their processes."""
    host.ask("install", "-g", "op-dbus-config", "-m", "750", _ALERT, "/etc/op-dbus/notify.d/")
    host.ask("systemctl", "enable", "--now", *_BESIDE)
    return [Process(host, host.show(unit, "MainPID")) for unit in _BESIDE]


def rest(service: Service, beside: list[Process], seconds: float) -> dict[str, Any]:
    """Return what the service does while nobody asks it anything, and what those beside it do."""
    process = Process(service.host, service.pid)
    time.sleep(_SETTLE_SECONDS)
    others = sum(each.cpu() for each in beside)
    cpu, written, generation = process.cpu(), process.written(), service.get("Generation", STATE)
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {
        "seconds": round(took),
        "percent of a core": round(100 * (process.cpu() - cpu) / took, 3),
        "beside": round(100 * (sum(each.cpu() for each in beside) - others) / took, 3),
        "bytes written": process.written() - written,
        "changes": service.get("Generation", STATE) - generation,
    }


def loop(service: Service) -> dict[str, Any]:
    """Return what a unit costs that restarts ten times a second."""
    process, init = Process(service.host, service.pid), Process(service.host, "1")
    service.host.ask("systemctl", "start", "--no-block", "probe-loop.service")
    time.sleep(2.0)
    cpu, others, began = process.cpu(), init.cpu(), time.monotonic()
    restarts = int(service.host.show("probe-loop.service", "NRestarts"))
    time.sleep(_LOOP_SECONDS)
    took = time.monotonic() - began
    restarts = int(service.host.show("probe-loop.service", "NRestarts")) - restarts
    found = {
        "restarts a second": round(restarts / took, 1),
        "percent of a core": round(100 * (process.cpu() - cpu) / took, 2),
        "percent of a core, process 1": round(100 * (init.cpu() - others) / took, 2),
    }
    service.host.ask("systemctl", "stop", "probe-loop.service")
    return found


def events(service: Service) -> list[dict[str, Any]]:
    """Return how long each change of the host takes to be shown."""
    host = service.host
    python(host, "address.py", "link")
    host.write("/run/lamps.py", Path(lamps.__file__).read_text())
    service.observe(f"auto,{lamps.NAME}")
    rows: list[dict[str, Any]] = json.loads(python(host, "events.py"))
    return rows


def measure(host: Host, idle: float) -> dict[str, Any]:
    """Measure a host that was booted just now."""
    service = asked_by_a_member(host)
    first = start(service)
    peak, beside = Process(host, service.pid).peak(), switch_on(host)
    rows = service.get("Observers", STATE)
    found: dict[str, Any] = {
        "asked by": host.ask("id", ASKER),
        "first start": first,
        "objects": service.get("Count", STATE),
        "observers": {name: [state, count, why] for name, state, count, why in rows},
        "status": host.ask("op-dbus", "status", user=ASKER).splitlines()[:2],
        "search ms": json.loads(python(host, "search.py", user=ASKER)),
        "exposure": host.ask("systemd-analyze", "security", UNIT).splitlines()[-1].split()[-3],
        "idle": rest(service, beside, idle),
        "memory MiB": Process(host, service.pid).memory(),
        "peak of the first start MiB": peak,
        "memory beside MiB": dict(zip(_BESIDE, (each.memory() for each in beside), strict=True)),
        "disk MiB": host.ask("du", "-sm", PROGRAM, STORE).splitlines(),
        "events": events(service),
        "restart loop": loop(service),
    }
    service.systemctl("stop")
    found["restart"] = start(service)
    return found


def main() -> None:
    """Boot, measure, and write the report."""
    options = parser(__doc__)
    options.add_argument("--idle", type=float, default=300.0, help="seconds")
    given = options.parse_args()
    report(given, lambda host: measure(host, given.idle))


if __name__ == "__main__":
    main()
