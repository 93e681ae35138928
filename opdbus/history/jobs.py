"""Causes of unit changes: a row with `job:9 restart, after 2 stop 1 start` stands for all of them.

Pure functions.
"""

import re
from collections.abc import Mapping
from typing import Final

from opdbus.settings.parsing import decimal

# the job or exit; earlier causes and their counts; the outcome
_PARTS: Final = re.compile(r"(job:\d+[^,]*|exit(?::[^,]*)?)(?:, after ([^,]*))?(.*)", re.DOTALL)

# Acts that end nothing, and those that bring nothing about.
BEGINS: Final = frozenset(("start",))
ENDS: Final = frozenset(("exit", "stop"))
# Ends of processes by the signals that systemd takes for good ends.
CLEAN_ENDS: Final = frozenset(f"exit:SIG{name}" for name in ("HUP", "INT", "PIPE", "TERM"))
# A service that exited so often that systemd does not restart it.
GAVE_UP: Final = "exit:start limit"
# The end of the cause of a job that left its unit failed, as it was.
FAILED: Final = ", failed"


def act(cause: str) -> str:
    """Return the verb of a cause, such as restart, or exit; empty for other causes."""
    parts = _PARTS.fullmatch(cause)
    if not parts or parts[1].startswith("job:"):
        return "".join(parts[1].split()[1:2]) if parts else ""
    return "exit"


def is_routine(cause: str) -> bool:
    """Return whether a timer, socket or path started a unit, which did not fail."""
    return act(cause) == "start" and " by " in alone(cause) and not cause.endswith(FAILED)


def others(cause: str) -> Mapping[str, int]:
    """Return the earlier causes without a row of their own, and their counts."""
    parts = _PARTS.fullmatch(cause)
    words = (parts[2] or "").split() if parts else []
    counts = ((word, decimal(n)) for n, word in zip(words[::2], words[1::2], strict=False))
    return {word: count for word, count in counts if count is not None}


def ended_by(cause: str) -> str:
    """Return the cause that ended a unit before its start, exit or stop; empty if there is none."""
    before = others(cause) if act(cause) == "start" else {}
    return next((word for word in ("exit", "stop") if word in before), "")


def ended_after_start(cause: str) -> str:
    """Return the cause that ended a unit after its start, exit or stop; empty if there is none."""
    return act(cause) if act(cause) in ENDS and "start" in others(cause) else ""


def alone(cause: str) -> str:
    """Return the cause without the earlier ones."""
    parts = _PARTS.fullmatch(cause)
    return parts[1] + parts[3] if parts else cause


def combine(before: str, count: int, after: str) -> str:
    """Return the cause of a row that combines a cause and a later one.

    The first cause stands for `count` changes; `count` less the sum of `others` is the count of its
    own verb.
    """
    parts = _PARTS.fullmatch(after)
    if not parts:
        return after or before
    counts = dict(others(before))
    did = act(before) or "change"
    counts[did] = counts.get(did, 0) + max(0, count - sum(counts.values()))
    for word, number in others(after).items():
        counts[word] = counts.get(word, 0) + number
    earlier = " ".join(f"{n} {word}" for word, n in counts.items() if n and word != act(after))
    return f"{parts[1]}, after {earlier}{parts[3]}" if earlier else alone(after)


def is_step(before: str, after: str) -> bool:
    """Return whether a cause continues the job of the cause before."""
    number = before.partition(" ")[0]
    return number.startswith("job:") and after.partition(" ")[0] in {"", number}
