"""Child process that reads a large state file and builds its records while others are stored.

A thread would hold the GIL for as long as storing takes, and the event loop would wait for it.
"""

import marshal
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import structlog

from opdbus.index.database.quota import ROOT
from opdbus.index.database.records import Recorder, draft
from opdbus.index.database.store import Record
from opdbus.models import child
from opdbus.models.child import ChildFailed
from opdbus.platform import gc_tuning
from opdbus.platform.slices import batches
from opdbus.state.file import StateFile
from opdbus.state.object import Identity, StateObject

log = structlog.get_logger()

# Objects sent together: some milliseconds.
_TOGETHER: Final = 250
# The first part: the file was read and is valid.
_READ: Final = b"read"
# Values of an identity in a row; the row of an unchanged object has only these.
_OF_IDENTITY: Final = len(Identity._fields)


# in the parent


def stream(file: StateFile, same: str = "") -> tuple[set[Identity], Iterator[StateObject | Record]]:
    """Read a file as `StateFile.stream` does, in a child process.

    Return all identities, complete only after the last object, and an iterator of the changed
    objects. A file with the signature `same` is unchanged. If the child fails while the iterator
    runs, this process reads the file again and yields its objects. Raises ChildFailed if the child
    fails before. Blocks: call it on a worker thread.
    """
    try:
        with os.fdopen(os.memfd_create("known"), "wb") as known:
            known.write(marshal.dumps(file.state_for_recall()))
            known.flush()
            number = known.fileno()
            parts = child.parts(__name__, [number], path=str(file.path), same=same, known=number)
            next(parts, None)
    except OSError as error:
        raise ChildFailed(f"cannot tell it what is known: {error.strerror}") from None
    present = set[Identity]()
    return present, _receive(file, parts, present)


def _receive(
    file: StateFile, parts: Iterator[bytes], present: set[Identity]
) -> Iterator[StateObject | Record]:
    try:
        for part in parts:
            found = marshal.loads(part)  # noqa: S302 -- our own child made it
            if isinstance(found, tuple):
                file.recall(found)
                return
            if len(found[0]) == _OF_IDENTITY:
                present.update(map(Identity._make, found))
                continue
            records = [
                Record._make(
                    (Identity._make(row[:_OF_IDENTITY]), ROOT, *row[4:9], 0, False, row[9])
                )
                for row in found
            ]
            present.update(record.identity for record in records)
            yield from records
    except ChildFailed as error:
        log.warning("state file is read again", path=str(file.path), reason=str(error))
    identities, objects = file.stream()
    present.clear()
    present.update(identities)
    yield from objects


# in the child


def _parts(request: dict[str, Any]) -> Iterator[bytes]:
    """Yield the messages that `stream` receives."""
    child.go_second()
    file, recorder = StateFile(Path(request["path"])), Recorder()
    with os.fdopen(request["known"], "rb") as known:
        known.seek(0)
        file.recall(marshal.loads(known.read()))  # noqa: S302 -- our own parent made it
    # garbage collection would find nothing: what is made here stays in use
    with gc_tuning.pause():
        present, objects = file.stream(request["same"])
        yield _READ
        sent = list[Identity]()
        for some in batches(objects, _TOGETHER):
            made = recorder.records([*map(draft, some)])
            yield marshal.dumps([(*one.identity, *one[2:7], one.traits) for one in made])
            sent += [record.identity for record in made]
        unchanged = present.difference(sent) if len(sent) < len(present) else ()
        for identities in batches(unchanged, _TOGETHER):
            yield marshal.dumps([*map(tuple, identities)])
        yield marshal.dumps(file.state_for_recall())


if __name__ == "__main__":
    child.answer_in_parts(_parts)
