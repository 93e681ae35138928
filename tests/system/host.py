"""A host that was booted for a test: commands inside, its units, its journal."""

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 60.0
Entry = dict[str, Any]


class Host:
    """Commands inside the namespaces of a process, the first of its host."""

    def __init__(self, init: int) -> None:
        self.init = init

    def enter(self, *command: str, user: str = "") -> list[str]:
        """Give the command line that runs a command inside, as a user of that host."""
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        clean = ["env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin", "LC_ALL=C.UTF-8"]
        inside = ["nsenter", "-t", str(self.init), *"-m -u -i -n -p -C -r -w".split()]
        return [*inside, *clean, *become, *command]

    def run(
        self, *command: str, user: str = "", stdin: str = "", seconds: float = PATIENCE_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end."""
        return subprocess.run(
            self.enter(*command, user=user),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def ask(self, *command: str, user: str = "", stdin: str = "") -> str:
        """Run a command inside that has to succeed, and give what it printed."""
        done = self.run(*command, user=user, stdin=stdin)
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stderr}"
        return done.stdout.strip()

    def path(self, inside: str) -> Path:
        """Give where one of its files is seen from outside."""
        return Path(f"/proc/{self.init}/root", inside.lstrip("/"))

    def write(self, inside: str, text: str) -> None:
        """Write one of its files, in one step as editors do."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.new")
        part.write_text(text)
        part.chmod(0o644)
        part.rename(path)

    def show(self, unit: str, name: str) -> str:
        """Give one property of a unit."""
        return self.ask("systemctl", "show", unit, f"--property={name}", "--value")

    def cursor(self) -> str:
        """Give the place in the journal where what comes next will begin."""
        self.ask("journalctl", "--sync")
        text = self.ask("journalctl", "--lines=1", "--show-cursor", "--quiet")
        return text.rsplit("-- cursor: ", 1)[1].strip()

    def journal(self, *matches: str) -> list[Entry]:
        """Give the entries of the journal with these fields."""
        self.ask("journalctl", "--sync")
        text = self.ask("journalctl", "--output=json", "--all", "--quiet", *matches)
        return [json.loads(line) for line in text.splitlines()]

    def await_entry(
        self, after: str, *matches: str, wanted: Callable[[Entry], object] = bool
    ) -> Entry:
        """Wait for the first entry after a cursor that has these fields and is wanted."""
        command = ["journalctl", "--follow", "--output=json", "--all", f"--after-cursor={after}"]
        with self._lines(*command, *matches) as lines:
            for line in lines:
                if wanted(entry := json.loads(line)):
                    return entry
        raise AssertionError(f"the journal does not tell of {' '.join(matches)}:\n{self.log()}")

    def log(self) -> str:
        """Give the end of the journal, for people."""
        return self.run("journalctl", "--no-pager", "--lines=60").stdout

    @contextmanager
    def _lines(self, *command: str) -> Iterator[Iterator[bytes]]:
        """Follow what a command prints, a line at a time, no longer than patience lasts."""
        with subprocess.Popen(self.enter(*command), stdout=subprocess.PIPE) as process:
            assert process.stdout
            try:
                yield _until_late(process.stdout.fileno())
            finally:
                process.kill()


def _until_late(descriptor: int) -> Iterator[bytes]:
    end, rest = time.monotonic() + PATIENCE_SECONDS, b""
    while select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
        if not (more := os.read(descriptor, 65536)):
            return
        *lines, rest = (rest + more).split(b"\n")
        yield from lines
