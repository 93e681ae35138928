"""Messages that are broken, forged or cut: the bus ends most, and what passes must do no harm."""

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.running import Running
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzz import files, marshal
from fuzz.calls import objects
from fuzz.drawn import each
from fuzz.health import Health
from fuzz.judge import Tally
from fuzz.shots import Shot, Shots
from fuzz.wire import Gone, Silence, Wire

# How long a broken message's bytes may keep the bus waiting for more of them.
_WAIT_SECONDS = 0.2
_ROUND = 200
_PEER = "org.freedesktop.DBus.Peer"
_FORGED = {marshal.RETURN, marshal.ERROR, marshal.SIGNAL, 5, 255}


def flipped(data: bytes, changes: Sequence[tuple[int, int]]) -> bytes:
    """Change bytes of a message, most of them behind its lengths."""
    out = bytearray(data)
    for place, byte in changes:
        out[place % len(out)] = byte
    return bytes(out)


def forged(kind: int, serial: int, fields: dict[int, Any], body: bytes) -> bytes:
    """Make a message of any kind to the daemon: a reply that nobody waits for, a signal."""
    basic = {marshal.DESTINATION: "org.opdbus", marshal.REPLY_SERIAL: serial}
    return marshal.message(basic | fields, body, serial or 1, kind=kind)


def _message(shot: Shot) -> bytes:
    fields = marshal.call_fields(shot.path, shot.interface, shot.member, shot.signature)
    return marshal.message(fields, marshal.encode(shot.signature, shot.body), 1 << 20)


_CHANGES = st.lists(st.tuples(st.integers(0, 1 << 12), st.integers(0, 255)), min_size=1, max_size=3)
_NAMES = st.sampled_from(["NameOwnerChanged", "Disconnected", "PropertiesChanged", "Changed"])
_INTERFACES = st.sampled_from(["org.freedesktop.DBus", "org.freedesktop.DBus.Local", "a.b"])


def _forgeries() -> SearchStrategy[bytes]:
    fields = st.builds(
        lambda member, interface: {
            marshal.PATH: "/org/freedesktop/DBus",
            marshal.INTERFACE: interface,
            marshal.MEMBER: member,
            marshal.ERROR_NAME: "org.freedesktop.DBus.Error.Failed",
            marshal.SIGNATURE: "sss",
        },
        _NAMES,
        _INTERFACES,
    )
    bodies = st.sampled_from([("org.opdbus", ":1.0", ""), (":1.1", ":1.1", ""), ("", "", "")])
    return st.builds(
        forged,
        st.sampled_from(sorted(_FORGED)),
        st.integers(1, 300),
        fields,
        bodies.map(lambda body: marshal.encode("sss", body)),
    )


def messages(known: Sequence[str]) -> SearchStrategy[bytes]:
    """Give bytes to send: changed calls, forged messages, and calls cut short."""
    plain = Shots(known).any().map(_message)
    changed = st.builds(flipped, plain, _CHANGES)
    cut = st.builds(lambda data, at: data[: at % len(data)], plain, st.integers(1, 1 << 12))
    return st.one_of(changed, changed, changed, _forgeries(), cut)


def _is_unfinished(data: bytes) -> bool:
    """Return whether the bus waits for more bytes, or has ended the connection, after a call."""
    whole = data + marshal.message(marshal.call_fields("/", _PEER, "Ping", ""), b"", 1)
    return marshal.size_of(whole[:16]) > len(whole)


class Mangler:
    """Sends broken messages, each on a connection that may end for it."""

    def __init__(self, daemon: Running, tally: Tally) -> None:
        self._daemon = daemon
        self._tally = tally
        self._health = Health(daemon)
        self._wire = Wire(daemon.bus)
        self.seen: Counter[str] = Counter()

    def send(self, data: bytes) -> None:
        """Send bytes, and see whether the connection outlives them."""
        self.seen["messages"] += 1
        try:
            with files.opened(["memfd"] * (len(data) % 2)) as numbers:
                self._wire.send(data, numbers)
            self._ask(data)
            self.seen["passed"] += 1
        except (Gone, Silence, struct.error) as error:
            self.seen["ended" if isinstance(error, Gone) else "swallowed"] += 1
            self._wire.socket.close()
            self._wire = Wire(self._daemon.bus)
        if self.seen["messages"] % _ROUND == 0:
            self.check(data)

    def _ask(self, before: bytes) -> None:
        """Have a call answered that follows a message; raises Gone and Silence."""
        serial = self._wire.start("/", f"{_PEER}.Ping")
        if _is_unfinished(before):
            raise Silence("the bus takes the call for a part of the message")
        self._wire.answer(serial, _WAIT_SECONDS)

    def check(self, last: bytes = b"") -> None:
        """Look at the daemon's health."""
        for fault in self._health.faults():
            self._tally.fault(f"{fault}\n    after broken messages, the last one {last[:500]!r}")

    def close(self) -> None:
        """Hang up."""
        self._wire.socket.close()
        self._health.close()


def mangle(daemon: Running, tally: Tally, count: int, seed: int) -> Counter[str]:
    """Send so many broken messages, the same ones for the same seed; gives what became of them."""
    mangler = Mangler(daemon, tally)
    try:
        each(messages(objects(daemon)), count, seed, mangler.send)
        mangler.check()
    finally:
        mangler.close()
    return mangler.seen
