"""Calls with files: vectors of a file of texts, and the vectors of many objects."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np

from opdbus.bus import paths
from opdbus.bus.admission.accounting import Quota
from opdbus.bus.admission.limits import MAX_BULK_CALLS
from opdbus.bus.service import call_options
from opdbus.bus.service.bulk_files import Format, TextFile, VectorFile, VectorFiles, choose_format
from opdbus.bus.service.call_options import Given, Options, require_range
from opdbus.bus.service.contract import Caller
from opdbus.bus.service.job1 import Job, Jobs
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.errors import InvalidArgs, Truncated
from opdbus.index.catalogue.catalogue import representative
from opdbus.index.catalogue.declarations import mark_declared
from opdbus.index.database.store import Content, Entry
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.vector_index import VectorIndex
from opdbus.platform.slices import slices
from opdbus.platform.tasks import cancel
from opdbus.serving.serving import Lease
from opdbus.state.object import FILE, ObjectId

P = ParamSpec("P")
T = TypeVar("T")

# Calls of more texts are visible jobs.
JOB_TEXTS: Final = 10_000
# Concurrent windows of one call: the model has work while the next one is read and tokenized.
_WINDOWS: Final = 3

# The most rows of a call, so that its descriptions take some tens of megabytes.
MAX_ROWS: Final = 100_000
# Rows of one step: about a millisecond of work.
_AT_A_TIME: Final = 250
# The pause between steps, for small calls that need many turns of the event loop.
_REST_SECONDS: Final = 0.001
# State fields; a unit has the first two.
_STATES: Final = ("active_state", "sub_state", "state", "status", "ensure")
_MOST_STATES: Final = 2
_MOST_CHARACTERS: Final = 48
# Names of the types in safetensors: https://huggingface.co/docs/safetensors
_TYPES: Final = {"float32": "F32", "float16": "F16", "int8": "I8", "ubinary": "U8"}
_ALIGNED: Final = 64
_PART: Final = {"offset": int, "limit": int, "sample": int}


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """The vectors' format, whether texts may be truncated, and whether the call is a job."""

    format: Format
    truncate: bool
    is_job: bool


class Vectors(NamedTuple):
    """A sealed file of row-major vectors, and the number of truncated texts."""

    file: Descriptor
    rows: int
    truncated: int


class Bulk:
    """All bulk calls, with their limits and threads of their own.

    A file system that hangs blocks bulk calls, and nothing else.
    """

    def __init__(self, jobs: Jobs, threads: Executor | None = None) -> None:
        self.jobs = jobs
        self._calls = Quota("bulk calls", MAX_BULK_CALLS)
        self.files = VectorFiles()
        most = MAX_BULK_CALLS["total"]
        self._threads = threads or ThreadPoolExecutor(most, thread_name_prefix="bulk")

    async def run(
        self, caller: Caller, engine: Lease, texts: Descriptor, options: BulkOptions
    ) -> Vectors:
        """Embed the texts of a file, with at most a few thousand of them in memory.

        Raises InvalidArgs, LimitsExceeded, Truncated, Cancelled, ShuttingDown. When cancelled, it
        removes its texts from the engine's queue.
        """
        # a copy: a thread may still read after the call and its descriptors have ended
        source = Descriptor.copy_of(texts)
        with self.admit(caller) as threads:
            file = await threads.run(TextFile, source)
            lines = await threads.run(file.count_lines)
            with self.files.create(caller, options.format, lines) as vectors:
                is_seen = options.is_job or lines > JOB_TEXTS
                with self.jobs.begin("bulk", lines, caller, is_seen=is_seen) as job:
                    pipeline = _Pipeline(threads, engine, options, job)
                    await job.run(pipeline.run(file, vectors))
                return Vectors(await threads.run(vectors.seal), job.done, pipeline.truncated)

    @contextmanager
    def admit(self, caller: Caller) -> Iterator[Threads]:
        """Count a call until its last thread ends: a thread that hangs cannot be stopped."""
        scopes = {"connection": caller.sender, "user": caller.uid, "total": None}
        self._calls.require_room(scopes, 1)
        self._calls.add(scopes, 1)
        threads = Threads(self._threads)
        try:
            yield threads
        finally:
            threads.when_done(lambda: self._calls.add(scopes, -1))


class Threads:
    """The threads of one call."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._running: set[Future[Any]] = set()

    async def run(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run blocking work on a thread for bulk calls."""
        future = self._threads.submit(work, *args, **named)
        self._running.add(future)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.done():
                self._running.remove(future)

    def when_done(self, work: Callable[[], None]) -> None:
        """Call `work` now, or as soon as the last thread ends."""
        if not self._running:
            work()
            return
        hanging = asyncio.gather(*map(asyncio.wrap_future, self._running), return_exceptions=True)
        hanging.add_done_callback(lambda _: work())


class _Pipeline:
    """Reads, embeds and writes the texts of one call, several windows at a time."""

    def __init__(self, threads: Threads, engine: Lease, options: BulkOptions, job: Job) -> None:
        self._threads = threads
        self._engine = engine
        self._options = options
        self._job = job
        self.truncated = 0

    async def run(self, source: TextFile, file: VectorFile) -> None:
        """Process all texts of a file."""
        running: deque[asyncio.Task[None]] = deque()
        row = 0
        try:
            while texts := await self._threads.run(source.window):
                if row + len(texts) > self._job.total:
                    raise InvalidArgs(
                        f"the file held {self._job.total} lines and now holds more: leave it alone"
                        " until its vectors are there"
                    )
                if len(running) == _WINDOWS:
                    await running.popleft()
                running.append(asyncio.create_task(self._embed(texts, row, file)))
                row += len(texts)
            while running:
                await running.popleft()
        finally:
            await cancel(running)

    async def _embed(self, texts: Sequence[str], row: int, file: VectorFile) -> None:
        rows = await self._engine.tokenize(texts)
        cut = rows.truncated.nonzero()[0]
        if len(cut) and not self._options.truncate:
            raise Truncated(
                f"the text of line {row + cut[0] + 1} is longer than the"
                f" {self._engine.max_tokens} tokens that the model reads: shorten it,"
                " or allow `truncate`"
            )
        self.truncated += len(cut)
        vectors = await self._engine.embed(rows)
        await self._threads.run(file.write, row, vectors)
        self._job.advance(len(rows))


@dataclass(slots=True)
class _Rows:
    """The objects that have a vector, row by row, and the number of those that have none yet."""

    about: list[tuple[ObjectId, Sequence[Entry]]] = field(default_factory=list)
    # encoded rows, many in one item
    vectors: list[bytes] = field(default_factory=list)
    waiting: int = 0


async def write_vectors(
    caller: Caller, bulk: Bulk, vectors: ObjectVectors, given: Given
) -> Descriptor:
    """Return a file with the vectors of the objects that match a filter.

    Raises InvalidArgs, LimitsExceeded, NoModel, ProviderError.
    """
    checked = Options(given, {**call_options.LIST_FILTER, **_PART, "dtype": str, "dimensions": int})
    with bulk.admit(caller) as threads:
        index = await vectors.current_index()
        wanted = choose_format(checked, index.dimension)
        object_ids = await call_options.find_objects(vectors.memory, checked)
        rows = await _look_up(_part(object_ids, checked), vectors.memory, index, wanted)
        found = []
        for part in slices(rows.about, _AT_A_TIME):
            contents = await vectors.memory.content([e for _, entries in part for e in entries])
            found.append(await threads.run(_describe_objects, part, contents, vectors.memory))
        lines = b"".join(found)
        about = {
            "total": len(object_ids),
            "waiting": rows.waiting,
            "renamed": json.dumps(await _observed_paths(vectors.memory)),
        }
        count = len(rows.about)
        head = _header(wanted, count, len(lines), about)
        with bulk.files.create(caller, wanted, count, besides=len(head) + len(lines)) as file:
            for content in (head, *rows.vectors, lines):
                await threads.run(file.append, content)
            return await threads.run(file.seal)


async def _observed_paths(memory: StateStore) -> dict[str, str]:
    """Return the paths of observed objects by those of their differently named declarations."""
    one, found = memory.declarations.one, dict[str, str]()
    for part in slices([*memory.declarations.renamed()], _AT_A_TIME):
        found |= {paths.of(*each): paths.of(*one(each)) for each in part}
        await asyncio.sleep(_REST_SECONDS)
    return found


def _part(object_ids: Sequence[ObjectId], checked: Options) -> Sequence[ObjectId]:
    """Return the objects that a call wants: a page of an even sample."""
    limit, offset = checked.get("limit", MAX_ROWS), checked.get("offset", 0)
    sample = checked.get("sample", len(object_ids))
    require_range("limit", limit, 1, MAX_ROWS)
    if sample < len(object_ids):
        object_ids = [object_ids[n * len(object_ids) // sample] for n in range(sample)]
    return object_ids[offset : offset + limit]


async def _look_up(
    object_ids: Sequence[ObjectId], memory: StateStore, index: VectorIndex, wanted: Format
) -> _Rows:
    """Look up vectors on the event loop, where the index is written, in small steps."""
    rows = _Rows()
    for part in slices(object_ids, _AT_A_TIME):
        found = []
        for object_id in filter(memory.catalogue.has, part):
            entries = memory.catalogue.require_entries(object_id)
            vector = index.get(representative(entries).text_digest)
            if vector is None:
                rows.waiting += 1
            else:
                rows.about.append((object_id, entries))
                found.append(vector)
        if found:
            rows.vectors.append(wanted.encode(np.stack(found)))
        await asyncio.sleep(_REST_SECONDS)
    return rows


def _describe_objects(
    rows: Sequence[tuple[ObjectId, Sequence[Entry]]],
    contents: Mapping[int, Content],
    memory: StateStore,
) -> bytes:
    """Return a line of JSON for each object: its id, the first line of its text, and its state.

    Text and state are empty if the object was removed.
    """
    lines = []
    for object_id, entries in rows:
        entry = representative(entries)
        content, fields = contents.get(entry.id), memory.merge_properties(entries, contents)
        line = content.text.partition("\n")[0] if content else ""
        text = mark_declared(memory.declarations, entry, content, line) if content else ""
        states = [fields[key] for key in _STATES if key in fields][:_MOST_STATES]
        texts = [value[:_MOST_CHARACTERS] for value in states if isinstance(value, str)]
        state = ", ".join(dict.fromkeys(filter(None, texts)))
        if state and entry.identity.source == FILE:
            state = f"declared {state}"
        lines.append(json.dumps([*object_id, text, state]).encode() + b"\n")
    return b"".join(lines)


def _header(wanted: Format, rows: int, said: int, about: Mapping[str, object]) -> bytes:
    """Return the header of a safetensors file; `said` is the size of the descriptions."""
    size = rows * wanted.row_bytes
    width = wanted.row_bytes if wanted.dtype == "ubinary" else wanted.dimensions
    types = {"dtype": _TYPES[wanted.dtype], "shape": [rows, width]}
    tensors = {
        "__metadata__": {key: str(value) for key, value in about.items()},
        "vectors": {**types, "data_offsets": [0, size]},
        "objects": {"dtype": "U8", "shape": [said], "data_offsets": [size, size + said]},
    }
    text = json.dumps(tensors).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text
