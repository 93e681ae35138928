"""Checkpoints from the journal that the service itself wrote."""

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from opdbus.errors import OpDbusError
from opdbus.history import checkpoint
from opdbus.history.checkpoint import Checkpoint
from opdbus.platform import journal
from opdbus.platform.lines import split_lines, strip_blanks

_FIELDS: Final = f"{checkpoint.FIELD},{checkpoint.FIRST_FIELD}"


class NoWitness(OpDbusError):
    """The journal cannot be read."""


def command(uid: int, unit: str, place: Path | None = None) -> list[str]:
    """Return the command that reads the entries, selected by fields that only journald sets.

    Anybody may write entries with our fields: only those count that a process of this user wrote in
    the control group of this unit.
    """
    where = [f"--{'directory' if place.is_dir() else 'file'}={place}"] if place else []
    trusted = [f"_UID={uid}", f"_SYSTEMD_UNIT={unit}"]
    ours = f"MESSAGE_ID={journal.MESSAGE_IDS['history checkpoint']}"
    shown = ["--output=json", f"--output-fields={_FIELDS}", "--all", "--no-pager"]
    return ["journalctl", *where, *shown, *trusted, ours]


def checkpoints(arguments: Sequence[str]) -> list[Checkpoint]:
    """Run the command and return the checkpoints; raise NoWitness if there is no access."""
    try:
        done = subprocess.run(  # noqa: S603 -- our own arguments
            arguments, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise NoWitness(f"there is no journal to ask: {error.strerror}") from None
    found = list(parsed(filter(None, done.stdout.split(b"\n"))))
    said = strip_blanks(done.stderr.decode(errors="replace"))
    # journalctl prints what it may read, and only hints at the rest
    if not found and (done.returncode or "Hint:" in said):
        reason = split_lines(said)[-1] if said else f"journalctl ended with {done.returncode}"
        raise NoWitness(f"the journal cannot be read by this user, try root: {reason}")
    return found


def parsed(lines: Iterable[bytes]) -> Iterator[Checkpoint]:
    """Yield the checkpoints in lines of `journalctl --output=json`."""
    for line in lines:
        entry: dict[str, Any] = json.loads(line)
        text, first = (entry.get(name) for name in _FIELDS.split(","))
        at = int(entry["__REALTIME_TIMESTAMP"])
        # a repeated field is a list; we never write that
        if isinstance(text, str):
            found = checkpoint.read(text, at, first if isinstance(first, str) else "")
            if found:
                yield found
