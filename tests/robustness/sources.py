"""What hostile sources do to a friend's searches, to the daemon's memory, and to secrets.

Starts a private system bus with fakes of PID 1 and logind, another bus that is served, and the
daemon with the real model and thousands of objects; as root also a dpkg whose status is not sane.
Prints a table; writes JSON only when asked. Ends with 1 where a friend's calls failed or took five
times as long and more than 50 ms, a file stayed open, a planted secret was found anywhere, or the
daemon was not well; or where more than 15% and 100 MiB of memory stayed: an observer may have
20,000 objects, and what they took is used again, but not given back at once when they are gone.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attacks.scene import Attacker, Seen, attack, attacking
from attacks.sources import BUSES, FILES, SANE, leaks, write_status
from fuzz.serving import serving, wait_until_vectorized
from running import Bus

from robustness.harness import parser, state, write
from robustness.hostile import HEAD, failures, line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from running import Running

# Faster than anybody notices: on two processors the attack itself takes one.
FAST_MS = 50.0
MOST_MIB = 100.0
_IN_PLACE = 'mount --bind "$0" /var/lib/dpkg && exec "$@"'


@contextmanager
def scene(given: argparse.Namespace, dpkg: Path) -> Iterator[tuple[Running, Bus]]:
    """Run a daemon that observes a bus and a folder which others can make hostile."""
    system = Bus()
    os.environ["DBUS_SYSTEM_BUS_ADDRESS"] = system.address
    observers = ["systemd", "login1"]
    starter = []
    if can_mount():
        starter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _IN_PLACE]
        starter.append(str(dpkg))
        observers.append("packages")
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
    """Do every attack on a daemon of its own; gives what was seen of it, and of the secrets.

    An observer that has failed again and again is started less and less often.
    """
    for name in given.only or [*BUSES, *(FILES if can_mount() else ())]:
        with tempfile.TemporaryDirectory(prefix="op-dbus-sources-") as folder:
            Path(folder).chmod(0o755)
            dpkg = Path(folder) / "dpkg"
            (dpkg / "info").mkdir(parents=True)
            write_status(dpkg / "status", 1000)
            with scene(given, dpkg) as (daemon, system):
                target = str(dpkg) if name in FILES else system.address
                attackers = [Attacker(program="attacks.sources", target=target)]
                seen = attack(daemon, name, attackers, given.seconds)
                yield replace(seen, name=f"a source {name}"), leaks(daemon)


def excused(seen: Seen) -> list[str]:
    """Say what went worse than it may; little time and memory may become a little more."""
    found = failures(seen)
    if seen.attacked.own < FAST_MS:
        found = [fault for fault in found if not fault.startswith("p99")]
    if seen.memory[2] - seen.memory[0] < MOST_MIB:
        found = [fault for fault in found if not fault.startswith("memory")]
    return found


def main() -> int:
    """Print what was seen, and give the exit code."""
    reading = parser(__doc__, objects=2_000)
    reading.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    reading.add_argument("--only", action="append", choices=[*BUSES, *FILES])
    given = reading.parse_args()
    print(HEAD)
    rows = []
    for seen, leaked in measure(given):
        faults = [*excused(seen), *leaked]
        print(line(seen), *leaked, sep="\n  ", flush=True)
        rows.append({**seen.report(), "failures": faults})
    model = "tiny" if given.tiny else "medium"
    facts = {"model": model, "objects": given.objects, "seconds": given.seconds}
    write(given, {**facts, "attacks": rows})
    return 1 if not rows or any(row["failures"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
