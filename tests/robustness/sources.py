"""What hostile sources do to a friend's searches, to the daemon's memory, and to secrets.

Starts a private system bus with fakes of PID 1, logind and a mirrored service, another bus that is
served, and the daemon with the real model and thousands of objects; as root also a dpkg whose
status is not sane, and a network that changes without end. After each attack all is put right.
At last a host has a secret in every field that any observer reads.
Prints a table; writes JSON only when asked. Ends with 1 where a friend's calls failed or took five
times as long and more than 50 ms, a file stayed open, a planted secret was found anywhere, the
daemon was not well, or more than 25% of memory stayed once it had the same objects as before, or
after three minutes. What stays is Python's: its allocator gives back 1 MiB at a time, and only
where nothing is left in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks import planted
from attacks.leaks import hidden_fields, leaks
from attacks.planted import MARK, MIRRORED
from attacks.scene import Attacker, Seen, attack, attacking
from attacks.sources import (
    BUSES,
    FILES,
    NETWORKS,
    SANE,
    SECRETS,
    STORM,
    change_network,
    write_status,
)
from fuzz.serving import serving, wait_until_vectorized
from fuzz.wire import Wire
from harness.running import STATE, STATE_PATH, Bus, calling

from robustness.harness import parser, state, write
from robustness.hostile import HEAD, failures, line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from harness.running import Running

# Faster than anybody notices: on two processors the attack itself takes one.
FAST_MS = 50.0
MOST_GROWTH = 0.25
# An observer that has failed again and again is started less and less often.
_RECOVERY_SECONDS = 180.0
_STEADY_LOOKS = 8
_SANE_PACKAGES = 1000
_IN_PLACE = 'mount --bind "$0" /var/lib/dpkg && exec "$@"'


@contextmanager
def scene(given: argparse.Namespace, dpkg: Path) -> Iterator[tuple[Running, Bus]]:
    """Run a daemon that observes a bus, a folder and a network which others can make hostile."""
    system = Bus()
    os.environ["DBUS_SYSTEM_BUS_ADDRESS"] = system.address
    observers = ["systemd", "login1", "machined", MIRRORED]
    starter = []
    if can_mount():
        starter = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", _IN_PLACE]
        starter.append(str(dpkg))
        observers += ["packages", "network", "sockets"]
    content = json.dumps(state(given.objects)).encode()
    settings = {"state": content, "starter": starter, "OBSERVE": ",".join(observers)}
    try:
        with (
            attacking(system.address, SANE, [Attacker(program="attacks.sources")], 1e6),
            serving(dpkg.parent, medium=not given.tiny, **settings) as daemon,
        ):
            for observer in observers:
                daemon.wait_for_log(f"name={observer} .*state=up")
            wait_until_vectorized(daemon)
            yield daemon, system
    finally:
        system.kill()


def can_mount() -> bool:
    """Return whether dpkg's folder can be another one for the daemon."""
    return os.geteuid() == 0 and bool(shutil.which("unshare")) and Path("/var/lib/dpkg").is_dir()


def measure(given: argparse.Namespace) -> Iterator[tuple[Seen, list[str]]]:
    """Do every attack on a daemon of its own; gives what was seen of it, and of the secrets."""
    for name in given.only or [*BUSES, *({**FILES, **NETWORKS} if can_mount() else ())]:
        with tempfile.TemporaryDirectory(prefix="op-dbus-sources-") as folder:
            Path(folder).chmod(0o755)
            dpkg = Path(folder) / "dpkg"
            (dpkg / "info").mkdir(parents=True)
            write_status(dpkg / "status", _SANE_PACKAGES)
            with scene(given, dpkg) as (daemon, system):
                process = Path(f"/proc/{daemon.pid}")
                targets = dict.fromkeys(FILES, dpkg) | dict.fromkeys(NETWORKS, process)
                target = str(targets.get(name, system.address))
                attackers = [Attacker(program="attacks.sources", target=target)]
                recovered = partial(recover, daemon, dpkg, condition(daemon))
                seen = attack(daemon, name, attackers, given.seconds, after=recovered)
                yield replace(seen, name=f"a source {name}"), leaks(daemon, MARK)


def condition(daemon: Running) -> list[Any]:
    """Count the objects and those that wait for their vectors, and give the observers' states."""
    with Wire(daemon.bus) as wire:
        get = "org.freedesktop.DBus.Properties.Get"
        names = ("Count", "Pending", "Observers")
        asked = (wire.call(STATE_PATH, get, "ss", STATE, name) for name in names)
        count, pending, observers = (answer.body()[0].value for answer in asked)
    return [count, pending, *(row[:3] for row in observers)]


def recover(daemon: Running, dpkg: Path, before: list[Any]) -> None:
    """Put right what an attack left, and wait until the daemon is as before, and stays so."""
    change_network(Path(f"/proc/{daemon.pid}"), f"link del {STORM}")
    (dpkg / "status.new").unlink(missing_ok=True)
    write_status(dpkg / "status.new", _SANE_PACKAGES)
    (dpkg / "status.new").rename(dpkg / "status")
    end, same = time.monotonic() + _RECOVERY_SECONDS, 0
    while same < _STEADY_LOOKS and time.monotonic() < end:
        same = same + 1 if condition(daemon) == before else 0
        time.sleep(0.5)  # no signal tells that all is as before


def secrets(given: argparse.Namespace) -> dict[str, Any]:
    """Observe a host with a secret in every field; gives how many were hidden, and what was not."""
    with tempfile.TemporaryDirectory(prefix="op-dbus-secrets-") as name:
        folder = Path(name)
        system = Bus()
        os.environ.update(planted.install(folder), DBUS_SYSTEM_BUS_ADDRESS=system.address)
        settings = {"state": b'{"version": 1, "plugins": {}}', "OBSERVE": ",".join(planted.NAMES)}
        try:
            with (
                attacking(system.address, SECRETS, [Attacker(program="attacks.sources")], 1e6),
                serving(folder, medium=not given.tiny, **settings) as daemon,
            ):
                for observer in planted.NAMES:
                    daemon.wait_for_log(f"name={observer} .*state=up")
                wait_until_vectorized(daemon)
                found = leaks(daemon, MARK, most=1000)
                fields = asyncio.run(_hidden(daemon))
                count = condition(daemon)[0]
        finally:
            system.kill()
    return {
        "observers": len(planted.NAMES),
        "forms": len(planted.FORMS),
        "objects": count,
        "kinds of fields": len(fields),
        "found": found,
    }


async def _hidden(daemon: Running) -> set[str]:
    async with calling(daemon.bus) as caller:
        return await hidden_fields(caller)


def excused(seen: Seen) -> list[str]:
    """Say what went worse than it may: a little more time is none, and a little more memory."""
    found = failures(seen)
    if seen.attacked.own < FAST_MS:
        found = [fault for fault in found if not fault.startswith("p99")]
    if seen.growth <= MOST_GROWTH:
        found = [fault for fault in found if not fault.startswith("memory")]
    return found


def main() -> int:
    """Print what was seen, and give the exit code."""
    reading = parser(__doc__, objects=2_000)
    reading.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    reading.add_argument("--only", action="append", choices=[*BUSES, *FILES, *NETWORKS])
    given = reading.parse_args()
    print(HEAD)
    rows = []
    for seen, leaked in measure(given):
        faults = [*excused(seen), *leaked]
        print(line(seen), *leaked, sep="\n  ", flush=True)
        rows.append({**seen.report(), "failures": faults})
    shown = secrets(given)
    print(f"secrets in every field of every observer: {shown}")
    model = "tiny" if given.tiny else "medium"
    facts = {"model": model, "objects": given.objects, "seconds": given.seconds}
    write(given, {**facts, "attacks": rows, "secrets": shown})
    return 1 if not rows or any(row["failures"] for row in rows) or shown["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
