"""Identities, in which any two hosts differ: addresses, serial numbers, ids, times. Pure.

Comparisons leave it out. opdbus.masked in the schema has the same rule for digests of states.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from opdbus.state.object import Json

# Keys whose values name one machine, disk, run or person's key.
_KEYS: Final = re.compile(
    r"(?:.*[^a-z])?(?:mac|mac_address|hwaddr|uuid|UUID|guid|serial|wwn|inode|machine_id|boot_id"
    r"|invocation_id|fingerprint)"
)
_VALUES: Final = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b"
    r"|(?<![0-9.])(?!0\.0\.0\.0|127\.)[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![0-9.])(?:/[0-9]{1,2}\b)?"
    r"|\b(?:fe80|fd[0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-f]{0,4}){2,7}(?:/[0-9]{1,3}\b)?"
    r"|\b[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
    r"(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_LABEL: Final = re.compile(r"[\w-]+")
# In names only: a digest, an id or a number that begins or ends a word.
_NAMES: Final = re.compile(r"\b[0-9a-f]{12,}\b|[0-9]+")


def is_identity(key: str) -> bool:
    """Return whether a field's last key names a machine, a disk, a run or a key."""
    return bool(_KEYS.fullmatch(key))


def mask(text: str, names: Sequence[str] = ()) -> str:
    """Return a text with * for addresses, ids and times, and for the given names of the host."""
    text = _VALUES.sub("*", text)
    if not names:
        return text
    # what follows a dot is a domain, which hosts share
    own = {name.lower().partition(".")[0] for name in names}
    return _LABEL.sub(lambda match: "*" if match[0].lower() in own else match[0], text)


def mask_name(name: str, names: Sequence[str] = ()) -> str:
    """Return an object's name with * for all that may number or identify it."""
    return _NAMES.sub("*", mask(name, names))


def telling_values(state: Mapping[str, Json], path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield (dotted path, value) of a state, a list as one value, without identities."""
    for key, value in state.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value:
            yield from telling_values(value, here)
        elif not is_identity(key):
            yield here, value


def same_values(key: str, values: tuple[str, str], names: Sequence[Sequence[str]]) -> bool:
    """Return whether two values as JSON differ at most in identities; `names` are those of each."""
    one, other = values
    if one == other:
        return True
    # a version may look like an address
    if key.endswith("ersion"):
        return False
    return mask(one, names[0]) == mask(other, names[1])
