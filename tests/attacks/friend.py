"""A friendly client, a program of its own: searches all the time, and says how long each took."""

import json
import sys
import time

from fuzz.wire import Wire

from attacks.clients import SEARCH, STATE, until

QUESTIONS = ("who keeps the clock right?", "mail for the office", "what resolves names?")
# A person's program asks often, and not as fast as it can.
_PAUSE_SECONDS = 0.005


def search(address: str, seconds: float) -> tuple[list[float], dict[str, int]]:
    """Search until the time is over; gives seconds of each answer, and errors by name."""
    times: list[float] = []
    errors: dict[str, int] = {}
    with Wire(address) as wire:
        for number in until(seconds):
            began = time.monotonic()
            answer = wire.call(STATE, SEARCH, "sua{sv}", QUESTIONS[number % 3], 10, {})
            times.append(time.monotonic() - began)
            if answer.error:
                errors[answer.error] = errors.get(answer.error, 0) + 1
            time.sleep(_PAUSE_SECONDS)
    return times, errors


if __name__ == "__main__":
    json.dump(search(sys.argv[1], float(sys.argv[2])), sys.stdout)
