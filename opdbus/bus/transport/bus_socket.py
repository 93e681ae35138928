"""Connection of a socket to the message bus, with authentication as this process's user."""

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from typing import Final

from opdbus.bus.transport.library import (
    BusType,
    InvalidAddressError,
    get_bus_address,
    parse_address,
)
from opdbus.errors import BusError

_LINE: Final = 1 << 10


def transports(address: str) -> list[tuple[str, dict[str, str]]]:
    """Parse an address, or that of the system or session bus; raise BusError."""
    try:
        if address == "system":
            address = get_bus_address(BusType.SYSTEM)
        elif address == "session":
            address = _session()
        return parse_address(address)
    except (InvalidAddressError, ValueError, KeyError, TypeError) as error:
        raise BusError(f"{address} is not the address of a message bus: {error}") from None


def _session() -> str:
    """Return the address of the session bus; raise BusError if there is no session."""
    try:
        return get_bus_address(BusType.SESSION)
    except (InvalidAddressError, KeyError):
        raise BusError(
            "there is no session bus here, as DBUS_SESSION_BUS_ADDRESS is not set; use the system"
            " bus, or give the address of another one"
        ) from None


async def connect(transports: Sequence[tuple[str, dict[str, str]]]) -> socket.socket:
    """Connect to the first address that answers, and authenticate; raise OSError."""
    fault: OSError = ConnectionError("the address names no Unix socket")
    for kind, options in transports:
        address = options.get("path") or "\0" + options.get("abstract", "")
        if kind != "unix" or address == "\0":
            continue
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(0)
        try:
            await asyncio.get_running_loop().sock_connect(plain, address)
            await _authenticate(plain)
        except OSError as error:
            plain.close()
            fault = error
        except BaseException:
            plain.close()
            raise
        else:
            return plain
    raise fault


async def _authenticate(plain: socket.socket) -> None:
    """Authenticate by the uid that the kernel confirms (SASL EXTERNAL), and enable files."""
    loop = asyncio.get_running_loop()
    uid = str(os.getuid()).encode().hex()
    for line, accepted in (
        (f"\0AUTH EXTERNAL {uid}", b"OK"),
        ("NEGOTIATE_UNIX_FD", b"AGREE_UNIX_FD"),
    ):
        await loop.sock_sendall(plain, f"{line}\r\n".encode())
        answer = await _line(plain)
        if not answer.startswith(accepted):
            raise PermissionError(errno.EACCES, f"the bus answered {answer.decode('latin-1')!r}")
    await loop.sock_sendall(plain, b"BEGIN\r\n")


async def _line(plain: socket.socket) -> bytes:
    """Read one line; the bus sends nothing after it before the next command."""
    line = b""
    while not line.endswith(b"\r\n"):
        data = await asyncio.get_running_loop().sock_recv(plain, _LINE)
        if not data or len(line) > _LINE:
            raise ConnectionError("the bus closed the connection during authentication")
        line += data
    return line[:-2]
