"""A friendly client, a program of its own: asks all the time, and says how long it waited."""

import json
import sys
import time
from collections import Counter
from typing import Any

from harness.marshal import Variant
from harness.wire import Silence, Wire

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


def ask(address: str, seconds: float, kind: str) -> dict[str, Any]:
    """Ask until the time is over; gives seconds of each answer, errors by name, and what was lost.

    `work` are those that the daemon worked meanwhile, for whomever.
    """
    times: list[float] = []
    work: list[float] = []
    errors: Counter[str] = Counter()
    lost = 0
    with Wire(address) as wire:
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
            times.append(time.monotonic() - began)
            work.append(time.clock_gettime(clock) - worked)
            if answer.error:
                errors[answer.error] += 1
            time.sleep(_PAUSE_SECONDS)
    return {"times": times, "work": work, "errors": errors, "lost": lost}


if __name__ == "__main__":
    json.dump(ask(sys.argv[1], float(sys.argv[2]), sys.argv[3]), sys.stdout)
