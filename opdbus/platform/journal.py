"""Client of systemd's journal; sends from a thread, so that a stalled journal blocks no caller."""

import fcntl
import socket
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from opdbus.platform.thread_queue import ThreadQueue

IDENTIFIER: Final = "op-dbus"
SOCKET: Final = Path("/run/systemd/journal/socket")
# Entries queued for a stalled journal; further ones are dropped and counted.
MAX_WAITING: Final = 1000
# The longest field: an entry with several of these still fits into a datagram.
MAX_FIELD_BYTES: Final = 16 << 10
_FLUSH_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.005

# Ids of the main events, each explained in systemd/op-dbus.catalog.
MESSAGE_IDS: Final = {
    "serving": "e3825c6713004b6a89d0770d1e342618",
    "model proven": "97eb370f9b7543d3874391b49b12fe2f",
    "provider refused": "5bdb38d31ba54d8594805d39eb5d54a1",
    "provider lost": "7c120eedbece4b54854ab8abebc0a66a",
    "no provider left": "7b6009569d3e41c1920aeacf451d7136",
    "state file read": "924a7af410124b00b5b244b198619bbc",
    "state file refused": "1647fc15c6fb49a49237ae02bacb9be7",
    "reloading": "33b2fca811e340fe98cc44d4335dc862",
    "settings not reloaded": "673249e91b1d4b71abb579291490ed61",
    "store rebuilt": "573ed8520af74ffa9cce1b3ae3ac93e1",
    "store cannot be written": "186eddbe950d4de68404137fb2a92c2a",
    "history checkpoint": "7a47d99329155be956378751971671a0",
    "bus lost": "164a50dd5dc34fbab6b1edabd2ab0b9a",
    "caller limited": "5000e4061c2140a6b85f4ebe17d5a6df",
    "access denied": "03589cc8ea21452c9e77644dc11536a0",
    "failed": "5e8a120e09e94e15a156da21339df9ac",
    "stopping": "48c54991a9054ddb8cbc434f2d2beb10",
}


class Journal:
    """Sender of entries by the journal's native protocol: in order, without blocking the caller.

    sd_journal_send(3) of systemd-python holds Python's lock while the journal does not read, and so
    blocks the whole daemon.
    """

    def __init__(self, path: Path = SOCKET) -> None:
        self._path = path
        self._entries: ThreadQueue[bytes] = ThreadQueue("journal", MAX_WAITING, self._run)
        self._entries.start()

    def send(self, fields: Mapping[str, str]) -> None:
        """Queue an entry; the names of its fields are in capitals."""
        self._entries.put(encode(fields))

    def close(self) -> None:
        """Send the queued entries and end the thread; waits a few seconds at most.

        The process must not exit before the journal has read them: the journal finds the unit of an
        entry by /proc, and `journalctl -u op-dbus` would not show the last entries.
        """
        self._entries.close(_FLUSH_SECONDS)

    def _run(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            while (entry := self._entries.get()) is not None:
                self._deliver(sender, entry)
            end = time.monotonic() + _FLUSH_SECONDS
            # SIOCOUTQ of unix(7): datagrams that the receiver has not read
            while time.monotonic() < end and any(fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4))):
                time.sleep(_LOOK_SECONDS)

    def _deliver(self, sender: socket.socket, entry: bytes) -> None:
        lost, self._entries.lost = self._entries.lost, 0
        try:
            if lost:
                fields = {
                    "MESSAGE": f"log lines lost count={lost}",
                    "PRIORITY": "4",
                    "SYSLOG_IDENTIFIER": IDENTIFIER,
                    "OPDBUS_EVENT": "log_lines_lost",
                    "OPDBUS_COUNT": str(lost),
                }
                sender.sendto(encode(fields), str(self._path))
            sender.sendto(entry, str(self._path))
        except OSError:
            # reported to the journal with the next entry that it accepts
            self._entries.lost += lost + 1


def encode(fields: Mapping[str, str]) -> bytes:
    """Encode an entry of the native protocol; a value cannot end its field or begin another."""
    parts = []
    for name, text in fields.items():
        value = text.encode(errors="backslashreplace").replace(b"\0", b"\\0")[:MAX_FIELD_BYTES]
        if b"\n" in value:
            parts.append(b"%s\n%s%s\n" % (name.encode(), len(value).to_bytes(8, "little"), value))
        else:
            parts.append(b"%s=%s\n" % (name.encode(), value))
    return b"".join(parts)
