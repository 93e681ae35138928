"""A friendly client, a program of its own: searches all the time, and says how long each took."""

import json
import sys
import time
from collections import Counter
from typing import Any

from fuzz.wire import Wire

from attacks.clients import SEARCH, STATE, until

QUESTIONS = ("who keeps the clock right?", "mail for the office", "what resolves names?")
# A person's program asks often, and not as fast as it can.
_PAUSE_SECONDS = 0.005


def search(address: str, seconds: float) -> dict[str, Any]:
    """Search until the time is over; gives seconds of each answer, and errors by name.

    Beside each search the bus daemon itself is asked: what it takes, no service can give back.
    """
    times: list[float] = []
    bus: list[float] = []
    errors: Counter[str] = Counter()
    with Wire(address) as wire:
        for number in until(seconds):
            began = time.monotonic()
            wire.ask_bus("GetId")
            asked = time.monotonic()
            answer = wire.call(STATE, SEARCH, "sua{sv}", QUESTIONS[number % 3], 10, {})
            times.append(time.monotonic() - asked)
            bus.append(asked - began)
            if answer.error:
                errors[answer.error] += 1
            time.sleep(_PAUSE_SECONDS)
    return {"search": times, "bus": bus, "errors": errors}


if __name__ == "__main__":
    json.dump(search(sys.argv[1], float(sys.argv[2])), sys.stdout)
