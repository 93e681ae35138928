"""Records of a large state file's objects, made in a child process while others are stored.

To read 100,000 objects and make their records takes as long as to store them, and Python computes
on one processor at a time.
"""

import marshal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import structlog

from opdbus import gc_tuning
from opdbus.index.ownership import ROOT
from opdbus.index.records import Recorder, draft
from opdbus.index.store import Record
from opdbus.models import child
from opdbus.models.child import ChildFailed
from opdbus.slices import batches
from opdbus.state.file import StateFile
from opdbus.state.object import Identity, StateObject

log = structlog.get_logger()

# Sent together: some milliseconds' work.
_TOGETHER: Final = 250
# The first part: the file was read, and is good.
_READ: Final = b"read"


# in the parent


def stream(file: StateFile) -> tuple[set[Identity], Iterator[StateObject | Record]]:
    """Read a file as `StateFile.stream` does; raises ChildFailed where it does not begin.

    The identities are complete after the last object. Where the child ends before, this process
    goes on. To be used by a thread.
    """
    parts = child.parts(__name__, path=str(file.path))
    next(parts, None)
    present = set[Identity]()
    return present, _received(file, parts, present)


def _received(
    file: StateFile, parts: Iterator[bytes], present: set[Identity]
) -> Iterator[StateObject | Record]:
    try:
        for part in parts:
            found = marshal.loads(part)  # noqa: S302 -- our own child made it
            if isinstance(found, tuple):
                file.recall(found)
                return
            made = [*map(_record, found)]
            present.update(record.identity for record in made)
            yield from made
    except ChildFailed as error:
        log.warning("state file is read again", path=str(file.path), reason=str(error))
    identities, objects = file.stream()
    present |= identities
    yield from objects


def _record(row: tuple[Any, ...]) -> Record:
    return Record._make((Identity._make(row[:4]), ROOT, *row[4:9], 0, False, row[9]))


# in the child


def _parts(request: dict[str, Any]) -> Iterator[bytes]:
    """Yield what `stream` receives."""
    file, recorder = StateFile(Path(request["path"])), Recorder()
    # all that is made here stays
    with gc_tuning.paused():
        _, objects = file.stream()
        yield _READ
        for some in batches(objects, _TOGETHER):
            made = recorder.records([*map(draft, some)])
            yield marshal.dumps([*map(_row, made)])
        yield marshal.dumps(file.known())


def _row(record: Record) -> tuple[Any, ...]:
    return (*record.identity, *record[2:7], record.traits)


if __name__ == "__main__":
    child.answer_in_parts(_parts)
