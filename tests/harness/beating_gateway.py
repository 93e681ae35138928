"""A gateway whose event loop tells the longest time that it computed in one turn.

`python -m harness.beating_gateway BUS SOCKET FILE` serves all routes, with a fleet that is away.
"""

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

from harness.gateways import Gateway
from harness.running import Running, replace
from opdbus.gateway.listeners import WRITE, FleetAccess, Listener, Options
from opdbus.gateway.server import serve
from opdbus.systemd import notify


class BeatingGateway(Gateway):
    """The process; use as a context."""

    def __init__(self, daemon: Running, folder: Path) -> None:
        super().__init__(daemon, folder)
        self._beats = folder / "longest"
        own = (daemon.bus, str(self.socket), str(self._beats))
        self.command = ["-m", "harness.beating_gateway", *own]

    @property
    def longest(self) -> float:
        """Seconds of the processor that the loop's thread took between two beats, at most.

        So long every other client had to wait. A busy machine changes it little.
        """
        return float(self._beats.read_text())


async def beat(file: Path) -> None:
    """Write the longest time between two beats to a file whenever it has grown."""
    longest, before = -1.0, time.thread_time()
    while True:
        await asyncio.sleep(0.001)
        now = time.thread_time()
        if now - before > longest:
            longest = now - before
            # in one step: it may be read at this moment
            replace(file, str(longest))
        before = time.thread_time()


async def main(bus: str, path: str, file: str) -> None:
    """Serve until SIGTERM."""
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(path)
        own.listen(1024)
        fleet = FleetAccess(f"postgresql://page@/opdbus?host={Path(path).parent}", None)
        beating = asyncio.create_task(beat(Path(file)))
        print("listening", flush=True)
        service = notify.connect(os.environ, os.getpid())
        await serve(Options(bus, fleet=fleet), [Listener(WRITE, own)], service)
        beating.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
