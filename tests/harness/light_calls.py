"""A client that makes light calls, to measure how long others make it wait."""

import threading

from harness.running import PATIENCE_SECONDS, STATE, STATE_PATH, Running, cpu_seconds
from harness.wire import Wire

_GET = "org.freedesktop.DBus.Properties.Get"


class LightCaller(threading.Thread):
    """Makes light calls, and keeps the longest time that the daemon worked during one.

    That is no wall-clock time: on a busy machine other programs do not count.
    """

    def __init__(self, daemon: Running) -> None:
        super().__init__()
        self.bus = daemon.bus
        self._pid = daemon.pid
        self._wire = Wire(daemon.bus)
        self._is_over, self._answered = threading.Event(), threading.Event()
        self._worst = 0.0
        self.start()

    def run(self) -> None:
        """Call until it is over."""
        while not self._is_over.wait(0.005):
            spent = cpu_seconds(self._pid)
            self._wire.call(STATE_PATH, _GET, "ss", STATE, "Count")
            self._worst = max(self._worst, cpu_seconds(self._pid) - spent)
            self._answered.set()

    def take_worst(self) -> float:
        """Give the longest wait since the last time, with that of the present call."""
        self._answered.clear()
        assert self._answered.wait(PATIENCE_SECONDS)
        worst, self._worst = self._worst, 0.0
        return worst

    def leave(self) -> None:
        """Hang up."""
        self._is_over.set()
        self.join()
        self._wire.socket.close()
