"""The names of services that belong to open ports."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from opdbus.observe.core.file_reading import text_of
from opdbus.observe.core.lookup_cache import LookupCache
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.packages.documents import Port, ports

_MAX_BYTES: Final = 4 << 20
_UNKNOWN: Final = Port("", "")
# The number of a port and its protocol, `tcp` or `udp`.
Key = tuple[int, str]


class ServiceNames:
    """Names of ports from /etc/services, read again only for a new port."""

    def __init__(self, file: Path = Path("/etc/services")) -> None:
        self._file = file
        self._names = LookupCache[Key, Port](_UNKNOWN)
        # of the newest reading
        self.skipped = Skipped()

    def find(self, wanted: Collection[Key]) -> Mapping[Key, Port]:
        """Return the service of each port, nameless where it has none."""
        if self._names.lacks(wanted):
            self.skipped = Skipped()
            text = text_of(self._file, _MAX_BYTES, self.skipped)
            self._names.learn(wanted, ports(text, self._file, self.skipped))
        return self._names
