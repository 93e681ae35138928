"""A connection to a message bus by its socket alone, which need not read what it is sent."""

import array
import os
import socket
import time
from collections.abc import Sequence
from typing import Any, Self

from harness import marshal
from harness.marshal import Message

_DBUS = "org.freedesktop.DBus"
# Generous: it only ends what would otherwise never end.
PATIENCE_SECONDS = 60.0


class Gone(Exception):
    """The bus has ended the connection."""


class Silence(Exception):
    """Nothing came in time."""


class Wire:
    """A client of the bus, a context that hangs up at its end."""

    def __init__(self, address: str) -> None:
        self._serial = 0
        self._buffer = bytearray()
        self._held: dict[int, Message] = {}
        self.signals: list[Message] = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect(address.removeprefix("unix:path=").partition(",")[0])
        self._authenticate()
        self.name = str(self.ask_bus("Hello").body()[0])

    def __enter__(self) -> Self:
        """Give the connection, which is there."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self.socket.close()

    def _authenticate(self) -> None:
        uid = str(os.geteuid()).encode().hex()
        self.socket.sendall(f"\0AUTH EXTERNAL {uid}\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n".encode())
        answer = b""
        while answer.count(b"\r\n") < 2:
            if not (more := self.socket.recv(1)):
                raise Gone(answer.decode())
            answer += more

    def serial(self) -> int:
        """Give the next number of a message."""
        self._serial += 1
        return self._serial

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send bytes, and descriptors with the first of them; raises Gone."""
        rest = memoryview(data)
        try:
            if descriptors:
                rights = array.array("i", descriptors)
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                rest = rest[self.socket.sendmsg([rest], ancillary) :]
            self.socket.sendall(rest)
        except TimeoutError:
            raise Silence("the bus takes nothing") from None
        except OSError as error:
            raise Gone(str(error)) from None

    def start(self, path: str, member: str, signature: str = "", *body: Any, flags: int = 0) -> int:
        """Send the call `interface.method` to the daemon, and give its number."""
        interface, _, name = member.rpartition(".")
        fields = marshal.call_fields(path, interface, name, signature)
        serial = self.serial()
        data = marshal.encode(signature, body)
        self.send(marshal.message(fields, data, serial, flags=flags))
        return serial

    def call(self, path: str, member: str, signature: str = "", *body: Any) -> Message:
        """Call a method of the daemon, and give the answer."""
        return self.answer(self.start(path, member, signature, *body))

    def ask_bus(self, member: str, signature: str = "", *body: Any) -> Message:
        """Call a method of the bus daemon itself."""
        fields: dict[int, Any] = {
            marshal.PATH: "/org/freedesktop/DBus",
            marshal.DESTINATION: _DBUS,
            marshal.INTERFACE: _DBUS,
            marshal.MEMBER: member,
        } | ({marshal.SIGNATURE: signature} if signature else {})
        serial = self.serial()
        self.send(marshal.message(fields, marshal.encode(signature, body), serial))
        return self.answer(serial)

    def subscribe(self, rule: str) -> None:
        """Receive the signals that match a rule; they wait in `signals`."""
        self.ask_bus("AddMatch", "s", rule)

    def answer(self, serial: int, seconds: float = PATIENCE_SECONDS) -> Message:
        """Wait for the answer to a call; raises Gone and Silence."""
        end = time.monotonic() + seconds
        while serial not in self._held:
            self._take(self.receive(end - time.monotonic()))
        return self._held.pop(serial)

    def _take(self, message: Message) -> None:
        if message.kind == marshal.SIGNAL:
            self.signals.append(message)
        elif message.kind != marshal.CALL:
            self._held[message.fields[marshal.REPLY_SERIAL]] = message

    def receive(self, seconds: float = PATIENCE_SECONDS) -> Message:
        """Give the next message, whatever it is; its descriptors are closed."""
        end = time.monotonic() + seconds
        self._fill(16, end)
        size = marshal.size_of(bytes(self._buffer[:16]))
        self._fill(size, end)
        message = marshal.decode(bytes(self._buffer[:size]))
        del self._buffer[:size]
        return message

    def _fill(self, size: int, end: float) -> None:
        while len(self._buffer) < size:
            self.socket.settimeout(max(1e-3, end - time.monotonic()))
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 18, 16)
            except TimeoutError:
                raise Silence("nothing came in time") from None
            except OSError as error:
                raise Gone(str(error)) from None
            for number in descriptors:
                os.close(number)
            if not data:
                raise Gone("the bus has hung up")
            self._buffer += data
        self.socket.settimeout(PATIENCE_SECONDS)
