"""`op-dbus fleet serve` as a process of its own, and what administrators and hosts do with it."""

import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.fleets import FleetDatabase
from opdbus.fleet.embedded_server import DATABASE, EmbeddedServer

COMMAND = (sys.executable, "-m", "opdbus")
_SECONDS = 120


@dataclass
class FleetServer:
    """A server that runs, with its folder; `port` is where TLS listens."""

    folder: Path
    port: int
    process: subprocess.Popen[str]
    database: FleetDatabase = field(init=False)

    def __post_init__(self) -> None:
        self.database = FleetDatabase(EmbeddedServer(self.folder / "server"))

    def command(self, *words: str, code: int = 0) -> str:
        """Run a command of the administrator, and return what it prints."""
        return run_fleet(self.folder, *words, code=code)

    def add(self, name: str, *tags: str) -> Path:
        """Add a host, and return the folder of its credentials."""
        options = [word for tag in tags for word in ("--tag", tag)]
        self.command("add", name, *options, "--out", str(self.folder / name))
        return self.folder / name

    def add_reader(self, name: str) -> str:
        """Add a reader, and return the password."""
        return self.command("add-reader", name).split()[1]

    def url(self, role: str, credentials: Path | None = None, host: str = "localhost") -> str:
        """Return the URL of a role by TLS, with the certificate of the folder."""
        query = f"sslmode=verify-full&sslrootcert={self.folder}/server/tls/ca.crt"
        if credentials:
            query += f"&sslcert={credentials}/host.crt&sslkey={credentials}/host.key"
        return f"postgresql://{role}@{host}:{self.port}/{DATABASE}?{query}"

    def context(self, credentials: Path | None = None) -> ssl.SSLContext:
        """Return a client's settings of TLS."""
        context = ssl.create_default_context(cafile=self.folder / "server/tls/ca.crt")
        if credentials:
            context.load_cert_chain(credentials / "host.crt", credentials / "host.key")
        return context

    def stop(self) -> int:
        """End it as systemd does; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_SECONDS)


def run_fleet(folder: Path, *words: str, code: int = 0) -> str:
    """Run `op-dbus fleet` with the server's folder, and return what it prints."""
    done = subprocess.run(
        [*COMMAND, "fleet", "--folder", str(folder / "server"), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=_SECONDS,
        env=_environment({}),
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + (done.stderr if code else "")


@contextmanager
def fleet_server(
    folder: Path, options: Sequence[str] = (), **environment: str
) -> Iterator[FleetServer]:
    """Run a server until the end."""
    log = folder / "log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            [
                *(*COMMAND, "fleet", "--folder", str(folder / "server"), "serve"),
                *("--listen", "127.0.0.1:0", "--name", "localhost"),
                *(options or ("--level", "none")),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(environment),
        )
    try:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("serving "):
                port = int(line.partition("@localhost:")[2].partition("/")[0])
                break
        else:
            raise AssertionError(log.read_text())
        yield FleetServer(folder, port, process)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(_SECONDS)
        if process.stdout:
            process.stdout.close()


def _environment(more: dict[str, str]) -> dict[str, str]:
    own = {key: text for key, text in os.environ.items() if not key.startswith("OP_DBUS_")}
    return own | more
