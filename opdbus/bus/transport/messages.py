"""Messages of the D-Bus library: made from values, and decoded from frames."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from opdbus.bus.transport import frames
from opdbus.bus.transport.call import Call
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.bus.transport.library import Message, MessageType, decode, encode
from opdbus.bus.transport.message_socket import Frame
from opdbus.bus.transport.values import (
    UNFIT,
    Plain,
    Typed,
    require_sendable,
    split,
    to_wire,
    variant,
)
from opdbus.errors import InvalidArgs

# Error texts may quote the caller's values, which may be large.
MAX_ERROR_CHARACTERS: Final = 2000


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


def entry(name: str, value: Typed) -> bytes:
    """Encode an entry of an `a{sv}`; raise the library's errors if it does not fit."""
    body = [{name: variant(value)}]
    message = Message(
        message_type=MessageType.METHOD_RETURN, reply_serial=1, signature="a{sv}", body=body
    )
    data = encode(message)
    return data[frames.measure(data).header + 8 :]


def new_error(call: Call, name: str, text: str) -> Outgoing:
    """Make an error reply; characters that cannot be sent are replaced, and long texts cut."""
    sendable = text.replace("\0", " ").encode(errors="replace").decode()
    if len(sendable) > MAX_ERROR_CHARACTERS:
        sendable = sendable[:MAX_ERROR_CHARACTERS] + "..."
    message = Message(
        message_type=MessageType.ERROR,
        destination=call.sender,
        reply_serial=call.serial,
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


def decoded(frame: Frame) -> Message:
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
