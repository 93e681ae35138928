"""Adds 192.0.2.77/32 to the loopback interface, or deletes it: `address.py add|del|link`.

`link` only lets the interface be up, as on any host. Hosts need not have the program `ip`.
"""

import fcntl
import socket
import struct
import sys

# linux/rtnetlink.h, linux/netlink.h, linux/if.h, linux/sockios.h
_NEW_ADDRESS, _DELETE_ADDRESS, _LOCAL = 20, 21, 2
_REQUEST, _ACKNOWLEDGE, _CREATE, _EXCLUSIVE = 1, 4, 0x400, 0x200
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1


def link_up() -> None:
    """Let the loopback interface be up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack("16xH14x", fcntl.ioctl(plain, _GET_FLAGS, request))
        fcntl.ioctl(plain, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP))


def change(kind: int, flags: int) -> None:
    """Add or delete the address, and wait for the kernel's answer; raises OSError."""
    address = socket.inet_aton("192.0.2.77")
    message = struct.pack("BBBBi", socket.AF_INET, 32, 0, 0, socket.if_nametoindex("lo"))
    message += struct.pack("HH4s", 8, _LOCAL, address)
    header = struct.pack("iHHii", 16 + len(message), kind, flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.send(header + message)
        (fault,) = struct.unpack("i", kernel.recv(4096)[16:20])
    if fault:
        raise OSError(-fault, "the kernel refuses the address")


if sys.argv[1] == "link":
    link_up()
elif sys.argv[1] == "add":
    change(_NEW_ADDRESS, _REQUEST | _ACKNOWLEDGE | _CREATE | _EXCLUSIVE)
else:
    change(_DELETE_ADDRESS, _REQUEST | _ACKNOWLEDGE)
