"""The journal's end of the socket that log entries go to."""

import select
import socket
from pathlib import Path

from harness.running import PATIENCE_SECONDS


def decode(data: bytes) -> list[tuple[str, str]]:
    """Read an entry as journald does."""
    fields = []
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(data[:8], "little")
            value, end, data = data[8 : 8 + size], data[8 + size : 9 + size], data[9 + size :]
            assert end == b"\n"
        fields.append((name.decode(), value.decode()))
    return fields


class Journald:
    """The other end of the journal's socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(PATIENCE_SECONDS)

    def receive(self) -> dict[str, str]:
        """Wait for an entry."""
        return dict(decode(self._socket.recv(1 << 20)))

    def has_entry(self) -> bool:
        """Return whether an entry waits to be read."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        """Go away."""
        self._socket.close()
