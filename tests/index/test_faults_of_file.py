"""A state file that turns into anything at all never empties the daemon, and never holds it up."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from harness.running import PATIENCE_SECONDS, replace, state_file, work_of

from opdbus.errors import StateFileError
from opdbus.index.state_store.state_file_loader import StateFileLoader
from opdbus.index.state_store.state_store import StateStore


def _in_place_of(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Put something else in the file's place."""

    def put(path: Path) -> None:
        path.unlink()
        make(path)

    return put


def _folder_gone(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def _folder_back(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)


def _zeroed(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (_in_place_of(Path.mkdir), "Is a directory"),
    "a pipe": (_in_place_of(os.mkfifo), "not a regular file"),
    "a device": (_in_place_of(lambda p: p.symlink_to("/dev/zero")), "not a regular file"),
    "a link to nothing": (_in_place_of(lambda p: p.symlink_to("nothing")), "No such file"),
    "a link to itself": (_in_place_of(lambda p: p.symlink_to(p.name)), "Too many levels"),
    "gone": (Path.unlink, "No such file"),
    "its folder gone": (_folder_gone, "No such file"),
    "empty": (lambda path: path.write_bytes(b""), "the file is empty"),
    "half written": (lambda path: path.write_text('{"version": 1, "plu'), "no closing quote"),
    "cut in place": (lambda path: os.truncate(path, 30), "no closing quote"),
    "zeros": (_zeroed, "state.json"),
    "65 MiB": (lambda path: path.write_bytes(b" " * (65 << 20)), "past the limit of 64 MiB"),
}


class House:
    """A memory whose state file is watched."""

    def __init__(self, memory: StateStore, declared: StateFileLoader) -> None:
        self.memory = memory
        self.declared = declared
        self._news = asyncio.Event()
        memory.notify = lambda _event: self._news.set()
        declared.on_change = self._news.set

    def names(self) -> set[str]:
        """Give the names of all objects."""
        return {entry.identity.name for entry in self.memory.catalogue}

    async def until(self, true: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until something holds, looking after each change."""
        async with asyncio.timeout(seconds):
            while not true():
                self._news.clear()
                await self._news.wait()


def run(tmp_path: Path, work: Callable[[House], Any]) -> None:
    """Do work beside a memory whose state file is watched."""

    async def both() -> None:
        async with StateStore(tmp_path / "state" / "memory.db") as memory:
            (tmp_path / "etc").mkdir()
            declared = StateFileLoader(tmp_path / "etc" / "state.json", memory)
            house = House(memory, declared)
            watching = asyncio.create_task(declared.watch())
            try:
                await work(house)
            finally:
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching

    asyncio.run(both())


@pytest.mark.parametrize("fault", FAULTS)
@work_of(run, "tmp_path")
async def test_whatever_the_file_becomes_is_told_and_outlived(house: House, fault: str) -> None:
    """Keep what was declared, say what is wrong, and go on as soon as the file is good again."""
    spoil, said = FAULTS[fault]
    path = state_file(house.declared.path, {"a": "one", "b": "two"})
    await house.until(lambda: house.names() == {"a", "b"})
    spoil(path)
    await house.until(lambda: house.declared.last_error)
    assert said in house.declared.last_error
    with pytest.raises(StateFileError):
        await house.declared.load()
    assert house.names() == {"a", "b"}
    _folder_back(path)
    if path.is_dir():
        path.rmdir()
    state_file(path, {"c": "three"})
    await house.until(lambda: house.names() == {"c"} and not house.declared.last_error)


@work_of(run, "tmp_path")
async def test_a_growing_file_is_taken_in_when_it_is_whole(house: House) -> None:
    """Keep what was declared while the file is being written, and take in what it becomes."""
    text = json.dumps({"version": 1, "plugins": {"p": {"units": {"b": {"x": "y" * 5000}}}}})
    path = state_file(house.declared.path, {"a": "one"})
    await house.until(lambda: house.names() == {"a"})
    for end in range(0, len(text), 1000):
        with path.open("w") as file:
            file.write(text[:end])
        with suppress(StateFileError):
            await house.declared.load()
        assert house.names() == {"a"}
    replace(path, text)
    await house.until(lambda: house.names() == {"b"} and not house.declared.last_error)


def test_a_large_file_does_not_stop_the_loop(tmp_path: Path) -> None:
    """Serve others while 15 MiB are parsed: far less than a watchdog's patience passes.

    In time of this process, which stands still while another one has the processor.
    """
    many = {f"u{n}": {"description": "mail " * 100} for n in range(20_000)}
    text = json.dumps({"version": 1, "plugins": {"p": {"units": many, "flat": [1] * 1_000_000}}})
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        last = time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.process_time()
            longest = max(longest, now - last)
            last = now

    async def work(house: House) -> None:
        await house.until(lambda: house.declared.attempted)
        ticking = asyncio.create_task(tick())
        replace(house.declared.path, text[:-1])
        # first a process of low priority parses it, which all others go before
        said = "in the middle"
        await house.until(lambda: said in house.declared.last_error, 4 * PATIENCE_SECONDS)
        ticking.cancel()
        assert longest < 2.5

    run(tmp_path, work)
