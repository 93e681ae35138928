"""A friendly client, a program of its own: asks all the time, and says how long it waited."""

import json
import sys
import threading
import time
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from fuzz.marshal import Variant
from fuzz.wire import Silence, Wire

from attacks.clients import PUBLISH, ROOT, SEARCH, STATE, until

QUESTIONS = ("who keeps the clock right?", "mail for the office", "what resolves names?")
# A person's program asks often, and not as fast as it can.
_PAUSE_SECONDS = 0.005


def search(number: int) -> tuple[Any, ...]:
    """Ask one of a few questions."""
    return STATE, SEARCH, "sua{sv}", QUESTIONS[number % 3], 10, {}


def vectorize(number: int) -> tuple[Any, ...]:
    """Ask for the vector of a text that nobody asked for before."""
    text = f"{QUESTIONS[number % 3]} {number}"
    return ROOT, "org.opdbus.Vectorizer1.Vectorize", "sa{sv}", text, {}


def publish(number: int) -> tuple[Any, ...]:
    """Publish one of a hundred objects, changed."""
    object_id = ("friend", "unit", f"u{number % 100}", {"round": Variant("u", number)})
    return STATE, PUBLISH, "sa(sssa{sv})a{sv}", "friend", [object_id], {}


KINDS = {"search": search, "vectorize": vectorize, "publish": publish}


class Pinger:
    """Calls the bus daemon itself, all the while: what it takes, no service can give back."""

    def __init__(self, address: str) -> None:
        self.spans: list[tuple[float, float]] = []
        self._address = address
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ping)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End with the call that is on its way."""
        self._is_over.set()
        self._thread.join()

    def _ping(self) -> None:
        with Wire(self._address) as wire:
            while not self._is_over.wait(_PAUSE_SECONDS):
                began = time.monotonic()
                wire.ask_bus("GetId")
                self.spans.append((began, time.monotonic()))


def own(calls: Sequence[tuple[float, float]], pings: Sequence[tuple[float, float]]) -> list[float]:
    """Give the seconds of calls, each without the longest part of it that one ping took, too."""
    found, ends = [], [end for _, end in pings]
    for began, ended in calls:
        # pings follow one another: those that ended before the call are of no matter
        number, shared = bisect(ends, began), 0.0
        while number < len(pings) and pings[number][0] < ended:
            begin, end = pings[number]
            shared = max(shared, min(ended, end) - max(began, begin))
            number += 1
        found.append(ended - began - shared)
    return found


def ask(address: str, seconds: float, kind: str) -> dict[str, Any]:
    """Ask until the time is over; gives seconds of each answer, errors by name, and what was lost.

    `own` are the same seconds without what the bus daemon took meanwhile for a call to itself;
    `work` are those that the daemon worked meanwhile, for whomever.
    """
    calls: list[tuple[float, float]] = []
    work: list[float] = []
    errors: Counter[str] = Counter()
    lost = 0
    with Wire(address) as wire, Pinger(address) as pinger:
        (pid,) = wire.ask_bus("GetConnectionUnixProcessID", "s", "org.opdbus").body()
        # the clock of a process: see clock_getcpuclockid(3)
        clock = ~pid << 3 | 2
        for number in until(seconds):
            worked, began = time.clock_gettime(clock), time.monotonic()
            try:
                answer = wire.call(*KINDS[kind](number))
            except Silence:
                lost += 1
                continue
            calls.append((began, time.monotonic()))
            work.append(time.clock_gettime(clock) - worked)
            if answer.error:
                errors[answer.error] += 1
            time.sleep(_PAUSE_SECONDS)
    return {
        "times": [ended - began for began, ended in calls],
        "own": own(calls, pinger.spans),
        "bus": [ended - began for began, ended in pinger.spans],
        "work": work,
        "errors": errors,
        "lost": lost,
    }


if __name__ == "__main__":
    json.dump(ask(sys.argv[1], float(sys.argv[2]), sys.argv[3]), sys.stdout)
