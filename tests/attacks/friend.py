"""A friendly client, a program of its own: asks all the time, and says how long it waited."""

import json
import sys
import time
from collections import Counter
from typing import Any

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
    thing = ("friend", "unit", f"u{number % 100}", {"round": Variant("u", number)})
    return STATE, PUBLISH, "sa(sssa{sv})a{sv}", "friend", [thing], {}


KINDS = {"search": search, "vectorize": vectorize, "publish": publish}


def ask(address: str, seconds: float, kind: str) -> dict[str, Any]:
    """Ask until the time is over; gives seconds of each answer, errors by name, and what was lost.

    Beside each call the bus daemon itself is asked: what it takes, no service can give back.
    """
    times: list[float] = []
    bus: list[float] = []
    errors: Counter[str] = Counter()
    lost = 0
    with Wire(address) as wire:
        for number in until(seconds):
            began = time.monotonic()
            wire.ask_bus("GetId")
            asked = time.monotonic()
            try:
                answer = wire.call(*KINDS[kind](number))
            except Silence:
                lost += 1
                continue
            times.append(time.monotonic() - asked)
            bus.append(asked - began)
            if answer.error:
                errors[answer.error] += 1
            time.sleep(_PAUSE_SECONDS)
    return {"times": times, "bus": bus, "errors": errors, "lost": lost}


if __name__ == "__main__":
    json.dump(ask(sys.argv[1], float(sys.argv[2]), sys.argv[3]), sys.stdout)
