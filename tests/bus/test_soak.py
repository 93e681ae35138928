"""Minutes of hostile and friendly clients together, with the real model: nothing grows.

OP_DBUS_TEST_SOAK says how many minutes: `make soak` takes ten.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attacks.clients import ATTACKS
from attacks.friend import KINDS
from attacks.scene import SETTLE_SECONDS, Attacker, attacking, befriend, times_of
from harness.health import Health, memory_mib, open_files, settled_files
from harness.running import Bus, Running, state_file

MINUTES = float(os.environ.get("OP_DBUS_TEST_SOAK", "0"))
pytestmark = pytest.mark.skipif(not MINUTES, reason="only where OP_DBUS_TEST_SOAK gives minutes")
MOST_GROWTH = 0.03
OBJECTS = 1000
# The first rounds of all attacks bring memory to where it stays.
WARM_UP_ROUNDS = 2
ATTACK_SECONDS, QUIET_SECONDS, REST_SECONDS = 4.0, 1.0, 5.0
ROUND_SECONDS = len(ATTACKS) * (ATTACK_SECONDS + QUIET_SECONDS) + REST_SECONDS
# users that every system has
USERS = (1, 2, 3, 5) if os.geteuid() == 0 else (0,)


@contextmanager
def served(folder: Path) -> Iterator[Running]:
    """Run a daemon with the real model and many objects, all of them vectorized."""
    units = {f"u{n}.service": f"mail server {n} for the office" for n in range(OBJECTS)}
    file = state_file(folder / "state.json", units)
    bus = Bus()
    try:
        # no precision is graded, which takes minutes on a busy machine
        settings = {"STATE_FILE": file, "LOG_LEVEL": "info", "PRECISION": "fp32"}
        with Running(folder, bus.address, **settings) as daemon:
            yield daemon.vectorized()
    finally:
        bus.kill()


def attack_in_turn(daemon: Running, number: int) -> float:
    """Make each attack as another user each round; give the memory after it in MiB."""
    for name in ATTACKS:
        uids = USERS if name == "200 connections" else (USERS[number % len(USERS)],)
        attackers = [Attacker(uid) for uid in uids]
        with attacking(daemon.bus, name, attackers, ATTACK_SECONDS):
            time.sleep(ATTACK_SECONDS)  # the attack's own time
        time.sleep(QUIET_SECONDS)
    time.sleep(REST_SECONDS)  # what memory settles in
    return memory_mib(daemon.pid)


@pytest.mark.model
@pytest.mark.usefixtures("medium_model")
def test_nothing_grows_and_nothing_is_lost(tmp_path: Path) -> None:
    """Memory grows by less than 3% after the warm-up, and each friend has all its replies."""
    rounds = max(WARM_UP_ROUNDS + 1, int(MINUTES * 60 / ROUND_SECONDS))
    seconds = rounds * ROUND_SECONDS
    with served(tmp_path) as daemon:
        health, files = Health(daemon), open_files(daemon.pid)
        friends = {kind: befriend(daemon.bus, seconds, kind) for kind in KINDS}
        memory = [attack_in_turn(daemon, number) for number in range(rounds)]
        seen = {kind: times_of(friend, seconds) for kind, friend in friends.items()}
        print("MiB after each round:", memory, "friends:", seen)
        assert health.faults(SETTLE_SECONDS) == []
        health.close()
        assert settled_files(daemon.pid, files) <= files
    for times in seen.values():
        assert times.count
        assert (times.errors, times.lost) == ({}, 0)
    assert memory[-1] / memory[WARM_UP_ROUNDS - 1] - 1 < MOST_GROWTH, memory
