"""A connection to a message bus, which sends and receives calls, replies and signals."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, Self

from opdbus.bus.transport import frames
from opdbus.bus.transport.library import Message, MessageType, decode, encode
from opdbus.bus.transport.message_socket import (
    READ_SECONDS,
    Frame,
    MessageSocket,
    Written,
    connect,
    transports,
)
from opdbus.bus.transport.messages import (
    Call,
    Outgoing,
    decode_frame,
    new_call,
    new_error,
    new_reply,
    new_signal,
)
from opdbus.bus.transport.values import UNFIT, Plain, from_wire, take_descriptors
from opdbus.errors import BusError, InvalidArgs
from opdbus.platform.tasks import at_most

_BUS: Final = "org.freedesktop.DBus"
_BUS_PATH: Final = "/org/freedesktop/DBus"
_PEER: Final = "org.freedesktop.DBus.Peer"
_CONNECT_SECONDS: Final = 10.0
# Seconds for the bus to answer a call to itself, which it does at once.
_ASK_SECONDS: Final = 1.0
# Seconds for the bus to accept pending messages when the connection is closed.
_FLUSH_SECONDS: Final = 1.0
# Flag and results of RequestName (D-Bus specification).
_DO_NOT_QUEUE: Final = 4
_PRIMARY_OWNER: Final = 1
_ALREADY_OWNER: Final = 4
_MAX_SERIAL: Final = (1 << 32) - 1
# The largest message of any bus.
_UNLIMITED: Final = 1 << 27
# Larger replies are decoded on a thread: 3 MB of rows take 0.1 s.
_LARGE: Final = 64 << 10


class RemoteError(Exception):
    """An error reply: its D-Bus name and text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class Connection:
    """A connection to a message bus; as a context manager, it connects and disconnects.

    `on_call` gets every method call; `on_signal` gets signals that were subscribed to or sent to
    this connection, if `wants_signal` accepts their header and size. Both run on the event loop and
    must not block. Only the header is read of calls and signals larger than `most` bytes, of
    replies larger than `most_of_reply`, and of messages that nothing waits for. It reads for `turn`
    seconds in each turn of the event loop. A value of type `h` is an open file: for sending, any
    object with a `fileno`, which the sender still owns; when received, a Descriptor.
    """

    def __init__(
        self,
        address: str,
        *,
        most: int = _UNLIMITED,
        most_of_reply: int = _UNLIMITED,
        turn: float = READ_SECONDS,
    ) -> None:
        self._address = address
        self._most = most
        self._most_of_reply = most_of_reply
        self._turn = turn
        self._transports = transports(address)
        self.on_call: Callable[[Call], None] | None = None
        self.on_signal: Callable[[Message], None] | None = None
        self.wants_signal: Callable[[frames.Header, int], bool] = lambda _header, _size: True
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._replies: dict[int, asyncio.Future[Frame]] = {}
        # the serial of the last sent message
        self.last_serial = 0
        self.name = ""

    async def __aenter__(self) -> Self:
        """Connect; raise BusError."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                socket = await connect(self._transports)
                self._transport = MessageSocket(socket, self._receive, self._wants, self._turn)
                self._transport.on_lost = self._bus_lost
                try:
                    (self.name,) = await self.call(_BUS, _BUS_PATH, f"{_BUS}.Hello")
                except BaseException:
                    self._transport.close()
                    raise
        except (OSError, RemoteError, ValueError) as error:
            absent = isinstance(error, FileNotFoundError | ConnectionRefusedError)
            why = "there is none" if absent else getattr(error, "strerror", None) or error
            demo = ", or the `make run` that started it," if ":" in self._address else ""
            raise BusError(
                f"cannot reach the message bus {self._address}: {why}; is it{demo} running, and may"
                " this user connect to it?"
            ) from None
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Send pending messages for at most a second, and disconnect."""
        async with at_most(_FLUSH_SECONDS):
            await self.wait_flushed()
        self._transport.close()

    @property
    def unsent(self) -> int:
        """The bytes that the bus has not accepted yet."""
        return self._transport.waiting

    def unsent_to(self, name: str) -> int:
        """Return the unsent bytes for one destination."""
        return self._transport.waiting_for(name)

    async def wait_flushed(self) -> None:
        """Wait until the bus has accepted everything, or is gone."""
        await self._transport.wait_flushed()

    @property
    def is_closed(self) -> bool:
        """True once the connection is gone."""
        return self._closed.done()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone."""
        await asyncio.shield(self._closed)

    async def own(self, name: str) -> None:
        """Acquire a bus name; raise BusError if that is not possible at once."""
        try:
            (answer,) = await self.ask_bus("RequestName", "su", name, _DO_NOT_QUEUE)
        except RemoteError as error:
            raise BusError(f"the bus does not let this user own {name}: {error}") from None
        if answer not in {_PRIMARY_OWNER, _ALREADY_OWNER}:
            raise BusError(
                f"{name} is owned already: another op-dbus serves this bus; stop it, or use another"
                " bus (OP_DBUS_BUS)"
            )

    async def call(
        self,
        destination: str,
        path: str,
        member: str,
        signature: str = "",
        *body: Plain,
        is_interactive: bool = False,
        may_start: bool = True,
    ) -> list[Plain]:
        """Call `interface.method` and return the reply's values without variants.

        `is_interactive` allows an interactive authorization; `may_start` allows the bus to start
        the destination. Raises RemoteError for an error reply, InvalidArgs if the values do not fit
        the signature, BusError if the connection is lost.
        """
        outgoing = new_call(destination, path, member, signature, body)
        if is_interactive:
            outgoing.message.flags |= frames.MAY_INTERACT
        if not may_start:
            outgoing.message.flags |= frames.NO_AUTO_START
        return await _decode_reply(await self._reply_to(outgoing), destination)

    async def reply_in_parts(
        self, outgoing: Outgoing, signature: str, size: int
    ) -> AsyncGenerator[Plain]:
        """Send a call whose reply is one dict of `signature`, and yield the dict in parts.

        Each part has at least `size` bytes, with variants: decoding 20 MB at once would hold the
        GIL for a second. The destination is not started. Raises as `call` does.
        """
        destination, member = outgoing.message.destination, outgoing.message.member
        outgoing.message.flags |= frames.NO_AUTO_START
        frame = await self._reply_to(outgoing)
        if frame.header.signature != signature:
            await _decode_reply(frame, str(destination))
            given = frame.header.signature or "nothing"
            raise BusError(f"{destination} answered {member} with {given}, not {signature}")
        try:
            for part in frames.split_dict(frame.data, size):
                yield decode(part).body[0]
        except Exception as error:  # noqa: BLE001 -- the library's errors vary
            raise BusError(f"the reply of {destination} is damaged: {error}") from None

    async def _reply_to(self, outgoing: Outgoing) -> Frame:
        """Send a call, and wait for its reply; raise InvalidArgs or BusError."""
        if self._closed.done():
            raise BusError("the connection to the message bus is lost")
        try:
            written = self.encode(outgoing)
        except UNFIT as error:
            raise InvalidArgs(f"this cannot be sent over D-Bus: {error}") from None
        reply: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        waited: set[asyncio.Future[Plain]] = {reply, self._closed}
        serial = outgoing.message.serial
        self._replies[serial] = reply
        try:
            self.send(written)
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._replies[serial]
        if not reply.done():
            raise BusError("the connection to the message bus was lost while waiting for a reply")
        frame = reply.result()
        if not frame.is_whole:
            asked = f"{outgoing.message.destination} answered {outgoing.message.member}"
            raise BusError(f"{asked} with {frame.total} bytes: too many")
        return frame

    async def ask_bus(self, member: str, signature: str = "", *body: Plain) -> list[Plain]:
        """Call a method of the bus daemon, and repeat the call after each second without a reply.

        dbus-daemon drops its own replies to a connection whose queue is full of others' messages.
        """
        interface = "" if "." in member else f"{_BUS}."
        while True:
            async with at_most(_ASK_SECONDS):
                return await self.call(_BUS, _BUS_PATH, interface + member, signature, *body)

    async def ping(self, name: str) -> bool:
        """Return whether a client itself answers, with a reply or an error; raise BusError.

        It has read all that was sent to it before.
        """
        outgoing = new_call(name, "/", f"{_PEER}.Ping", "", ())
        # not the next serial: a client could answer what it has not read
        outgoing.message.serial = secrets.randbelow(_MAX_SERIAL) + 1
        return (await self._reply_to(outgoing)).header.sender == name

    async def subscribe(self, rule: str) -> None:
        """Receive the signals that match a rule."""
        await self.ask_bus("AddMatch", "s", rule)

    def reply(self, call: Call, signature: str, body: Sequence[Plain]) -> None:
        """Send the reply to a call; raise ValueError or TypeError if the values do not fit."""
        self.send(self.encode_reply(call, signature, body))

    async def written_apart(self, call: Call, signature: str, body: Sequence[Plain]) -> Written:
        """Encode a large reply on a thread; raise ValueError or TypeError."""
        outgoing = await asyncio.to_thread(new_reply, call, signature, body)
        outgoing.message.serial = self._next_serial()
        return await asyncio.to_thread(_written, outgoing)

    def encode_reply(self, call: Call, signature: str, body: Sequence[Plain]) -> Written:
        """Encode the reply to a call; raise ValueError or TypeError if the values do not fit."""
        return self.encode(new_reply(call, signature, body))

    def send(self, written: Written) -> None:
        """Send an encoded message."""
        self._transport.send(written)

    def send_error(self, destination: str, reply_serial: int, name: str, text: str) -> int:
        """Send an error reply to the call of a serial; return its size in bytes."""
        written = self.encode(new_error(destination, reply_serial, name, text))
        self.send(written)
        return len(written.data)

    def emit(self, path: str, member: str, signature: str, *body: Plain) -> None:
        """Send the signal `interface.name`."""
        self.send(self.encode(new_signal(path, member, signature, body)))

    def encode(self, outgoing: Outgoing) -> Written:
        """Encode a message with its serial or the next one; raise the library's errors."""
        outgoing.message.serial = outgoing.message.serial or self._next_serial()
        return _written(outgoing)

    def _next_serial(self) -> int:
        """Return a serial that no outstanding call has; after the last one, start again at 1."""
        self.last_serial = self.last_serial % _MAX_SERIAL + 1
        while self.last_serial in self._replies:
            self.last_serial = self.last_serial % _MAX_SERIAL + 1
        return self.last_serial

    def _wants(self, header: frames.Header, size: int) -> bool:
        """Return whether to read a whole message of `size` bytes, or only its header."""
        if header.kind == frames.METHOD_CALL:
            return size <= self._most and self.on_call is not None
        if header.kind == frames.SIGNAL:
            is_wanted = self.on_signal is not None and self.wants_signal(header, size)
            return is_wanted and size <= self._most
        return header.reply_serial in self._replies and size <= self._most_of_reply

    def _receive(self, frame: Frame) -> None:
        header = frame.header
        if header.kind == frames.METHOD_CALL and self.on_call:
            self.on_call(Call.of(frame))
        elif header.kind == frames.METHOD_CALL and header.interface == _PEER:
            # a service finds out by it that its replies have been read
            call = Call.of(frame)
            if call.member == "Ping" and call.wants_reply:
                self.reply(call, "", [])
        elif header.kind == frames.SIGNAL:
            if frame.is_whole and self.on_signal:
                # any client may send an invalid one
                try:
                    message = decode_frame(frame)
                except Exception:  # noqa: BLE001 -- the library's errors vary
                    return
                self.on_signal(message)
        elif header.reply_serial in self._replies:
            reply = self._replies[header.reply_serial]
            if not reply.done():
                reply.set_result(frame)
        # unused files are closed now, with the frame

    def _bus_lost(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)


def _written(outgoing: Outgoing) -> Written:
    message, files = outgoing
    return Written(encode(message), files, message.destination or "")


async def _decode_reply(frame: Frame, sender: str) -> list[Plain]:
    """Decode a reply, a large one on a thread; raise RemoteError or BusError."""
    try:
        is_large = frame.total > _LARGE
        name, values = await asyncio.to_thread(_answer, frame) if is_large else _answer(frame)
    except Exception as error:  # noqa: BLE001 -- the library's errors vary
        raise BusError(f"the reply of {sender} is damaged: {error}") from None
    if name:
        raise RemoteError(name, str(values[0]) if values else "")
    return values


def _answer(frame: Frame) -> tuple[str, list[Plain]]:
    """Decode a reply to an error name, empty for none, and values; raise the library's errors."""
    message = decode_frame(frame)
    values = take_descriptors(
        message.signature, list(map(from_wire, message.body)), frame.descriptors
    )
    is_error = message.message_type is MessageType.ERROR
    return message.error_name or "?" if is_error else "", values
