"""What an attack does to a daemon and to its friend: times, memory, open files, its life."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from harness.health import Health, memory_mib, open_files, settled_files
from harness.running import Running

from opdbus.bench.measures import percentiles

TESTS = Path(__file__).parent.parent
T = TypeVar("T")
# How long after an attack the daemon has time to answer, and to give files and memory back.
SETTLE_SECONDS = 20.0
# Milliseconds that a daemon may work while a friend waits, at the 99th percentile and for half of
# its calls; without what stands against attacks it works longer.
_SOON = 1500.0
_USUALLY = 400.0
# How long half of the calls may take by the clock, on a machine on which others work, too.
_MOST = 10 * _USUALLY
_TRIES = 5
# While the attack begins nothing is measured, for so long at most.
_LEAD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Attacker:
    """An attacker: a user and the one group it is in, as root if 0; its program, and its target.

    The target is the bus that the daemon serves, if none is given.
    """

    uid: int = 0
    group: int = 0
    program: str = "attacks.clients"
    target: str = ""


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of a friend's calls; `work` is what op-dbus worked meanwhile."""

    count: int
    p50: float
    p99: float
    worst: float
    work: tuple[float, float]
    errors: dict[str, int]
    lost: int

    @classmethod
    def of(
        cls,
        times: Sequence[float],
        work: Sequence[float],
        errors: dict[str, int],
        lost: int,
    ) -> "Times":
        """Sum up."""
        if not times:
            return cls(0, *[float("inf")] * 3, (float("inf"),) * 2, errors, lost)
        rounded = [round(value, 2) for value in percentiles(times, 50, 99, 100).values()]
        p50, p99 = percentiles(work, 50, 99).values()
        return cls(len(times), *rounded, (round(p50, 2), round(p99, 2)), errors, lost)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of an attack; memory in MiB."""

    name: str
    quiet: Times
    attacked: Times
    memory: tuple[float, float, float]
    files: tuple[int, int, int]
    faults: Sequence[str]

    @property
    def is_soon(self) -> bool:
        """Whether the friend is answered soon, however busy the machine is."""
        p50, p99 = self.attacked.work
        return p50 < _USUALLY and p99 < _SOON and self.attacked.p50 < _MOST


def befriend(address: str, seconds: float, kind: str = "search") -> subprocess.Popen[str]:
    """Start a friendly client."""
    return _python("attacks.friend", address, str(seconds), kind)


def times_of(friend: subprocess.Popen[str], seconds: float) -> Times:
    """Wait for what a friend saw; it may be kept waiting by the attack, but not for ever."""
    output, errors = friend.communicate(timeout=seconds + 120)
    if friend.returncode:
        return Times.of([], [], {errors.strip().splitlines()[-1]: 1}, 0)
    return Times.of(**json.loads(output))


def attack(
    daemon: Running,
    name: str,
    attackers: Sequence[Attacker],
    seconds: float,
    settle: float,
) -> Seen:
    """Attack a daemon, and tell what it and its friend saw before, meanwhile and after."""
    health = Health(daemon)
    lead = min(seconds, _LEAD_SECONDS)
    quiet = times_of(befriend(daemon.bus, seconds), seconds)
    memory, files = memory_mib(daemon.pid), open_files(daemon.pid)
    with (
        sampled(lambda: memory_mib(daemon.pid), 0.1) as memories,
        sampled(lambda: open_files(daemon.pid), 0.1) as counts,
        attacking(daemon.bus, name, attackers, seconds + 2 * _LEAD_SECONDS),
    ):
        time.sleep(lead)  # the attack must be on
        attacked = times_of(befriend(daemon.bus, seconds), seconds)
    faults = health.faults(SETTLE_SECONDS)
    after = _settled_memory(daemon.pid, memory * 1.05, settle)
    files_after = settled_files(daemon.pid, files)
    health.close()
    return Seen(
        name,
        quiet,
        attacked,
        (round(memory, 1), round(max(memories), 1), round(after, 1)),
        (files, max(counts), files_after),
        faults,
    )


def attack_again(
    daemon: Running, name: str, attackers: Sequence[Attacker], seconds: float, settle: float
) -> Seen:
    """Attack again where the friend waited: for a busy machine once, for a defect each time.

    Each time for twice as long, since half of one or two searches is a matter of chance.
    """
    for number in range(_TRIES):
        seen = attack(daemon, name, attackers, seconds * 2**number, settle)
        if seen.is_soon or seen.faults:
            break
    return seen


@contextmanager
def attacking(bus: str, name: str, attackers: Sequence[Attacker], seconds: float) -> Iterator[None]:
    """Attack as long as the context is open, for so many seconds at most."""
    length = str(seconds)
    running = [
        _python(a.program, name, a.target or bus, length, str(a.uid), str(a.group))
        for a in attackers
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _python(module: str, *arguments: str) -> subprocess.Popen[str]:
    environ = os.environ | {"PYTHONPATH": str(TESTS)}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def sampled(measure: Callable[[], T], seconds: float) -> Iterator[list[T]]:
    """Measure every so many seconds as long as the context is open."""
    seen, is_over = [measure()], threading.Event()

    def watch() -> None:
        while not is_over.wait(seconds):
            seen.append(measure())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def _settled_memory(pid: int, wanted: float, seconds: float) -> float:
    """Give the memory once it is as small as wanted, or the time is over."""
    end = time.monotonic() + seconds
    while (found := memory_mib(pid)) > wanted and time.monotonic() < end:
        time.sleep(0.1)  # no event tells of another process's memory
    return found
