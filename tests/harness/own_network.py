"""A network namespace of a test's own, in which the kernel's answers are real."""

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_CLONE_NEWNET = 0x40000000


class Network:
    """A namespace that lives as long as its descriptor is open."""

    def __init__(self) -> None:
        self.descriptor = self.inside(lambda: os.open("/proc/thread-self/ns/net", os.O_RDONLY))

    def inside(self, make: Callable[[], Any]) -> Any:
        """Return what a function returns in the namespace, such as a socket, which stays in it."""
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(self._enter(make)))
        thread.start()
        thread.join()
        (result,) = results
        if isinstance(result, OSError):
            raise result
        return result

    def _enter(self, make: Callable[[], Any]) -> Any:
        libc = ctypes.CDLL(None, use_errno=True)
        known = hasattr(self, "descriptor")
        failed = (
            libc.setns(self.descriptor, _CLONE_NEWNET) if known else libc.unshare(_CLONE_NEWNET)
        )
        return OSError(ctypes.get_errno(), "no namespace") if failed else make()

    def ip(self, *arguments: str) -> None:
        """Change the namespace with the program `ip`."""
        path = f"/proc/self/fd/{self.descriptor}"
        subprocess.run(
            ["nsenter", f"--net={path}", "ip", *arguments], check=True, pass_fds=[self.descriptor]
        )

    def set(self, name: str, value: str) -> None:
        """Change a setting of the namespace."""
        path = Path("/proc/sys", name.replace(".", "/"))
        self.inside(lambda: path.write_text(value))

    def netlink(self, protocol: int, groups: int = 0) -> socket.socket:
        """Open a socket as systemd does."""

        def make() -> socket.socket:
            opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
            opened.bind((0, groups))
            return opened

        found = self.inside(make)
        assert isinstance(found, socket.socket)
        return found


@contextmanager
def own_network() -> Iterator[Network]:
    """Make a namespace; skips where that is not allowed."""
    if not shutil.which("ip"):
        pytest.skip("there is no ip: `apt install iproute2`")
    try:
        network = Network()
    except OSError as error:
        pytest.skip(f"a network namespace needs root: {error}")
    try:
        network.ip("link", "set", "lo", "up")
        yield network
    finally:
        os.close(network.descriptor)
