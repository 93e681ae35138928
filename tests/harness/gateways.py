"""`op-dbus gateway` as a child process on a unix socket, beside a daemon."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

import httpx

from harness.running import PATIENCE_SECONDS, Running, environment, read_lines

TOKEN = "a-token-that-only-tests-have"


class Gateway:
    """A gateway process; use as a context, which kills it.

    `settings` are of the gateway alone; with `limits` it has other limits than the program's.
    """

    def __init__(
        self,
        daemon: Running,
        folder: Path,
        *flags: str,
        limits: dict[str, float] | None = None,
        **settings: object,
    ) -> None:
        self.socket = folder / "http.sock"
        self.log = folder / "gateway.log"
        listen = flags or ("--listen", f"unix:{self.socket}")
        self.command = ["-m", "opdbus", "gateway", *listen]
        if limits is not None:
            own = (daemon.bus, str(self.socket), json.dumps(limits))
            self.command = ["-m", "harness.limited_gateway", *own]
        given = {f"OP_DBUS_{key}": str(value) for key, value in settings.items()}
        self.environ = environment(daemon.bus, daemon.state_dir, given)
        self.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
        self._process: subprocess.Popen[str] | None = None
        self.said = ""

    def __enter__(self) -> Self:
        """Start it, and wait until it accepts connections."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self.command],
                env=self.environ,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        last = (
            self.command.count("--listen") or self.environ.get("OP_DBUS_LISTEN", "").count(",") + 1
        )
        self.said = read_lines(self._process, lambda text: text.count("listening") >= last)
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it, if it still runs."""
        assert self._process
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process
        return self._process.pid

    def stop(self) -> int:
        """End it as systemd does, and give the exit code."""
        assert self._process
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE_SECONDS)

    def port(self, name: str) -> int:
        """Give the TCP port of a listener."""
        found = re.search(rf"{name} on [\d.]+:(\d+)", self.said)
        assert found, self.said
        return int(found[1])

    def http(self) -> httpx.Client:
        """Return an HTTP client of its unix socket, which the caller closes."""
        transport = httpx.HTTPTransport(uds=str(self.socket))
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=60)

    def is_served(self) -> bool:
        """Ask as others do."""
        with self.http() as client:
            return client.get("/health").status_code == 200

    def connect(self) -> socket.socket:
        """Connect to its unix socket, as a client of any kind; the caller closes it."""
        found = socket.socket(socket.AF_UNIX)
        found.settimeout(PATIENCE_SECONDS)
        try:
            found.connect(str(self.socket))
        except OSError:
            found.close()
            raise
        return found

    def tell(self, data: bytes) -> bytes:
        """Send bytes, and give all that comes until it closes or has answered in full."""
        with self.connect() as own:
            own.sendall(data)
            return receive(own)


def receive(own: socket.socket) -> bytes:
    """Give one response, or what came before the end."""
    found = b""
    while not is_whole(found):
        try:
            more = own.recv(65536)
        except ConnectionResetError:
            break
        if not more:
            break
        found += more
    return found


def is_whole(response: bytes) -> bool:
    """Return whether a response with a length has come in full."""
    head, ends, body = response.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return bool(ends and length and len(body) >= int(length[1]))


def status(response: bytes) -> int:
    """Give the status of a response; 0 if there is none."""
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", response)
    return int(found[1]) if found else 0
