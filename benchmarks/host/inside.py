"""What measurements of a booted host share: boot and report, a member who asks, scripts inside.

The host is changed as root. What is measured is asked by a user that is only a member of the
group op-dbus.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdbus.bench.machine import describe

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from system.booting import booted, why_not
from system.host import PROGRAM, Host
from system.installing import installed
from system.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable

CACHE = Path(__file__).parents[2] / ".pytest_cache" / "d" / "system"
GROUP = "op-dbus"
ASKER = "asker"
_SCRIPT_SECONDS = 300.0


def parser(text: str | None) -> argparse.ArgumentParser:
    """Make a parser with the options of all measurements."""
    made = argparse.ArgumentParser(description=text)
    made.add_argument("--bus", default="dbus", help="dbus or dbus-broker")
    made.add_argument("--json", type=Path)
    return made


def report(
    options: argparse.Namespace, measure: Callable[[Host], dict[str, Any]]
) -> dict[str, Any]:
    """Boot a host, measure it, write the report, and return it."""
    if reason := why_not():
        sys.exit(reason)
    with installed(CACHE) as layer, booted(options.bus, layer) as host:
        found = {
            "date": f"{datetime.now(UTC):%F}",
            "machine": describe().line,
            "bus": options.bus,
            **measure(host),
        }
    text = json.dumps(found, indent=1)
    (options.json or Path("/dev/stdout")).write_text(f"{text}\n")
    return found


def asked_by_a_member(host: Host) -> Service:
    """Give the service, asked by a user that is in the group op-dbus and may do nothing else."""
    host.ask("useradd", "--no-create-home", "--groups", GROUP, ASKER)
    return Service(host, user=ASKER)


def python(
    host: Host, name: str, *arguments: str, user: str = "", seconds: float = _SCRIPT_SECONDS
) -> str:
    """Run a script of this folder inside the host, as root or a user, and return what it prints."""
    for script in Path(__file__).parent.glob("*.py"):
        if not host.path(f"/run/{script.name}").exists():
            host.write(f"/run/{script.name}", script.read_text())
    command = [f"{PROGRAM}/bin/python", f"/run/{name}", *arguments]
    done = host.run(*command, user=user, seconds=seconds)
    sys.stderr.write(done.stderr)
    if done.returncode:
        sys.exit(f"{name} failed\n{host.log()}")
    return done.stdout


def start(service: Service) -> dict[str, Any]:
    """Start the service, and return how long it takes to serve and to have every vector."""
    began = time.monotonic()
    service.systemctl("start")
    serves = time.monotonic() - began
    python(service.host, "until_ready.py", user=service.user)
    ready = time.monotonic() - began
    entries = service.host.journal(OPDBUS_EVENT="vectorized", _PID=service.pid)
    computed = sum(int(entry["OPDBUS_COMPUTED"]) for entry in entries)
    return {
        "serves after s": round(serves, 2),
        "ready after s": round(ready, 2),
        "computed": computed,
    }
