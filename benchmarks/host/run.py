"""op-dbus on a whole host: boots systemd in namespaces, installs, and measures what it costs there.

As root: `python benchmarks/host/run.py [--idle SECONDS] [--json FILE]`. The host
has this machine's files, no network and no state file; everything on it is as `make install` leaves
it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opdbus.bench.machine import describe

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from system.booting import booted, why_not
from system.host import PROGRAM, Host
from system.installing import installed
from system.service import STATE, UNIT, Service

CACHE = Path(__file__).parents[2] / ".pytest_cache" / "d" / "system"
# What a service did is read over this time, after all vectors are there.
_SETTLE_SECONDS = 30.0
_LOOP_SECONDS = 10.0


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

    def memory(self) -> dict[str, int]:
        """Return its memory in MiB: resident, and its share of what is shared."""
        lines = (self._folder / "smaps_rollup").read_text().splitlines()[1:]
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        return {name: kib[name] >> 10 for name in ("Rss", "Pss")}


def start(service: Service) -> dict[str, Any]:
    """Start the service, and return how long it takes to serve and to have every vector."""
    began = time.monotonic()
    service.systemctl("start")
    serves = time.monotonic() - began
    python(service.host, "until_ready.py")
    ready = time.monotonic() - began
    entries = service.host.journal(OPDBUS_EVENT="vectorized", _PID=service.pid)
    computed = sum(int(entry["OPDBUS_COMPUTED"]) for entry in entries)
    return {
        "serves after s": round(serves, 2),
        "ready after s": round(ready, 2),
        "computed": computed,
    }


def rest(service: Service, seconds: float) -> dict[str, Any]:
    """Return what the service does while nobody asks it anything."""
    process = Process(service.host, service.pid)
    time.sleep(_SETTLE_SECONDS)
    cpu, written, generation = process.cpu(), process.written(), service.get("Generation", STATE)
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {
        "seconds": round(took),
        "percent of a core": round(100 * (process.cpu() - cpu) / took, 3),
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


def events(host: Host) -> list[dict[str, Any]]:
    """Return how long each change of the host takes to be shown."""
    python(host, "address.py", "link")
    rows: list[dict[str, Any]] = json.loads(python(host, "events.py"))
    return rows


def python(host: Host, name: str, *arguments: str) -> str:
    """Run a script of this folder inside the host, as root, and return what it prints."""
    for script in Path(__file__).parent.glob("*.py"):
        host.write(f"/run/{script.name}", script.read_text())
    done = host.run(f"{PROGRAM}/bin/python", f"/run/{name}", *arguments, seconds=300)
    sys.stderr.write(done.stderr)
    if done.returncode:
        sys.exit(f"{name} failed\n{host.log()}")
    return done.stdout


def measure(host: Host, idle: float) -> dict[str, Any]:
    """Measure a host that was booted just now."""
    service = Service(host)
    first = start(service)
    rows = service.get("Observers", STATE)
    found: dict[str, Any] = {
        "first start": first,
        "objects": service.get("Count", STATE),
        "observers": {name: [state, count, why] for name, state, count, why in rows},
        "exposure": host.ask("systemd-analyze", "security", UNIT).splitlines()[-1].split()[-3],
        "idle": rest(service, idle),
        "memory MiB": Process(host, service.pid).memory(),
        "events": events(host),
        "restart loop": loop(service),
    }
    service.systemctl("stop")
    found["restart"] = start(service)
    return found


def main() -> None:
    """Boot, measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=float, default=300.0, help="seconds")
    parser.add_argument("--bus", default="dbus", help="dbus or dbus-broker")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    with installed(CACHE) as layer, booted(options.bus, layer) as host:
        report = {
            "date": f"{datetime.now(UTC):%F}",
            "machine": describe().line,
            "bus": options.bus,
            **measure(host, options.idle),
        }
    text = json.dumps(report, indent=1)
    (options.json or Path("/dev/stdout")).write_text(f"{text}\n")


if __name__ == "__main__":
    main()
