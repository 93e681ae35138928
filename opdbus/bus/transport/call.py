"""A received method call: its header, and its arguments, decoded on first use."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

from opdbus.bus.transport import frames
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.bus.transport.library import decode
from opdbus.bus.transport.message_socket import Frame
from opdbus.bus.transport.values import Plain, from_wire
from opdbus.errors import InvalidArgs

# Larger calls are decoded by `frames.body` on a thread: the library would hold the GIL.
LARGE: Final = 64 << 10
# The body of most calls: an empty dict of options, and the padding before its first entry.
_NO_OPTIONS: Final = "a{sv}", bytes(8)


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
            return frames.body(self.data)
        except ValueError as error:
            raise InvalidArgs(f"the arguments of {self.member} cannot be read: {error}") from None

    def close(self) -> None:
        """Close the files that came with the call."""
        for descriptor in self.descriptors:
            descriptor.close()
