"""The names of services and users that belong to open ports."""

import pwd
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from opdbus.observe.documents import Port, ports
from opdbus.observe.reading import text_of

_MAX_BYTES: Final = 4 << 20
_UNKNOWN: Final = Port("", "")
# The number of a port and its protocol, `tcp` or `udp`.
Key = tuple[int, str]


class ServiceNames:
    """What /etc/services says of ports; it is read again only for a port that is new."""

    def __init__(self, file: Path = Path("/etc/services")) -> None:
        self._file = file
        self._names: dict[Key, Port] = {}

    def find(self, wanted: Collection[Key]) -> Mapping[Key, Port]:
        """Return the service of each port, nameless where it has none."""
        if not self._names.keys() >= set(wanted):
            found = ports(text_of(self._file, _MAX_BYTES))
            self._names = {key: found.get(key, _UNKNOWN) for key in wanted}
        return self._names


def user_name(uid: int) -> str:
    """Return a user's name; the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)
