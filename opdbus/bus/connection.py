"""The one module that knows the D-Bus library: connecting, sending, receiving, converting."""

from __future__ import annotations

import asyncio
import math
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from dbus_fast import (
    BusType,
    Message,
    MessageFlag,
    MessageType,
    NameFlag,
    RequestNameReply,
    Variant,
)
from dbus_fast.aio import MessageBus
from dbus_fast.errors import AuthError, InvalidAddressError
from dbus_fast.validators import is_object_path_valid

from opdbus.bus.descriptors import Descriptor
from opdbus.bus.patient import PatientSocket
from opdbus.errors import BusError, InvalidArgs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

# Anything that D-Bus can carry, variants taken out.
Plain: TypeAlias = Any

_BUS: Final = "org.freedesktop.DBus"
_BUS_PATH: Final = "/org/freedesktop/DBus"
_CONNECT_SECONDS: Final = 10.0
# How long a connection that is closed waits for the bus to take what is still to be sent.
_FLUSH_SECONDS: Final = 1.0
# An error's text may quote what the caller sent, and that may be 32 MiB.
MAX_ERROR_CHARACTERS: Final = 2000
# What the library raises for values that do not fit their signature.
_UNFIT: Final = (TypeError, ValueError, OverflowError, AttributeError, struct.error)


@dataclass(frozen=True, slots=True)
class Call:
    """A method call as it came in; `interface` is empty where the caller gave none."""

    sender: str
    path: str
    interface: str
    member: str
    signature: str
    body: Sequence[Plain]
    wants_reply: bool
    message: Message
    # whoever answers the call closes them
    descriptors: Sequence[Descriptor] = ()

    def close(self) -> None:
        """Close the descriptors that came with the call."""
        for descriptor in self.descriptors:
            descriptor.close()


class _Answer(NamedTuple):
    """A reply, and the descriptors that came with it."""

    message: Message
    descriptors: Sequence[Descriptor]


class Typed(NamedTuple):
    """A value that goes into a variant of exactly this type."""

    signature: str
    value: Plain


class RemoteError(Exception):
    """An error reply: its D-Bus name and text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class Connection:
    """A connection to a message bus, a context that disconnects at its end.

    `on_call` gets every method call, `on_signal` the signals that were subscribed to; both are
    called on the event loop and must not block. A value of the type `h` is an open file: one that
    is sent is anything with a `fileno`, which stays its owner's; one that comes is a Descriptor.
    """

    def __init__(self, address: str) -> None:
        self._bus = _bus(address)
        self._address = address
        self.on_call: Callable[[Call], None] | None = None
        self.on_signal: Callable[[Message], None] | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent: asyncio.Future[Plain] | None = None
        # what is sent along stays open until it is sent
        self._sending: dict[asyncio.Future[Plain], Sequence[Descriptor]] = {}
        self._replies: dict[int, asyncio.Future[_Answer]] = {}

    async def __aenter__(self) -> Self:
        """Connect; raises BusError."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._bus.connect()
        except (OSError, AuthError, ValueError, KeyError, TypeError) as error:
            raise BusError(
                f"cannot reach the message bus {self._address}: {error}; is it running, and may"
                " this user connect to it?"
            ) from None
        self._bus.add_message_handler(self._receive)
        self._watch = asyncio.create_task(self._wait_closed())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Send what waits to be sent, and disconnect."""
        if self._sent is not None and not self._closed.done():
            waited: set[asyncio.Future[Plain]] = {self._sent, self._closed}
            await asyncio.wait(waited, timeout=_FLUSH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if self._bus.connected:
            self._bus.disconnect()
        with suppress(asyncio.CancelledError):
            await self._watch

    @property
    def name(self) -> str:
        """The unique name of this connection."""
        return self._bus.unique_name or ""

    async def closed(self) -> None:
        """Wait until the connection is gone."""
        await asyncio.shield(self._closed)

    async def own(self, name: str) -> None:
        """Become the owner of a name at once; raises BusError if that cannot be."""
        try:
            reply = await self._bus.request_name(name, NameFlag.DO_NOT_QUEUE)
        except Exception as error:  # noqa: BLE001 -- the library raises all sorts
            raise BusError(f"the bus does not let this user own {name}: {error}") from None
        if reply is not RequestNameReply.PRIMARY_OWNER:
            raise BusError(
                f"{name} is owned already: another op-dbus serves this bus; stop it, or use another"
                " bus (OP_DBUS_BUS)"
            )

    async def call(
        self, destination: str, path: str, member: str, signature: str = "", *body: Plain
    ) -> list[Plain]:
        """Call `interface.method` and give the reply's values, variants taken out.

        Raises RemoteError with the error reply, InvalidArgs if the values do not fit the
        signature, BusError if the connection is lost.
        """
        message, copies = _call(destination, path, member, signature, body)
        answer, descriptors = await self._answer(message, copies)
        if answer.message_type is MessageType.ERROR:
            text = str(answer.body[0]) if answer.body else ""
            raise RemoteError(answer.error_name or "", text)
        try:
            return received(answer.signature, [from_wire(v) for v in answer.body], descriptors)
        except InvalidArgs as error:
            raise BusError(f"the reply of {destination} is damaged: {error}") from None

    async def _answer(self, message: Message, copies: Sequence[Descriptor]) -> _Answer:
        if self._closed.done():
            raise BusError("the connection to the message bus is lost")
        serial = message.serial = self._bus.next_serial()
        reply: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        waited: set[asyncio.Future[Plain]] = {reply, self._closed}
        self._replies[serial] = reply
        try:
            self._send(message, copies)
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if reply.done():
                return reply.result()
        except _UNFIT as error:
            raise InvalidArgs(f"this cannot be sent over D-Bus: {error}") from None
        finally:
            del self._replies[serial]
        raise BusError("the connection to the message bus was lost while waiting for a reply")

    async def ask_bus(self, member: str, signature: str = "", *body: Plain) -> list[Plain]:
        """Call a method of the bus daemon itself."""
        return await self.call(_BUS, _BUS_PATH, f"{_BUS}.{member}", signature, *body)

    async def subscribe(self, rule: str) -> None:
        """Receive the signals that match a rule."""
        await self.ask_bus("AddMatch", "s", rule)

    def reply(self, call: Call, signature: str, body: Sequence[Plain]) -> None:
        """Answer a call with values; raises ValueError or TypeError if they do not fit."""
        values, copies = _to_send(signature, body)
        message = Message.new_method_return(call.message, signature, values, _numbers(copies))
        self._send(message, copies)

    def reply_error(self, call: Call, name: str, text: str) -> None:
        """Answer a call with an error."""
        sendable = text.replace("\0", " ").encode(errors="replace").decode()
        if len(sendable) > MAX_ERROR_CHARACTERS:
            sendable = sendable[:MAX_ERROR_CHARACTERS] + "..."
        self._send(Message.new_error(call.message, name, sendable), ())

    def emit(self, path: str, member: str, signature: str, *body: Plain) -> None:
        """Send the signal `interface.name`."""
        interface, _, name = member.rpartition(".")
        values, copies = _to_send(signature, body)
        message = Message.new_signal(path, interface, name, signature, values, _numbers(copies))
        self._send(message, copies)

    def _send(self, message: Message, copies: Sequence[Descriptor] = ()) -> None:
        # On a dead connection the descriptor's number may already be somebody else's.
        if not self._closed.done() and self._bus.connected:
            self._sent = self._bus.send(message)
            if copies:
                self._sending[self._sent] = copies
            self._sent.add_done_callback(self._was_sent)

    def _was_sent(self, sent: asyncio.Future[Plain]) -> None:
        self._sending.pop(sent, None)
        if not sent.cancelled():
            # that it failed is told by the end of the connection as well
            sent.exception()

    def _receive(self, message: Message) -> bool:
        descriptors = [Descriptor(number) for number in message.unix_fds]
        if message.message_type is MessageType.METHOD_CALL and self.on_call:
            self.on_call(_taken(message, descriptors))
            return True
        if message.message_type is MessageType.SIGNAL and self.on_signal:
            self.on_signal(message)
        reply = self._replies.get(message.reply_serial or 0)
        if reply and not reply.done():
            reply.set_result(_Answer(message, descriptors))
            return True
        for descriptor in descriptors:
            descriptor.close()
        return False

    async def _wait_closed(self) -> None:
        with suppress(Exception):  # why it was lost is of no use: it is gone
            await self._bus.wait_for_disconnect()  # type: ignore[no-untyped-call]
        self._sending.clear()
        if not self._closed.done():
            self._closed.set_result(None)


class _Bus(MessageBus):
    """The library's connection, on a socket of ours."""

    @staticmethod
    def _create_socket_for_transport(transport: str, options: dict[str, str]) -> Plain:
        plain, stream, address = MessageBus._create_socket_for_transport(transport, options)
        stream.close()
        patient = PatientSocket(fileno=plain.detach())
        return patient, patient.makefile("rwb"), address


def _taken(message: Message, descriptors: Sequence[Descriptor]) -> Call:
    return Call(
        sender=message.sender or "",
        path=message.path or "",
        interface=message.interface or "",
        member=message.member or "",
        signature=message.signature,
        body=[from_wire(value) for value in message.body],
        wants_reply=not message.flags & MessageFlag.NO_REPLY_EXPECTED,
        message=message,
        descriptors=descriptors,
    )


def _call(
    destination: str, path: str, member: str, signature: str, body: Sequence[Plain]
) -> tuple[Message, Sequence[Descriptor]]:
    interface, _, method = member.rpartition(".")
    try:
        _require_sendable(list(zip(split(signature), body, strict=True)))
        values, copies = _to_send(signature, body)
        message = Message(
            destination=destination,
            path=path,
            interface=interface or None,
            member=method,
            signature=signature,
            body=values,
            unix_fds=_numbers(copies),
        )
    except _UNFIT as error:
        raise InvalidArgs(f"this cannot be sent over D-Bus: {error}") from None
    return message, copies


def _to_send(signature: str, body: Sequence[Plain]) -> tuple[list[Plain], list[Descriptor]]:
    """Give values as the library takes them, and copies of the open files among them."""
    values: list[Plain] = []
    copies: list[Descriptor] = []
    for kind, value in zip(split(signature), body, strict=True):
        if kind == "h":
            values.append(len(copies))
            copies.append(Descriptor.copy_of(value))
        else:
            values.append(to_wire(kind, value))
    return values, copies


def _numbers(descriptors: Sequence[Descriptor]) -> list[int]:
    return [descriptor.fileno() for descriptor in descriptors]


def _require_sendable(values: Sequence[tuple[str, Plain]]) -> None:
    """Raise ValueError for what the library would send and the bus end the connection for."""
    for signature, value in values:
        if signature == "o" and not is_object_path_valid(value):
            raise ValueError(f"{value!r} is not an object path")
        if isinstance(value, str) and "\0" in value:
            raise ValueError("a string holds a NUL character")
        inner = signature[1:] if signature == "ao" else ""
        if isinstance(value, dict):
            _require_sendable([("", item) for item in (*value, *value.values())])
        elif isinstance(value, list | tuple):
            _require_sendable([(inner, item) for item in value])


def _bus(address: str) -> MessageBus:
    try:
        if address in {"system", "session"}:
            kind = BusType.SYSTEM if address == "system" else BusType.SESSION
            return _Bus(bus_type=kind, negotiate_unix_fd=True)
        return _Bus(bus_address=address, negotiate_unix_fd=True)
    except (InvalidAddressError, ValueError) as error:
        raise BusError(f"{address} is not the address of a message bus: {error}") from None


def split(signature: str) -> list[str]:
    """Split a signature into single complete types: `sa{sv}` into `s` and `a{sv}`."""
    types, start, depth = [], 0, 0
    for index, code in enumerate(signature):
        depth += (code in "({") - (code in ")}")
        if depth == 0 and code != "a":
            types.append(signature[start : index + 1])
            start = index + 1
    return types


def received(
    signature: str, body: Sequence[Plain], descriptors: Sequence[Descriptor]
) -> list[Plain]:
    """Put descriptors where a message's values name them by index; raises InvalidArgs."""
    values = list(body)
    for place, kind in enumerate(split(signature)):
        if kind != "h":
            continue
        if not values[place] < len(descriptors):
            raise InvalidArgs(
                f"argument {place + 1} names the descriptor {values[place]}, counted from 0, of the"
                f" {len(descriptors)} that came with the message"
            )
        values[place] = descriptors[values[place]]
    return values


def from_wire(value: Plain) -> Plain:
    """Take the variants out of a received value."""
    if isinstance(value, Variant):
        return from_wire(value.value)
    if isinstance(value, list | tuple):
        return [from_wire(item) for item in value]
    if isinstance(value, dict):
        return {from_wire(key): from_wire(item) for key, item in value.items()}
    return value


def to_wire(signature: str, value: Plain) -> Plain:
    """Put variants into a value where its signature has them."""
    if "v" not in signature:
        return value
    if signature == "v":
        return variant(value)
    if signature.startswith("a{"):
        key, item = split(signature[2:-1])
        return {to_wire(key, k): to_wire(item, v) for k, v in value.items()}
    if signature.startswith("a"):
        return [to_wire(signature[1:], item) for item in value]
    types = split(signature[1:-1])
    return [to_wire(s, item) for s, item in zip(types, value, strict=True)]


def variant(value: Plain) -> Variant:
    """Make a variant of the type that a Python value has; raises InvalidArgs if it has none."""
    signature, value = value if isinstance(value, Typed) else (_signature_of(value), value)
    return Variant(signature, to_wire(signature, value))


def _signature_of(value: Plain) -> str:
    if isinstance(value, bool):
        return "b"
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise InvalidArgs(f"the number {value} does not fit into 64 bits: give it as a string")
        return "x" if value < 1 << 63 else "t"
    if isinstance(value, float) and math.isfinite(value):
        return "d"
    if isinstance(value, str):
        return "s"
    if isinstance(value, bytes):
        return "ay"
    if isinstance(value, dict):
        return "a{sv}"
    if isinstance(value, list | tuple):
        return "as" if value and all(isinstance(item, str) for item in value) else "av"
    raise InvalidArgs(f"{value!r} cannot be sent over D-Bus: it has no such type")
