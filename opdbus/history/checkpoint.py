"""Checkpoints: the root of history at a moment, as three lines of text in the journal.

The format is C2SP's tlog-checkpoint: the origin, the number of rows, the root of the tree.
"""

import base64
import binascii
import hmac
import re
from typing import Final, NamedTuple

from opdbus.history.chain import Head
from opdbus.settings.parsing import decimal

FIELD: Final = "OPDBUS_CHECKPOINT"
# The first row that is kept from then on: earlier rows are pruned, and may be missing.
FIRST_FIELD: Final = "OPDBUS_FIRST"
_APPLICATION: Final = bytes.fromhex("8837585d420357e3ec4fcbd29752ea6f")
_MACHINE: Final = re.compile("[0-9a-f]{32}")
_HASH_BYTES: Final = 32


class Checkpoint(NamedTuple):
    """The root over the first `size` rows, logged `at` microseconds since 1970.

    `first` is the first row that was kept then.
    """

    size: int
    root: bytes
    at: int
    first: int


def origin(machine_id: str) -> str:
    """Return the name of a machine's history, from which its id cannot be computed.

    See machine-id(5).
    """
    if not _MACHINE.fullmatch(machine_id.strip()):
        return "op-dbus/unknown"
    machine = bytes.fromhex(machine_id.strip())
    # as sd_id128_get_machine_app_specific(3) does
    made = bytearray(hmac.digest(machine, _APPLICATION, "sha256")[:16])
    made[6] = made[6] & 0x0F | 0x40
    made[8] = made[8] & 0x3F | 0x80
    return f"op-dbus/{made.hex()}"


def text_of(head: Head, origin: str) -> str:
    """Return the checkpoint of a chain with this end."""
    return f"{origin}\n{head.seq}\n{base64.b64encode(head.root()).decode()}\n"


def read(text: str, at: int, first: str = "") -> Checkpoint | None:
    """Parse a checkpoint; return None if `text_of` cannot have written it."""
    name, size, root, *rest = [*text.split("\n"), "", ""]
    try:
        data = base64.b64decode(root, validate=True)
    except binascii.Error:
        return None
    is_one = name.startswith("op-dbus/") and not any(rest) and len(data) == _HASH_BYTES
    rows, begin = decimal(size), decimal(first)
    if not is_one or rows is None:
        return None
    return Checkpoint(rows, data, at, 1 if begin is None else begin)
