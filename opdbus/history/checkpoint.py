"""Checkpoints: the end of history at a moment, as three lines of text in the journal.

The lines are the origin, the number of rows, and the hash of the last row. They are read back from
the journal, where the service itself wrote them.
"""

import base64
import binascii
import hmac
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from opdbus.errors import OpDbusError
from opdbus.history.hash_chain import Head
from opdbus.platform import journal
from opdbus.platform.lines import split_lines, strip_blanks
from opdbus.settings.parsing import decimal

FIELD: Final = "OPDBUS_CHECKPOINT"
# The first row that is kept from then on: earlier rows are pruned, and may be missing.
FIRST_FIELD: Final = "OPDBUS_FIRST"
_APPLICATION: Final = bytes.fromhex("8837585d420357e3ec4fcbd29752ea6f")
_MACHINE: Final = re.compile("[0-9a-f]{32}")
_HASH_BYTES: Final = 32
_FIELDS: Final = f"{FIELD},{FIRST_FIELD}"


class Checkpoint(NamedTuple):
    """The hash of row `size`, the last one, logged `at` microseconds since 1970.

    `first` is the first row that was kept then.
    """

    size: int
    hash: bytes
    at: int
    first: int


def origin(machine_id: str) -> str:
    """Return the name of a machine's history, from which its id cannot be computed.

    See machine-id(5).
    """
    if not _MACHINE.fullmatch(strip_blanks(machine_id)):
        return "op-dbus/unknown"
    machine = bytes.fromhex(strip_blanks(machine_id))
    # as sd_id128_get_machine_app_specific(3) does
    made = bytearray(hmac.digest(machine, _APPLICATION, "sha256")[:16])
    made[6] = made[6] & 0x0F | 0x40
    made[8] = made[8] & 0x3F | 0x80
    return f"op-dbus/{made.hex()}"


def text_of(head: Head, origin: str) -> str:
    """Return the checkpoint of a chain with this end."""
    return f"{origin}\n{head.seq}\n{base64.b64encode(head.hash).decode()}\n"


def parse(text: str, at: int, first: str = "") -> Checkpoint | None:
    """Parse a checkpoint; return None if `text_of` cannot have written it."""
    name, size, last_hash, *rest = [*text.split("\n"), "", ""]
    try:
        data = base64.b64decode(last_hash, validate=True)
    except binascii.Error:
        return None
    is_one = name.startswith("op-dbus/") and not any(rest) and len(data) == _HASH_BYTES
    rows, begin = decimal(size), decimal(first)
    if not is_one or rows is None:
        return None
    return Checkpoint(rows, data, at, 1 if begin is None else begin)


class NoWitness(OpDbusError):
    """The journal cannot be read."""


def journal_command(uid: int, unit: str, place: Path | None = None) -> list[str]:
    """Return the command that reads the entries, selected by fields that only journald sets.

    Anybody may write entries with our fields: only those count that a process of this user wrote in
    the control group of this unit.
    """
    where = [f"--{'directory' if place.is_dir() else 'file'}={place}"] if place else []
    trusted = [f"_UID={uid}", f"_SYSTEMD_UNIT={unit}"]
    ours = f"MESSAGE_ID={journal.MESSAGE_IDS['history checkpoint']}"
    shown = ["--output=json", f"--output-fields={_FIELDS}", "--all", "--no-pager"]
    return ["journalctl", *where, *shown, *trusted, ours]


def read_journal(arguments: Sequence[str]) -> list[Checkpoint]:
    """Run the command and return the checkpoints; raise NoWitness if there is no access."""
    try:
        done = subprocess.run(  # noqa: S603 -- our own arguments
            arguments, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise NoWitness(f"there is no journal to ask: {error.strerror}") from None
    found = list(read_entries(filter(None, done.stdout.split(b"\n"))))
    said = strip_blanks(done.stderr.decode(errors="replace"))
    # journalctl prints what it may read, and only hints at the rest
    if not found and (done.returncode or "Hint:" in said):
        reason = split_lines(said)[-1] if said else f"journalctl ended with {done.returncode}"
        raise NoWitness(f"the journal cannot be read by this user, try root: {reason}")
    return found


def read_entries(lines: Iterable[bytes]) -> Iterator[Checkpoint]:
    """Yield the checkpoints in lines of `journalctl --output=json`."""
    for line in lines:
        entry: dict[str, Any] = json.loads(line)
        text, first = (entry.get(name) for name in _FIELDS.split(","))
        at = int(entry["__REALTIME_TIMESTAMP"])
        # a repeated field is a list; we never write that
        if isinstance(text, str):
            found = parse(text, at, first if isinstance(first, str) else "")
            if found:
                yield found
