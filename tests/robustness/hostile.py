"""What hostile clients do to a friend's searches, and to the daemon's memory and open files.

Starts a private bus of either kind with the limits of a system bus, and the daemon with the real
model and thousands of objects. Prints a table; writes JSON only when asked. `own` is the 99th
percentile without what the bus daemon took meanwhile for a call to itself: more than a second for a
message of millions of variants, which no service behind it can give back. Ends with 1 where that
rose five times or more, more than 15% of memory stayed, a file stayed open, or the daemon was not
well.

With --without PART, the attacks against a part of the bus's admission are made with the part and
without it, in turn: that is what the part buys.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks.clients import ATTACKS, PROBES
from attacks.scene import Attacker, Seen, attack
from fuzz.health import memory_mib
from fuzz.serving import serving, wait_until_vectorized
from harness.broker import BUSES

from robustness.harness import parser, state, write
from robustness.without import PARTS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

MOST_RATIO, MOST_GROWTH = 5.0, 0.15
# Users that every system has, and the group of users that may use the daemon.
USERS = (1, 2, 3, 5)
GROUP = 54321
WITHOUT = Path(__file__).with_name("without.py")
CROWD = "200 connections"
_ALONE = "OP_DBUS_HOSTILE_ALONE"


def with_a_group() -> None:
    """Begin anew where the group op-dbus exists, and nothing else of this machine has changed."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return
    if _ALONE not in os.environ:
        command = ["unshare", "--mount", "--propagation", "private", sys.executable]
        command += sys.orig_argv[1:]
        os.execvpe("unshare", command, os.environ | {_ALONE: "1"})  # noqa: S606
    file = Path(tempfile.gettempdir()) / f"op-dbus-group-{os.getpid()}"
    lines = Path("/etc/group").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("op-dbus:")]
    file.write_text("\n".join([*kept, f"op-dbus:x:{GROUP}:"]) + "\n")
    file.chmod(0o644)
    subprocess.run(["mount", "--bind", file, "/etc/group"], check=True)
    file.unlink()


def attackers(name: str) -> dict[str, list[Attacker]]:
    """Give the attackers, by the attack's full name."""
    if name != CROWD:
        return {name: [Attacker()]}
    if os.geteuid() != 0:
        return {f"{CROWD} of one user": [Attacker()]}
    return {
        f"{CROWD} of each of 4 users": [Attacker(uid, GROUP) for uid in USERS],
        f"{CROWD} of each of 4 strangers": [Attacker(uid) for uid in USERS],
    }


def line(seen: Seen) -> str:
    """Write what was seen for people."""
    before, peak, after = seen.memory
    return (
        f"{seen.name:36}{seen.quiet.p50:8.1f}{seen.quiet.p99:8.1f}{seen.attacked.p50:9.1f}"
        f"{seen.attacked.p99:9.1f}{seen.attacked.worst:9.1f}{seen.attacked.own:9.1f}{seen.own_ratio:7.1f}"
        f"{before:8.0f}{peak:7.0f}{after:7.0f}{seen.growth:+7.0%}"
        f"{seen.files[0]:6}{seen.files[1]:5}{seen.files[2]:5}  {'; '.join(failures(seen)) or 'ok'}"
    )


HEAD = (
    f"{'attack':36}{'quiet ms':>8}{'p99':>8}{'attacked':>9}{'p99':>9}{'worst':>9}{'own':>9}"
    f"{'ratio':>7}{'MiB':>8}{'peak':>7}{'after':>7}{'':7}{'files':>6}{'peak':>5}{'':5}"
)


def failures(seen: Seen) -> list[str]:
    """Say what went worse than it may."""
    found = list(seen.faults)
    if seen.attacked.errors:
        found.append(f"the friend got {seen.attacked.errors}")
    if seen.attacked.lost:
        found.append(f"{seen.attacked.lost} replies lost")
    if seen.own_ratio >= MOST_RATIO:
        found.append(f"p99 x {seen.own_ratio} without the bus")
    if seen.growth > MOST_GROWTH:
        found.append(f"memory {seen.growth:+.0%}")
    if seen.files[2] > seen.files[0]:
        found.append(f"{seen.files[2] - seen.files[0]} files left open")
    return found


def measure(given: argparse.Namespace, names: Sequence[str], without: str = "") -> Iterator[Seen]:
    """Do every attack, one after the other; a daemon that did not live through one is replaced."""
    starter = [sys.executable, str(WITHOUT), without] if without else []
    attacks = deque((name, *row) for name in names for row in attackers(name).items())
    while attacks:
        with tempfile.TemporaryDirectory(prefix="op-dbus-hostile-") as folder:
            Path(folder).chmod(0o755)
            content = json.dumps(state(given.objects)).encode()
            with serving(
                Path(folder),
                medium=not given.tiny,
                state=content,
                starter=starter,
                bus_kind=given.bus,
            ) as daemon:
                wait_until_vectorized(daemon)
                while attacks and memory_mib(daemon.pid):
                    name, full, users = attacks.popleft()
                    yield replace(attack(daemon, name, users, given.seconds), name=full)


def compare(part: str, given: argparse.Namespace) -> dict[str, Any]:
    """Make the attacks against a part with it and without it, in turn, and give the medians."""
    seen: dict[tuple[str, str], list[Seen]] = {}
    for _ in range(given.repeat):
        for key, without in (("with", ""), ("without", part)):
            for one in measure(given, given.only or PARTS[part].attacks, without):
                print(f"{part:12} {key:8}" + line(one), flush=True)
                seen.setdefault((one.name, key), []).append(one)
    attacks = [
        {"attack": name, **{key: summary(seen[name, key]) for key in ("with", "without")}}
        for name in dict.fromkeys(name for name, _ in seen)
    ]
    return {"part": part, "runs": given.repeat, "attacks": attacks}


def summary(seen: Sequence[Seen]) -> dict[str, Any]:
    """Give medians, and for times what the runs were between."""

    def between(values: Sequence[float]) -> list[float]:
        found = [min(values), statistics.median(values), max(values)]
        return [round(value, 2) for value in found]

    return {
        "p99_ms": between([one.attacked.p99 for one in seen]),
        "own_ms": between([one.attacked.own for one in seen]),
        "own_ratio": between([one.own_ratio for one in seen]),
        "peak_mib": between([one.memory[1] - one.memory[0] for one in seen]),
        "peak_files": max(one.files[1] for one in seen),
        "failures": sorted({fault for one in seen for fault in failures(one)}),
    }


def facts(given: argparse.Namespace) -> dict[str, Any]:
    """Give what the figures depend on besides the machine."""
    model = "tiny" if given.tiny else "medium"
    return {"model": model, "objects": given.objects, "seconds": given.seconds, "bus": given.bus}


def main() -> int:
    """Print what was seen, and give the exit code."""
    reading = parser(__doc__, objects=10_000)
    reading.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    reading.add_argument("--bus", choices=BUSES, default="dbus-daemon")
    reading.add_argument("--only", action="append", choices=[*ATTACKS, *PROBES])
    reading.add_argument("--without", action="append", choices=[*PARTS, "each"], metavar="PART")
    reading.add_argument("--repeat", type=int, default=3, help="how often, of --without")
    given = reading.parse_args()
    with_a_group()
    # what the service's unit allows
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    print(HEAD)
    if given.without:
        parts = list(PARTS) if "each" in given.without else given.without
        found = [compare(part, given) for part in parts]
        write(given, {**facts(given), "parts": found})
        return 0
    seen = []
    for one in measure(given, given.only or list(ATTACKS)):
        seen.append(one)
        print(line(one), flush=True)
    attacks = [{**one.report(), "failures": failures(one)} for one in seen]
    write(given, {**facts(given), "attacks": attacks})
    return 1 if any(failures(one) for one in seen) else 0


if __name__ == "__main__":
    sys.exit(main())
