"""A private dbus-broker, which is controlled as its launcher does, without systemd."""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from harness import marshal
from harness.marshal import Variant
from harness.running import Bus

# What the launcher allows a user by default.
_MAX_BYTES = 512 << 20
_LIMITS = {"bytes": _MAX_BYTES, "fds": 4096, "matches": 16384}
_BATCH = "bta(btbs)a(btssssuutt)a(btssssuutt)"
_POLICY = f"(a(u({_BATCH}))a(buu({_BATCH}))a(ss)bs)"
_LISTENER = "/org/bus1/DBus/Listener/0"
_EVERY_USER = (1 << 32) - 1


class Broker:
    """A private dbus-broker with the limits of a system bus; everyone may do everything."""

    def __init__(self) -> None:
        if not shutil.which("dbus-broker"):
            pytest.skip("there is no dbus-broker: `apt install dbus-broker`")
        # not pytest's folder, which other users cannot enter
        self._folder = tempfile.TemporaryDirectory(prefix="op-dbus-broker-")
        path = Path(self._folder.name) / "bus.sock"
        path.parent.chmod(0o755)
        self.address = f"unix:path={path}"
        self._controller, theirs = socket.socketpair()
        limits = [f"--max-{name}={limit}" for name, limit in _LIMITS.items()]
        with theirs, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            path.chmod(0o666)
            listener.listen()
            listener.setblocking(False)  # noqa: FBT003 -- the name of the method says it
            command = ["dbus-broker", f"--controller={theirs.fileno()}", f"--machine-id={1:032x}"]
            self._process = subprocess.Popen([*command, *limits], pass_fds=[theirs.fileno()])
            self._listen(listener)

    def _listen(self, listener: socket.socket) -> None:
        """Give it the socket to listen on, and the policy."""
        uid = str(os.getuid()).encode().hex()
        start = f"\0AUTH EXTERNAL {uid}\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n"
        self._controller.sendall(start.encode())
        answer = b""
        while answer.count(b"\r\n") < 2:
            answer += self._controller.recv(1)
        rules = [(True, 1, "", "", "", "", 0, 0, 0, (1 << 64) - 1)]
        batch = (True, 1, [(True, 1, True, "")], rules, rules)
        policy = Variant(_POLICY, ([(_EVERY_USER, batch)], [], [], False, "system"))
        body = marshal.encode("ohv", (_LISTENER, 0, policy))
        fields = {
            marshal.PATH: "/org/bus1/DBus/Broker",
            marshal.INTERFACE: "org.bus1.DBus.Broker",
            marshal.MEMBER: "AddListener",
            marshal.SIGNATURE: "ohv",
            marshal.UNIX_FDS: 1,
        }
        call = marshal.message(fields, body, 1)
        socket.send_fds(self._controller, [call], [listener.fileno()])
        data = self._controller.recv(1 << 16)
        assert not marshal.decode(data).error, data

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()
        self._controller.close()
        self._folder.cleanup()


BUSES = {"dbus-daemon": Bus, "dbus-broker": Broker}
