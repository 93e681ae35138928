"""What rows of units stand for: the cause `job:9 restart, after 2 stop 1 start` is of all. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from opdbus.settings.parsing import decimal

# the job or the exit; what happened before, how often; and how it went
_PARTS: Final = re.compile(r"(job:\d+[^,]*|exit(?::[^,]*)?)(?:, after ([^,]*))?(.*)", re.DOTALL)

# A service ended so often that systemd does not start it any more.
GAVE_UP: Final = "exit:start limit"


def act(cause: str) -> str:
    """Return what was done, such as restart; empty where a cause is neither a job nor an exit."""
    parts = _PARTS.fullmatch(cause)
    if not parts or parts[1].startswith("job:"):
        return "".join(parts[1].split()[1:2]) if parts else ""
    return "exit"


def others(cause: str) -> Mapping[str, int]:
    """Return what happened before that has no row of its own, and how often."""
    parts = _PARTS.fullmatch(cause)
    words = (parts[2] or "").split() if parts else []
    counts = ((word, decimal(n)) for n, word in zip(words[::2], words[1::2], strict=False))
    return {word: count for word, count in counts if count is not None}


def ended_by(cause: str) -> str:
    """Return what ended a unit, exit or stop, that a start made what it was; empty without."""
    before = others(cause) if act(cause) == "start" else {}
    return next((word for word in ("exit", "stop") if word in before), "")


def alone(cause: str) -> str:
    """Return the cause without what happened before."""
    parts = _PARTS.fullmatch(cause)
    return parts[1] + parts[3] if parts else cause


def joined(before: str, count: int, after: str) -> str:
    """Return the cause of a row for what had one cause and, later, another.

    The first stands for `count` changes. How often its own job was done is what `others` lack.
    """
    parts = _PARTS.fullmatch(after)
    if not parts:
        return after or before
    counts = dict(others(before))
    did = act(before) or "change"
    counts[did] = counts.get(did, 0) + max(0, count - sum(counts.values()))
    for word, number in others(after).items():
        counts[word] = counts.get(word, 0) + number
    told = " ".join(f"{n} {word}" for word, n in counts.items() if n and word != act(after))
    return f"{parts[1]}, after {told}{parts[3]}" if told else alone(after)


def is_step(before: str, after: str) -> bool:
    """Return whether what has a cause only goes on with what a job did before."""
    number = before.partition(" ")[0]
    return number.startswith("job:") and after.partition(" ")[0] in {"", number}
