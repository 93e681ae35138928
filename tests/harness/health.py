"""Whether a daemon is well: it answers, keeps its name, complains of nothing, and is small."""

import re
import time
from pathlib import Path

from harness.running import Running
from harness.wire import Gone, Silence, Wire

# What no input may bring into the log.
_COMPLAINTS = re.compile(
    r"Traceback|internal error|never retrieved|was never awaited|Exception in callback"
    r"|Task was destroyed|exception was never|ResourceWarning|SystemError",
)


def memory_mib(pid: int, what: str = "VmRSS") -> float:
    """Give the resident memory of a child process, or another row of its status; 0 if it ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(what)), 0.0)


def open_files(pid: int) -> int:
    """Count the files that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def settled_files(pid: int, wanted: int, seconds: float = 10.0) -> int:
    """Count open files once there are as few as wanted, or the time is over."""
    end = time.monotonic() + seconds
    while (found := open_files(pid)) > wanted and time.monotonic() < end:
        time.sleep(0.05)  # no event tells of another process's files
    return found


class Health:
    """Looks at a daemon again and again, with a connection of its own."""

    def __init__(self, daemon: Running) -> None:
        self._daemon = daemon
        self._read = 0
        self._wire = Wire(daemon.bus)
        self.files = open_files(daemon.pid)
        self.memory = memory_mib(daemon.pid)
        self._owner = self._named()

    def close(self) -> None:
        """Hang up."""
        self._wire.socket.close()

    def faults(self, seconds: float = 30.0) -> list[str]:
        """Say what is wrong now."""
        try:
            serial = self._wire.start("/", "org.freedesktop.DBus.Peer.Ping")
            self._wire.answer(serial, seconds)
        except (Gone, Silence) as error:
            return [f"it answers nobody: {error}", *self._complaints()]
        if not memory_mib(self._daemon.pid):
            return ["it has ended", *self._complaints()]
        found = self._complaints()
        if self._named() != self._owner:
            found.append("it has lost its name")
        return found

    def _named(self) -> str:
        answer = self._wire.ask_bus("GetNameOwner", "s", "org.opdbus")
        return str(answer.body()[0])

    def _complaints(self) -> list[str]:
        log = self._daemon.log
        news, self._read = log[self._read :], len(log)
        lines = news.splitlines()
        return [
            "the log says: " + "\n      ".join(lines[number : number + 30])
            for number, line in enumerate(lines)
            if _COMPLAINTS.search(line)
        ]
