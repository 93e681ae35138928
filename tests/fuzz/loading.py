"""Feeds state files to the real loader, and to a running daemon; a bad one changes nothing."""

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from harness.running import ROOT_PATH, STATE, STATE_PATH, VECTORIZER

from fuzz.documents import Document, documents
from fuzz.drawn import each
from fuzz.wire import PATIENCE_SECONDS, Wire
from opdbus.errors import StateFileError
from opdbus.language import object_text
from opdbus.state.file import StateFile

# What every refusal of a file's content says.
_PLACED = re.compile(r"line \d+ column \d+ \(\$[^\n]*\): \S")
_LAST_GOOD = b'{"version": 1, "plugins": {"good": {"things": [{"name": "a"}, {"name": "b"}]}}}'


class Reading:
    """Counts what files did, and remembers every fault."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []

    def fault(self, what: str, data: bytes) -> None:
        """Remember a fault and the file that shows it."""
        self.faults.append(f"{what}\n    state file of {len(data)} bytes: {data[:2000]!r}")

    def report(self) -> dict[str, Any]:
        """Give all of it as JSON has it."""
        return {**self.seen, "faults": self.faults}


class Loader:
    """The real loader on a file of its own, which is good again after each bad one."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        self._reading = reading
        self._file = StateFile(path)
        path.write_bytes(_LAST_GOOD)
        self._good, _ = self._file.read()

    def take(self, document: Document) -> str:
        """Read a file; gives why it is refused, or nothing."""
        self._reading.seen["files"] += 1
        self._path.write_bytes(document.data)
        refusal = self._refusal(document.data)
        self._reading.seen["refused" if refusal else "taken"] += 1
        if document.is_sound is not None and document.is_sound == bool(refusal):
            self._reading.fault(f"sound but refused, or bad but taken: {refusal}", document.data)
        self._path.write_bytes(_LAST_GOOD)
        present, changed = self._file.read()
        if present != self._good or (refusal and changed):
            self._reading.fault("the last good state is not there any more", document.data)
        return refusal

    def _refusal(self, data: bytes) -> str:
        try:
            _, changed = self._file.read()
            for item in changed:
                item.fingerprint()
                object_text.render(item)
                json.loads(item.json())
        except StateFileError as error:
            if not _PLACED.search(str(error)):
                self._reading.fault(f"a refusal without a place: {error}", data)
            return str(error)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is a fault
            self._reading.fault(f"the loader raised {error!r}", data)
        return ""


class Watched:
    """A daemon whose state file is replaced, and which must notice every good one."""

    def __init__(self, wire: Wire, path: Path, reading: Reading) -> None:
        self._wire = wire
        self._path = path
        self._reading = reading
        self._number = 0
        wire.subscribe("type='signal',sender='org.opdbus',member='Changed'")
        self._mark()

    def take(self, data: bytes, *, is_refused: bool) -> None:
        """Give the daemon a file, which it must judge as the loader did, and then a good one."""
        self._reading.seen["files by the daemon's watch"] += 1
        _replace(self._path, data)
        answer = self._wire.call(ROOT_PATH, f"{VECTORIZER}.Reload", "a{sv}", {})
        if answer.error not in {"", "org.opdbus.Error.StateFile"}:
            self._reading.fault(f"Reload: {answer.error}: {answer.body()[0]}", data)
        elif bool(answer.error) != is_refused:
            self._reading.fault(f"the daemon and the loader do not agree: {answer.error}", data)
        if answer.error and not self._has_mark():
            self._reading.fault("the last good state is not served any more", data)
        if answer.error and not self._last_error():
            self._reading.fault("LastError is empty", data)
        self._mark()
        # it is empty a moment after the objects were told of
        end = time.monotonic() + PATIENCE_SECONDS
        while (error := self._last_error()) and time.monotonic() < end:
            time.sleep(0.01)
        if error:
            self._reading.fault(f"LastError stays: {error}", data)

    def _mark(self) -> None:
        """Replace the file by one with an object of a new name, and wait until that is there."""
        self._number += 1
        object_ids = [{"name": f"n{self._number}"}]
        whole = {"version": 1, "plugins": {"mark": {"things": object_ids}}}
        _replace(self._path, json.dumps(whole).encode())
        while not any(self._mark_path in str(s.body()) for s in self._wire.signals):
            self._wire.signals.append(self._wire.receive())
        self._wire.signals.clear()

    @property
    def _mark_path(self) -> str:
        return f"{STATE_PATH}/mark/thing/n{self._number}"

    def _has_mark(self) -> bool:
        return not self._wire.call(STATE_PATH, f"{STATE}.Get", "oa{sv}", self._mark_path, {}).error

    def _last_error(self) -> str:
        get = "org.freedesktop.DBus.Properties.Get"
        answer = self._wire.call(STATE_PATH, get, "ss", STATE, "LastError")
        return str(answer.body()[0].value)


def _replace(path: Path, data: bytes) -> None:
    part = path.with_suffix(".new")
    part.write_bytes(data)
    part.rename(path)


def load(folder: Path, reading: Reading, count: int, seed: int) -> None:
    """Read so many files, the same ones for the same seed."""
    loader = Loader(folder / "read.json", reading)
    each(documents, count, seed, loader.take)


def watch(bus: str, path: Path, reading: Reading, count: int, seed: int) -> None:
    """Put so many files in the place of a running daemon's."""
    judge = Loader(path.with_name("judged.json"), Reading())
    with Wire(bus) as wire:
        watched = Watched(wire, path, reading)
        each(documents, count, seed, lambda d: watched.take(d.data, is_refused=bool(judge.take(d))))
