"""Hostile clients do not stop a friendly one; memory and open files come back; nothing is lost.

Bounds are for a busy machine with two cores. OP_DBUS_TEST_ATTACKS=all makes all attacks on each
message bus, of which the others are made on one.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from attacks.clients import ATTACKS
from attacks.scene import Attacker, attack_again
from harness.broker import BUSES
from harness.marshal import MEMBER
from harness.running import STATE, STATE_PATH, Bus, Running, state_file
from harness.wire import Wire

OBJECTS = 1000
OURSELVES = [Attacker()]
# users that every system has
STRANGERS = [Attacker(uid) for uid in (1, 2, 3, 5)] if os.geteuid() == 0 else OURSELVES
PUBLISH = f"{STATE}.Publish"
# As many as a socket takes while nobody reads it.
PUBLISHED_AT_ONCE, PUBLISHERS = 20, 4
PAUSE_SECONDS = 2.0
# How much memory an attack may take, where others take more for replies that nobody reads.
MOST_MIB = {"32 MiB array": 15, "signals of 4 MiB": 15, "vanishing": 15}


def declared(folder: Path) -> Path:
    """Write a state file with many objects."""
    units = {f"u{n}.service": f"mail server {n} for the office" for n in range(OBJECTS)}
    return state_file(folder / "state.json", units)


def until_served(daemon: Running) -> None:
    """Wait until all that is declared has vectors."""
    daemon.wait_for_log("model proven")
    daemon.wait_for_log("state file read")
    daemon.vectorized()


@pytest.fixture(scope="module")
def daemon_on(
    shared_daemons: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Running]]:
    """Run a daemon with many objects, all of them vectorized, on each kind of bus."""
    file = declared(tmp_path_factory.mktemp("declared"))

    with ExitStack() as stack:

        @cache
        def start(kind: str) -> Running:
            bus = BUSES[kind]()
            stack.callback(bus.kill)
            given = {"STATE_FILE": file, "LOG_LEVEL": "info"}
            running = stack.enter_context(shared_daemons(name=kind, bus=bus.address, **given))
            until_served(running)
            return running

        yield start


MADE = [
    ("dbus-daemon", "32 slow readers of lists", OURSELVES),
    ("dbus-daemon", "flood of 10,000, no replies", OURSELVES),
    ("dbus-daemon", "200 connections", STRANGERS),
    ("dbus-daemon", "vanishing", OURSELVES),
    ("dbus-broker", "32 slow readers of vectors", OURSELVES),
    ("dbus-broker", "flood of 10,000", OURSELVES),
    ("dbus-broker", "32 MiB array", OURSELVES),
    ("dbus-broker", "signals of 4 MiB", STRANGERS[:1]),
]
if os.environ.get("OP_DBUS_TEST_ATTACKS") == "all":
    MADE = [
        (bus, name, STRANGERS if name == "200 connections" else STRANGERS[:1])
        for bus, name in product(BUSES, ATTACKS)
    ]


@pytest.mark.parametrize(("bus", "name", "attackers"), MADE)
def test_friend_is_served_while_others_attack(
    daemon_on: Callable[[str], Running], bus: str, name: str, attackers: list[Attacker]
) -> None:
    """While others attack, searches are answered soon, and afterwards nothing of them is left."""
    seen = attack_again(daemon_on(bus), name, attackers, 0.4, settle=1.0)
    assert not seen.faults
    assert (seen.attacked.errors, seen.attacked.lost) == ({}, 0)
    assert seen.is_soon, seen
    assert seen.memory[1] < seen.memory[0] + MOST_MIB.get(name, 60), seen
    assert seen.memory[2] < seen.memory[0] * 1.15 + 30, seen
    assert seen.files[-1] <= seen.files[0]


def test_bus_that_pauses_under_load_loses_nothing(daemons: Callable[..., Running]) -> None:
    """A bus that stands still for seconds under load delays calls and signals, and loses none."""
    bus = Bus()
    with daemons(bus=bus.address, LOG_LEVEL="info") as daemon:
        daemon.wait_for_log("state file read")
        watcher = Wire(bus.address)
        watcher.subscribe("type='signal',sender='org.opdbus',member='Changed'")
        owner = watcher.ask_bus("GetNameOwner", "s", "org.opdbus").body()
        wires = [Wire(bus.address) for _ in range(PUBLISHERS)]
        calls = [_publish(wires, "before")]
        os.kill(bus.pid, signal.SIGSTOP)
        calls.append(_publish(wires, "meanwhile"))
        time.sleep(PAUSE_SECONDS)  # the pause is what is tested
        os.kill(bus.pid, signal.SIGCONT)
        answers = [wire.answer(serial) for sent in calls for wire, serial in sent]
        assert [answer.error for answer in answers] == [""] * len(answers)
        paths = {path for answer in answers for path in answer.body()[0]}
        assert len(paths) == 2 * PUBLISHERS * PUBLISHED_AT_ONCE
        assert _told(watcher, paths) == sorted(_told(watcher, paths))
        assert watcher.ask_bus("GetNameOwner", "s", "org.opdbus").body() == owner
        for wire in (watcher, *wires):
            wire.socket.close()
        assert daemon.stop() == 0
    bus.kill()


def _publish(wires: list[Wire], name: str) -> list[tuple[Wire, int]]:
    """Send many calls on every connection, and wait for none."""
    return [
        (wire, wire.start(STATE_PATH, PUBLISH, "sa(sssa{sv})a{sv}", "load", [object_id], {}))
        for number, wire in enumerate(wires)
        for object_id in (("p", name, f"n{number}-{n}", {}) for n in range(PUBLISHED_AT_ONCE))
    ]


def _told(watcher: Wire, paths: set[str]) -> list[int]:
    """Give the generations of signals in the order in which they came, once all paths are told."""
    told: set[str] = set()
    while True:
        changed = [m for m in watcher.signals if m.fields[MEMBER] == "Changed"]
        bodies = [message.body() for message in changed]
        told = {path for _, changes in bodies for path, _ in changes}
        if paths <= told:
            return [generation for generation, _ in bodies]
        watcher.signals.append(watcher.receive())
