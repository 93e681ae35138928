"""The functions that one question and one changed unit pass, from the bus to the answer.

`python benchmarks/walks.py [--path]` runs a daemon on a private bus with a tiny model, traces it
with `sys.setprofile` while it answers one `Search`, and while it stores one change of a unit that a
simulated PID 1 reports, and prints the numbers of files and functions of opdbus that were called;
`--path` lists them in the order of their first calls. A question counts until its reply, a change
until the signal `Recorded`. Each is done once before it is traced, so that caches are filled.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))
PACKAGE: Final = f"{ROOT}/opdbus/"
QUESTION: Final = "which mail services use the network?"
BEFORE: Final = "where are backups of the database?"


def trace(report: Path) -> None:
    """Run the daemon; SIGUSR1 begins a trace, SIGUSR2 ends it and writes it to a FIFO."""
    called: dict[CodeType, None] = {}
    is_tracing = False

    def record(frame: FrameType, event: str, _argument: object) -> None:
        if is_tracing and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.setdefault(frame.f_code)

    def begin(*_: object) -> None:
        nonlocal is_tracing
        called.clear()
        is_tracing = True

    def end(*_: object) -> None:
        nonlocal is_tracing
        is_tracing = False
        names = [(code.co_filename.removeprefix(PACKAGE), code.co_qualname) for code in called]
        report.write_text(json.dumps([pair for pair in names if not pair[1].endswith(">")]))

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    threading.setprofile(record)
    sys.setprofile(record)
    from opdbus.daemon import main

    sys.exit(main(os.environ, {}))


class Traced:
    """A daemon that is traced on demand."""

    def __init__(self, pid: int, report: Path) -> None:
        self._pid = pid
        self._report = report

    async def walk(self, work: Callable[[], Awaitable[Any]]) -> list[tuple[str, str]]:
        """Return the files and functions that work makes the daemon call, by their first calls."""
        os.kill(self._pid, signal.SIGUSR1)
        await work()
        os.kill(self._pid, signal.SIGUSR2)
        report = await asyncio.to_thread(self._report.read_text)
        return [(file, name) for file, name in json.loads(report)]


async def walks(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the walks of a question and of a changed unit."""
    from harness.running import STATE, STATE_PATH, Bus, calling, environment
    from harness.tiny import write_tiny_model
    from harness.units import fake_pid1

    bus, report, units = Bus(), folder / "walk.json", folder / "units"
    units.mkdir()
    os.mkfifo(report)
    model = write_tiny_model(folder / "model")
    settings = {
        "OP_DBUS_MODEL": str(model), "OP_DBUS_PRECISION": "fp32",
        "OP_DBUS_EXECUTION_PROVIDER": "cpu:onnxruntime",
        "OP_DBUS_STATE_FILE": str(ROOT / "state.example.json"), "OP_DBUS_OBSERVE": "systemd",
        "DBUS_SYSTEM_BUS_ADDRESS": bus.address,
    }  # fmt: skip
    environ = environment(bus.address, folder / "state", settings)
    async with fake_pid1(bus.address, units) as pid1:
        pid1.load("mail.service", Type="simple", ActiveState="active", SubState="running")
        command = [sys.executable, __file__, "--trace", str(report)]
        daemon = await asyncio.create_subprocess_exec(*command, env=environ)
        try:
            async with calling(bus.address) as caller:
                await caller.vectorized()
                traced = Traced(daemon.pid, report)

                async def ask(question: str = QUESTION) -> None:
                    await caller.call(STATE_PATH, f"{STATE}.Search", "sua{sv}", question, 5, {})

                async def change(state: str = "failed") -> None:
                    caller.signals.clear()
                    pid1.change("mail.service", ActiveState=state, SubState=state, Result="signal")
                    await caller.signal("Recorded")

                async def is_observed() -> bool:
                    # beside the 100 objects of the example
                    return bool(await caller.get(STATE_PATH, STATE, "Count") > 100)

                await caller.until(is_observed, wanted=True)
                await caller.vectorized()
                await ask(BEFORE)
                await asyncio.sleep(2)
                question = await traced.walk(ask)
                await change("deactivating")
                await asyncio.sleep(2)
                return {"a question": question, "a changed unit": await traced.walk(change)}
        finally:
            daemon.kill()
            await daemon.wait()
            bus.kill()


def main() -> None:
    """Print the walks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--path", action="store_true", help="list the functions")
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trace:
        trace(arguments.trace)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(walks(Path(folder)))
    for name, passed in found.items():
        print(f"{name}: {len({file for file, _ in passed})} files, {len(passed)} functions")
        if arguments.path:
            last = ""
            for file, function in passed:
                if file != last:
                    print(f"  {file}")
                print(f"      {function}")
                last = file


if __name__ == "__main__":
    main()
