"""`op-dbus gateway` as a child process on a unix socket, beside a daemon."""

import subprocess
import sys
from pathlib import Path
from typing import Self

import httpx

from harness.running import Running, environment, read_lines


class Gateway:
    """A gateway process; use as a context, which kills it."""

    def __init__(self, daemon: Running, folder: Path, *flags: str) -> None:
        self.socket = folder / "http.sock"
        self.log = folder / "gateway.log"
        self._flags = flags or ("--listen", f"unix:{self.socket}")
        self._environ = environment(daemon.bus, daemon.state_dir, {})
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Start it, and wait until it accepts connections."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "opdbus", "gateway", *self._flags],
                env=self._environ,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        read_lines(self._process, lambda text: "listening" in text)
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

    def http(self) -> httpx.Client:
        """Return an HTTP client of its unix socket, which the caller closes."""
        transport = httpx.HTTPTransport(uds=str(self.socket))
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=60)
