"""Messages: received calls, and messages of the D-Bus library made from values and frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Self

from opdbus.bus.transport import frames
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.bus.transport.library import Message, MessageType, decode
from opdbus.bus.transport.message_socket import Frame
from opdbus.bus.transport.values import (
    UNFIT,
    Plain,
    from_wire,
    require_sendable,
    split,
    to_wire,
)
from opdbus.errors import InvalidArgs

# Larger calls are decoded by `frames.decode_body` on a thread: the library would hold the GIL.
LARGE: Final = 64 << 10
# The body of most calls: an empty dict of options, and the padding before its first entry.
_NO_OPTIONS: Final = "a{sv}", bytes(8)

# Error texts may quote the caller's values, which may be large.
MAX_ERROR_CHARACTERS: Final = 2000


@dataclass(frozen=True)
class Call:
    """A received method call; `interface` is empty if the caller gave none.

    Its body is decoded on first use. If the call was larger than the connection accepts, the body
    was not read and `is_whole` is False; `size` counts all its bytes.
    """

    sender: str
    path: str
    interface: str
    member: str
    signature: str
    serial: int
    wants_reply: bool
    # whether the caller allows an interactive authorization
    is_interactive: bool
    size: int
    is_whole: bool
    data: bytes | bytearray
    # whether open files of the call could not be received
    lost_files: bool = False
    # closed by `close`, after the reply
    descriptors: Sequence[Descriptor] = ()

    @classmethod
    def of(cls, frame: Frame) -> Self:
        """Return the call in a frame."""
        header = frame.header
        return cls(
            sender=header.sender,
            path=header.path,
            interface=header.interface,
            member=header.member,
            signature=header.signature,
            serial=header.serial,
            wants_reply=not header.flags & frames.NO_REPLY_EXPECTED,
            is_interactive=bool(header.flags & frames.MAY_INTERACT),
            size=frame.total,
            is_whole=frame.is_whole,
            data=frame.data,
            lost_files=frame.lost_files,
            # files that the signature does not name are closed with the frame
            descriptors=frame.descriptors if "h" in header.signature else (),
        )

    @cached_property
    def values(self) -> list[Plain]:
        """The arguments, with variants; raises InvalidArgs."""
        if (self.signature, self.data[frames.measure(self.data).header :]) == _NO_OPTIONS:
            return [{}]
        try:
            return list(decode(self.data).body)
        except Exception as error:  # noqa: BLE001 -- the library's errors vary
            raise InvalidArgs(f"the arguments of {self.member} cannot be read: {error}") from None

    @cached_property
    def body(self) -> list[Plain]:
        """The arguments, without variants; raises InvalidArgs."""
        if self.size <= LARGE:
            return [from_wire(value) for value in self.values]
        try:
            return frames.decode_body(self.data)
        except ValueError as error:
            raise InvalidArgs(f"the arguments of {self.member} cannot be read: {error}") from None

    def close(self) -> None:
        """Close the files that came with the call."""
        for descriptor in self.descriptors:
            descriptor.close()


class Outgoing(NamedTuple):
    """A message to send, and the open files that go with it."""

    message: Message
    files: Sequence[Descriptor] = ()


def new_call(
    destination: str, path: str, member: str, signature: str, body: Sequence[Plain]
) -> Outgoing:
    """Make a call of `interface.method`; raise InvalidArgs for values that cannot be sent."""
    interface, _, method = member.rpartition(".")
    try:
        require_sendable(list(zip(split(signature), body, strict=True)))
        values, files = _to_send(signature, body)
        message = Message(
            destination=destination,
            path=path,
            interface=interface or None,
            member=method,
            signature=signature,
            body=values,
            unix_fds=_numbers(files),
        )
    except UNFIT as error:
        raise InvalidArgs(f"this cannot be sent over D-Bus: {error}") from None
    return Outgoing(message, files)


def new_reply(call: Call, signature: str, body: Sequence[Plain]) -> Outgoing:
    """Make the reply to a call; raise ValueError or TypeError if the values do not fit."""
    values, files = _to_send(signature, body)
    message = Message(
        message_type=MessageType.METHOD_RETURN,
        destination=call.sender,
        reply_serial=call.serial,
        signature=signature,
        body=values,
        unix_fds=_numbers(files),
    )
    return Outgoing(message, files)


def new_error(destination: str, reply_serial: int, name: str, text: str) -> Outgoing:
    """Make an error reply; characters that cannot be sent are replaced, and long texts cut."""
    sendable = text.replace("\0", " ").encode(errors="replace").decode()
    if len(sendable) > MAX_ERROR_CHARACTERS:
        sendable = sendable[:MAX_ERROR_CHARACTERS] + "..."
    message = Message(
        message_type=MessageType.ERROR,
        destination=destination,
        reply_serial=reply_serial,
        error_name=name,
        signature="s",
        body=[sendable],
    )
    return Outgoing(message)


def new_signal(path: str, member: str, signature: str, body: Sequence[Plain]) -> Outgoing:
    """Make the signal `interface.name`."""
    interface, _, name = member.rpartition(".")
    values, files = _to_send(signature, body)
    message = Message.new_signal(path, interface, name, signature, values, _numbers(files))
    return Outgoing(message, files)


def decode_frame(frame: Frame) -> Message:
    """Decode a frame with its file numbers; raise the library's errors."""
    message = decode(frame.data)
    message.unix_fds = _numbers(frame.descriptors)
    return message


def _to_send(signature: str, body: Sequence[Plain]) -> tuple[list[Plain], list[Descriptor]]:
    """Return values in the library's form, and copies of the open files among them."""
    values: list[Plain] = []
    files: list[Descriptor] = []
    for kind, value in zip(split(signature), body, strict=True):
        if kind == "h":
            values.append(len(files))
            files.append(Descriptor.copy_of(value))
        else:
            values.append(to_wire(kind, value))
    return values, files


def _numbers(files: Sequence[Descriptor]) -> list[int]:
    return [file.fileno() for file in files]
