"""Minutes of hostile and friendly clients together, with the real model: memory, replies, files.

Friends search, vectorize and publish all the time while every attack of `hostile.py` has its turn,
by other users where root runs this. Memory is read each second. The warm-up is the first two rounds
of all attacks; growth is between the quiet moments that end the warm-up and the last round, and the
slope is the least-squares line through all readings between them. Writes JSON only when asked; ends
with 1 where memory grew by 3% or more, a friend lost a reply, a file stayed open, or the daemon was
not well.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks.clients import ATTACKS
from attacks.friend import KINDS
from attacks.scene import SETTLE_SECONDS, Attacker, attacking, befriend, sampled, times_of
from fuzz.health import Health, memory_mib, open_files, settled_files
from fuzz.serving import serving, wait_until_vectorized

from robustness.harness import finish, parser, state
from robustness.hostile import CROWD, GROUP, USERS, attackers, with_a_group

if TYPE_CHECKING:
    import argparse

    from harness.running import Running

MOST_GROWTH = 0.03
WARM_UP_ROUNDS = 2
# An attack, and the quiet after it in which memory settles.
ATTACK_SECONDS, QUIET_SECONDS, REST_SECONDS = 4.0, 1.0, 5.0
ROUND_SECONDS = len(ATTACKS) * (ATTACK_SECONDS + QUIET_SECONDS) + REST_SECONDS


class Readings:
    """Memory by time, and where each round ended."""

    def __init__(self) -> None:
        self.memory: list[tuple[float, float]] = []
        self.rounds: list[tuple[float, float]] = []

    def slope(self) -> float:
        """Give MiB a minute after the warm-up."""
        begin = self.rounds[WARM_UP_ROUNDS - 1][0]
        later = [(at / 60, size) for at, size in self.memory if at >= begin]
        return statistics.linear_regression(*zip(*later, strict=True)).slope

    def growth(self) -> float:
        """Give the share by which memory grew from the end of the warm-up to the last round."""
        return self.rounds[-1][1] / self.rounds[WARM_UP_ROUNDS - 1][1] - 1


def enemies(name: str, number: int) -> list[Attacker]:
    """Give the attackers of a round: another user each time, where root runs this."""
    if name == CROWD or os.geteuid() != 0:
        return next(iter(attackers(name).values()))
    return [Attacker(USERS[number % len(USERS)], GROUP)]


def reading(daemon: Running, began: float) -> tuple[float, float]:
    """Read the seconds since the beginning, and the memory."""
    return time.monotonic() - began, memory_mib(daemon.pid)


def go_on(daemon: Running, rounds: int, readings: Readings, began: float) -> None:
    """Attack round by round."""
    for number in range(rounds):
        for name in ATTACKS:
            with attacking(daemon.bus, name, enemies(name, number), ATTACK_SECONDS):
                time.sleep(ATTACK_SECONDS)  # the attack's own time
            time.sleep(QUIET_SECONDS)
        time.sleep(REST_SECONDS)  # what memory settles in
        readings.rounds.append(reading(daemon, began))
        print(f"round {number + 1} of {rounds}: {readings.rounds[-1][1]:.1f} MiB", flush=True)


def soak(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Give what was seen."""
    readings = Readings()
    content = json.dumps(state(given.objects)).encode()
    with serving(folder, medium=not given.tiny, state=content) as daemon:
        wait_until_vectorized(daemon)
        health, files = Health(daemon), open_files(daemon.pid)
        rounds = max(WARM_UP_ROUNDS + 1, int(given.minutes * 60 / ROUND_SECONDS))
        seconds = rounds * ROUND_SECONDS
        friends = {kind: befriend(daemon.bus, seconds, kind) for kind in KINDS}
        began = time.monotonic()
        read = partial(reading, daemon, began)
        with sampled(read, 1.0) as readings.memory:
            go_on(daemon, rounds, readings, began)
        seen = {kind: asdict(times_of(friend, seconds)) for kind, friend in friends.items()}
        faults = health.faults(SETTLE_SECONDS)
        health.close()
        return {
            "model": "tiny" if given.tiny else "medium",
            "minutes": round((time.monotonic() - began) / 60, 1),
            "warm-up minutes": round(readings.rounds[WARM_UP_ROUNDS - 1][0] / 60, 1),
            "objects": given.objects,
            "MiB at the end of each round": [round(size, 1) for _, size in readings.rounds],
            "growth after warm-up": round(readings.growth(), 4),
            "slope MiB a minute": round(readings.slope(), 3),
            "friends": seen,
            "open files": [files, settled_files(daemon.pid, files)],
            "faults": faults,
            "MiB each second": [round(size, 1) for _, size in readings.memory],
        }


def failures(report: dict[str, Any]) -> list[str]:
    """Say what went worse than it may."""
    found = list(report["faults"])
    if report["growth after warm-up"] >= MOST_GROWTH:
        found.append(f"memory grew by {report['growth after warm-up']:.1%}")
    for kind, seen in report["friends"].items():
        if seen["lost"] or not seen["count"]:
            found.append(f"{kind}: {seen['lost']} replies lost, {seen['count']} received")
        if seen["errors"]:
            found.append(f"{kind}: {seen['errors']}")
    before, after = report["open files"]
    if after > before:
        found.append(f"{after - before} files left open")
    return found


def main() -> int:
    """Print what was seen, and give the exit code."""
    options = parser(__doc__, objects=3000)
    options.add_argument("--minutes", type=float, default=10.0, help="three rounds at least")
    given = options.parse_args()
    with_a_group()
    with tempfile.TemporaryDirectory(prefix="op-dbus-soak-") as folder:
        Path(folder).chmod(0o755)
        report = soak(given, Path(folder))
    return finish(given, report, failures(report))


if __name__ == "__main__":
    sys.exit(main())
