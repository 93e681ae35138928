"""The rows that a host sends, as the daemon gives them over the bus."""

import base64
import json
import math
import struct
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, BinaryIO, Final, NamedTuple

import structlog

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import BusError, LimitsExceeded, OpDbusError
from opdbus.fleet.uplink import ChangeRow, HostFacts, StateRow
from opdbus.history.checkpoint import origin
from opdbus.state.database_text import replace_unfit, replace_unfit_json
from opdbus.state.object import Json

log = structlog.get_logger()

# Limits of a batch.
BATCH_ROWS: Final = 500
BATCH_BYTES: Final = 8 << 20
# Larger states, and larger details of a row, are refused by the database.
_MOST_BYTES: Final = 4 << 20
_LONGEST_REASON: Final = 500
# Rows of one read of history, so that large rows do not exceed a batch by much.
_ROWS_A_READ: Final = 100
# Objects whose vectors are looked at for what made them.
_MODEL_OBJECTS: Final = 50
# Keys of a change that say who made it and why.
_KNOWN: Final = (
    *("by", "by_row", "as_root", "as_root_others", "why", "why_row", "lines", "believed", "moved"),
)
# The fields of a row whose values were erased.
_ERASED: Final = [["", "", ""]]
_FLOAT16_BYTES: Final = 2

Name = tuple[str, str, str]


class ReadRow(NamedTuple):
    """A row of history, the path of its object, and its bytes."""

    row: ChangeRow
    path: str
    size: int


class Model(NamedTuple):
    """The numerics of the daemon's vectors and their dimension; empty and 0 if it has none."""

    numerics: str = ""
    dimension: int = 0


async def read_facts(client: Client, model: Model) -> HostFacts:
    """Return the facts that begin a synchronization.

    Raises BusError while rows of history are hidden: what follows the stored row is not known.
    """
    status = await client.status()
    kept, hidden = await client.kept_rows()
    if hidden:
        raise BusError(
            f"op-dbus looks through {hidden} rows of history for secrets after an update: they are"
            " sent once that is done"
        )
    return HostFacts(
        machine=origin(await _machine_id(client)),
        version=str(status.get("Version", "")),
        level=str(status.get("Level", "")),
        numerics=model.numerics,
        dimension=model.dimension,
        first_kept=kept.start,
        last=kept.stop - 1,
        observers=_observers(status),
    )


async def _machine_id(client: Client) -> str:
    try:
        return await client.machine_id()
    except BusError:
        raise
    except OpDbusError:
        return ""  # a host without one, as a container may be


async def read_observers(client: Client) -> list[list[Json]]:
    """Return (name, state, number of objects, reason) of each observer."""
    return _observers(await client.state())


def _observers(properties: Mapping[str, Json]) -> list[list[Json]]:
    rows = properties.get("Observers", ())
    return [
        replace_unfit([name, state, count, why[:_LONGEST_REASON]])
        for name, state, count, why in rows
    ]


def unlisted_sources(observers: Iterable[Sequence[Json]]) -> frozenset[str]:
    """Return the sources whose objects the daemon may not have seen yet."""
    return frozenset(
        f"live:{name}"
        for name, state, count, *_ in observers
        if state == "starting" or (state == "failed" and not count)
    )


async def read_model(client: Client) -> Model:
    """Return what the daemon's vectors are of, by those of some objects; loads no model."""
    _, rows = await client.page({}, 0, _MODEL_OBJECTS)
    if rows:
        async for file in _export(client, [path for path, *_ in rows], vectors=True):
            with file:
                for line in file:
                    _, numerics, data = [*json.loads(line.partition(b"\t")[0]), "", "", ""][:3]
                    if numerics:
                        return Model(numerics, len(base64.b64decode(data)) // _FLOAT16_BYTES)
    return Model()


async def hash_at(client: Client, seq: int) -> bytes | None:
    """Return the hash of a row of history; None if it is not kept."""
    wanted = {"after": seq - 1, "below": seq + 1, "chain": True}
    rows = await client.changes(wanted, 1) if seq > 0 else []
    return bytes.fromhex(rows[0]["hash"]) if rows else None


async def read_changes(client: Client, after: int, last: int) -> list[ReadRow]:
    """Return the rows after one, up to the last one, of at most one batch."""
    found: list[ReadRow] = []
    size = 0
    while len(found) < BATCH_ROWS and size < BATCH_BYTES:
        wanted = {"after": after, "below": last + 1, "order": "oldest", "chain": True}
        part = [_read_row(row) for row in await client.changes(wanted, _ROWS_A_READ)]
        found += part
        size += sum(row.size for row in part)
        if len(part) < _ROWS_A_READ:
            break
        after = part[-1].row.seq
    return found


def _read_row(change: Mapping[str, Json]) -> ReadRow:
    fields = [list(each) for each in change["fields"]]
    details: dict[str, Any] = {
        "sentence": replace_unfit(change["sentence"]),
        "severity": change.get("severity", ""),
        "known": replace_unfit({key: change[key] for key in _KNOWN if key in change}),
    }
    if fields != _ERASED:
        details["fields"] = [
            [replace_unfit(path), *map(replace_unfit_json, values)] for path, *values in fields
        ]
    chained = str(change["chained"])
    row = ChangeRow(change["seq"], chained, bytes.fromhex(change["hash"]), details)
    size = len(json.dumps(details))
    if size > _MOST_BYTES // 2:  # the database's own format takes more
        # as erased values: without any fields, the change would count as one that changed nothing,
        # and a row `gone` would erase the rows before it
        details["fields"], size = _ERASED, len(chained)
        log.warning(
            "values of a change are too large to send: the fleet has its sentence only, and does"
            " not know this object before it",
            row=row.seq,
        )
    return ReadRow(row, change["object"], size)


async def read_states(
    client: Client, objects: Sequence[str], skipped: set[str]
) -> AsyncGenerator[list[StateRow], None]:
    """Yield the states of objects, those of one batch at a time.

    Paths of objects whose states are too large to send are added to `skipped`.
    """
    found: list[StateRow] = []
    size = 0
    async for file in _export(client, objects):
        with file:
            for line in file:
                row = _state_row(line)
                if len(line) > _MOST_BYTES:
                    skipped.add(path_of(*row[:3]))
                    continue
                found.append(row)
                size += len(line)
                if len(found) >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield found
                    found, size = [], 0
    if found:
        yield found


async def _export(
    client: Client, objects: Sequence[str], **options: bool
) -> AsyncGenerator[BinaryIO, None]:
    """Yield files with the lines of objects, smaller ones if the daemon refuses a large one."""
    waiting = [objects[at : at + BATCH_ROWS] for at in range(0, len(objects), BATCH_ROWS)]
    while waiting:
        part = waiting.pop(0)
        try:
            file = await client.export(part, **options)
        except LimitsExceeded:
            if len(part) == 1:
                raise
            half = len(part) // 2
            waiting[:0] = [part[:half], part[half:]]
        else:
            yield file


def _state_row(line: bytes) -> StateRow:
    meta, _, body = line.decode().rstrip("\n").partition("\t")
    values, content = json.loads(meta), json.loads(body)
    if not values:
        plugin, kind, name = content
        return StateRow(plugin, kind, name, 0, None)
    return StateRow(content["plugin"], content["kind"], content["name"], int(values[0]), body)


async def read_everything(client: Client) -> AsyncGenerator[StateRow, None]:
    """Yield the state of each object."""
    with await client.export([]) as file:
        for line in file:
            yield _state_row(line)


async def read_digests(client: Client) -> AsyncGenerator[tuple[Name, bytes], None]:
    """Yield the name of each object and the digest of its state."""
    with await client.export([], digests=True) as file:
        for line in file:
            plugin, kind, name, digest = json.loads(line.partition(b"\t")[2])
            yield (plugin, kind, name), bytes.fromhex(digest)


async def read_vectors(
    client: Client, objects: Sequence[str], model: Model
) -> AsyncGenerator[tuple[dict[bytes, Sequence[float]], list[str]], None]:
    """Yield vectors by the SHA-256 of their texts, and the paths of objects that have none yet."""
    async for file in _export(client, objects, vectors=True):
        found: dict[bytes, Sequence[float]] = {}
        lacking = []
        with file:
            for line in file:
                meta, _, body = line.partition(b"\t")
                values, content = json.loads(meta), json.loads(body)
                if not values:
                    continue
                _, numerics, data = values
                vector = _unpack(base64.b64decode(data))
                if numerics != model.numerics or len(vector) != model.dimension:
                    lacking.append(path_of(content["plugin"], content["kind"], content["name"]))
                elif all(map(math.isfinite, vector)):
                    found[sha256(content["text"].encode()).digest()] = vector
        yield found, lacking


def _unpack(data: bytes) -> Sequence[float]:
    return struct.unpack(f"<{len(data) // _FLOAT16_BYTES}e", data)


async def read_drift(client: Client) -> list[list[Json]]:
    """Return (plugin, kind, name, class, severity, since, fields) of each drifted object."""
    rows = []
    for path, kind_of_drift, severity, since, _, fields in await client.drift({}):
        sent = [
            [replace_unfit(name), replace_unfit_json(a), replace_unfit_json(b), worst]
            for name, a, b, worst in fields
        ]
        rows.append([*paths.parse(path), kind_of_drift, severity, int(since), sent])
    return rows


def path_of(plugin: str, kind: str, name: str) -> str:
    """Return the object path of an object."""
    return paths.of(plugin, kind, name)
