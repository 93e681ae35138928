"""A client of the daemon: one coroutine for each method."""

import asyncio
import json
import math
import os
import re
from array import array
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TypeAlias, TypeVar

from opdbus import errors
from opdbus.bus import paths
from opdbus.bus.names import BUS_NAME, FAILED_UNITS, HISTORY, OBJECT, STATE, VECTORIZER
from opdbus.bus.transport.connection import Connection, RemoteError

T = TypeVar("T")
# The limit of a call's texts and of a reply's paths: the daemon's 1 MiB.
_BYTES_A_CALL: Final = 1 << 20
# Characters of a call of Tokenize.
_CHARACTERS_A_CALL: Final = 16 << 10
# Longer than the usual D-Bus timeout: computing vectors may take long.
PATIENCE_SECONDS: Final = 120.0
# After this time without a reply, the daemon's process is checked.
_SILENCE_SECONDS: Final = 3.0
_NOT_THERE: Final = (
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.Disconnected",
    # the bus started a service that did not appear
    "org.freedesktop.DBus.Error.TimedOut",
    "org.freedesktop.DBus.Error.Spawn.",
    "org.freedesktop.systemd1.",
)

Json: TypeAlias = Any
# Texts of a call, so that its vectors stay under 1 MiB, whatever the model.
TEXTS_A_CALL: Final = 128
_OBJECTS_A_CALL: Final = 1000
# Rows of history of a call: 20 ms of work for the daemon.
_ROWS_A_CALL: Final = 200
# Drifted objects of a call: each may have many fields.
_DRIFTS_A_CALL: Final = 100
# Drifted objects of which is asked who made them drift: history is read for each.
_MOST_ORIGINS: Final = 200
# The source that op-dbus-journal.service publishes while it reads the journal.
_JOURNAL_READER: Final = "publish:journal.reader"
# Match rules of signals: new rows of history, drift transitions, starts and ends of the daemon, and
# changes of properties, such as the reason why nothing can be stored.
_ROWS: Final = f"type='signal',interface='{HISTORY}',member='Recorded'"
_TRANSITIONS: Final = (
    f"type='signal',sender='{BUS_NAME}',interface='{STATE}',member='DriftDetected'"
)
_STARTS: Final = (
    f"type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{BUS_NAME}'"
)


_CHANGED: Final = f"type='signal',sender='{BUS_NAME}',interface='{STATE}',member='Changed'"
_VECTORIZED: Final = f"type='signal',sender='{BUS_NAME}',interface='{STATE}',member='Vectorized'"
_MEMBER: Final = re.compile(r"member='(\w+)'")
_PROPERTIES: Final = (
    f"type='signal',sender='{BUS_NAME}',path='{paths.STATE}',member='PropertiesChanged'"
)


@dataclass(frozen=True, slots=True)
class Vectors:
    """Row-major vectors in a sealed file, which the caller closes.

    `dimension` is the number of components, of the type `dtype`, little-endian.
    """

    file: BinaryIO
    rows: int
    dimension: int
    dtype: str


class Client:
    """A connection to the daemon, as a context; raises BusError without a bus.

    Every coroutine raises the errors of `opdbus.errors` that the daemon replied with, and BusError
    if no daemon answers.
    """

    def __init__(self, bus: str) -> None:
        self._bus = bus
        self._connection = Connection(bus)
        # the bus sends a signal once, however many rules it meets: each listener takes its own
        self._listeners: list[Callable[[str, list[Json]], None]] = []
        self._rules: set[str] = set()
        self._connection.on_signal = lambda message: self._hear(
            message.member or "", list(message.body)
        )
        # whether polkit may ask the user for a password, as a desktop does
        self._may_ask_user = True
        self._vectorizer = _Interface(self._call, paths.ROOT, VECTORIZER)
        self._state = _Interface(self._call, paths.STATE, STATE)
        self._history = _Interface(self._call, paths.HISTORY, HISTORY)

    async def __aenter__(self) -> Self:
        """Connect to the bus."""
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Disconnect."""
        await self._connection.__aexit__(*error)

    @property
    def is_connected(self) -> bool:
        """True if the connection to the bus is open."""
        return not self._connection.is_closed

    def ask_no_user(self) -> None:
        """Disable password prompts: calls without the right fail from now on."""
        self._may_ask_user = False

    async def is_served(self) -> bool:
        """Return whether a daemon owns the bus name; start none."""
        return bool((await self._ask_bus("NameHasOwner", "s", BUS_NAME))[0])

    async def machine_id(self) -> str:
        """Return the machine-id(5) of the daemon's host."""
        peer = _Interface(self._call, paths.ROOT, "org.freedesktop.DBus.Peer")
        return str(await peer.one("GetMachineId", ""))

    async def status(self) -> dict[str, Json]:
        """Return all properties of the vectorizer and of the state, in one mapping."""
        try:
            return dict(await self._vectorizer.one("Status", "a{sv}", {}))
        except errors.UnknownMethod:  # a daemon of another version
            return await self._vectorizer.properties() | await self.state()

    async def state(self) -> dict[str, Json]:
        """Return all properties of the state."""
        return await self._state.properties()

    async def metrics(self) -> str:
        """Return all metrics in Prometheus' text format; a daemon that is down stays so."""
        if not await self.is_served():
            raise self._not_running()
        return str(await self._vectorizer.one("Metrics", "a{sv}", {}))

    async def levels(self) -> list[list[Json]]:
        """Return (level, model, dimension, status, detail) of each level."""
        return list(await self._vectorizer.one("Levels", "a{sv}", {}))

    async def vectorize(
        self, texts: Sequence[str], options: Mapping[str, Json] | None = None
    ) -> list[list[float]]:
        """Return the vectors of any number of texts; options: level, dimensions."""
        dimension, data = await self.vectorize_raw(texts, options)
        flat: list[float] = list(array("f", data))
        return [flat[at : at + dimension] for at in range(0, len(flat), dimension or 1)]

    async def vectorize_raw(
        self, texts: Sequence[str], options: Mapping[str, Json] | None = None
    ) -> tuple[int, bytes]:
        """Return the dimension and the row-major vectors of any number of texts.

        Options: level, dimensions, dtype, truncate, timeout. By default, vectors are float32,
        little-endian.
        """
        parts: list[bytes] = []
        dimension = 0
        for part in split_by_size(texts, TEXTS_A_CALL, text_size):
            _, dimension, _, data = await self._vectorizer.ask(
                "VectorizeMany", "asa{sv}", part, dict(options or {})
            )
            parts.append(bytes(data))
        return dimension, b"".join(parts)

    async def ask_vectorizer(self, method: str, signature: str, *body: Json) -> list[Json]:
        """Call a method of Vectorizer1, and return its reply."""
        return await self._vectorizer.ask(method, signature, *body)

    async def vectorize_bulk(
        self, texts: Iterable[str] | Path, options: Mapping[str, Json] | None = None
    ) -> Vectors:
        """Return the vectors of any number of texts, or of a file of JSON strings, one a line.

        Options: level, dtype, dimensions, truncate, job. There is no time limit.
        """
        with _open_texts(texts) as file:
            descriptor, rows, dimension, dtype = await self._vectorizer.ask_patiently(
                "VectorizeBulk", "ha{sv}", file, dict(options or {})
            )
        return Vectors(_open_descriptor(descriptor), rows, dimension, dtype)

    async def count_tokens(
        self, texts: Sequence[str], options: Mapping[str, Json] | None = None
    ) -> tuple[int, list[int]]:
        """Return the model's limit and each text's number of tokens; options: level."""
        counts: list[int] = []
        limit = 0
        for part in split_by_size(texts, TEXTS_A_CALL, text_size) or [[]]:
            limit, tokens = await self._vectorizer.ask(
                "CountTokens", "asa{sv}", part, dict(options or {})
            )
            counts += tokens
        return limit, counts

    async def tokenize(
        self, texts: Sequence[str], options: Mapping[str, Json] | None = None
    ) -> list[list[list[Json]]]:
        """Return (id, text, added, start, end) of each token of texts; options: level, wait.

        At most 16,384 characters a text.
        """
        tokens: list[list[list[Json]]] = []
        for part in split_by_size(texts, TEXTS_A_CALL, len, _CHARACTERS_A_CALL):
            (found,) = await self._vectorizer.ask("Tokenize", "asa{sv}", part, dict(options or {}))
            tokens += found
        return tokens

    async def accuracy(self) -> list[dict[str, Json]]:
        """Return the accuracy gate's grades of each precision of the loaded levels."""
        return list((await self._vectorizer.properties())["Accuracy"])

    async def reload(self, *, measure: bool = False) -> None:
        """Let the daemon read its settings and state file again, and grade precisions anew."""
        options = {"measure": True} if measure else {}
        await self._vectorizer.ask_patiently("Reload", "a{sv}", options)

    async def set_provider(self, provider: str, device: str = "") -> None:
        """Switch the daemon to another provider; wait until it is proven, without a limit."""
        await self._vectorizer.ask_patiently("SetProvider", "ssa{sv}", provider, device, {})

    async def search(self, query: str, limit: int, options: Mapping[str, Json]) -> list[list[Json]]:
        """Return (path, score, details) of the best hits."""
        return list(await self._state.one("Search", "sua{sv}", query, limit, options))

    async def ask(self, question: str, limit: int) -> tuple[str, dict[str, Json], Json]:
        """Return the route of a question, the options that it sets, and the rows."""
        route, given, rows = await self._state.ask("Ask", "sua{sv}", question, limit, {})
        return route, given, rows

    async def similar(self, path: str, limit: int, options: Mapping[str, Json]) -> list[list[Json]]:
        """Return (path, score, details) of the objects most similar to one."""
        return list(await self._state.one("Similar", "oua{sv}", path, limit, options))

    async def clusters(self, limit: int, options: Mapping[str, Json]) -> list[list[Json]]:
        """Return (name, size, details) of the largest topics."""
        return list(await self._state.one("Clusters", "ua{sv}", limit, options))

    async def outliers(self, limit: int, options: Mapping[str, Json]) -> list[list[Json]]:
        """Return (path, score, details) of the objects that are most unlike their kind."""
        return list(await self._state.one("Outliers", "ua{sv}", limit, options))

    async def page(
        self, wanted: Mapping[str, str], offset: int, limit: int
    ) -> tuple[int, list[list[str]]]:
        """Return the number of matching objects, and one page of (path, plugin, kind, name)."""
        total, rows = await self._state.ask("List", "a{sv}uu", dict(wanted), offset, limit)
        return total, rows

    async def failed_units(self, most: int) -> tuple[int, list[str]]:
        """Return the number of units that are observed as failed, and the first names."""
        total, rows = await self.page({"where": FAILED_UNITS}, 0, most)
        return total, [name for *_, name in rows]

    async def pages(
        self, wanted: Mapping[str, str], offset: int, limit: int | None
    ) -> tuple[int, list[list[str]]]:
        """Return the same from as many pages as needed; without a limit, all objects."""
        rows: list[list[str]] = []
        size = _OBJECTS_A_CALL
        while True:
            ask = partial(self.page, wanted, offset + len(rows))
            most = size if limit is None else min(size, limit - len(rows))
            (total, page), size = await _request_fewer(ask, most)
            rows += page
            if not page or len(rows) in {limit, total - offset}:
                return total, rows

    async def vectors(self, wanted: Mapping[str, Json]) -> BinaryIO:
        """Return a file with the vectors of objects, as State1.Vectors; the caller closes it."""
        return _open_descriptor(await self._state.one("Vectors", "a{sv}", dict(wanted)))

    async def export(
        self, objects: Sequence[str], *, digests: bool = False, vectors: bool = False
    ) -> BinaryIO:
        """Return a file with a line for each object, as State1.Export; the caller closes it.

        Without objects, all are exported. There is no time limit.
        """
        options = {"digests": digests, "vectors": vectors}
        found = await self._state.ask_patiently("Export", "aoa{sv}", list(objects), options)
        return _open_descriptor(found[0])

    async def object_at(self, path: str, at: int) -> dict[str, Json]:
        """Return an object as it was at a time, in microseconds since 1970."""
        content = await self._history.one("ObjectAt", "ota{sv}", path, at, {"large": True})
        found: dict[str, Json] = json.loads(content)
        return found

    async def resolve(
        self, name: str, *, past: bool = False
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Return (path, plugin, kind, name) of a short name's objects, and of similar names.

        With `past`, removed objects are included.
        """
        options = {"past": past}
        found, close = await self._state.ask("Resolve", "sa{sv}", name, options)
        return found, close

    async def fields(self, wanted: Mapping[str, str]) -> list[tuple[str, int]]:
        """Return (dotted path, number of entries) of the fields that objects have."""
        rows = await self._state.one("Fields", "a{sv}", dict(wanted))
        return [(path, count) for path, count in rows]

    async def values(
        self, objects: Sequence[str], fields: Sequence[str], *, marked: bool = False
    ) -> list[list[Json]]:
        """Return a row for each object: each field's value, several values as a list.

        With `marked`, values of objects that are only declared are below the key `declared`,
        `declared missing` or `declared absent`.
        """
        rows: list[list[Json]] = []
        size, options = _OBJECTS_A_CALL, {"marked": True} if marked else {}

        async def ask(most: int) -> list[list[str]]:
            part = objects[len(rows) : len(rows) + most]
            return list(await self._state.one("Values", "aoasa{sv}", part, [*fields], options))

        while len(rows) < len(objects):
            found, size = await _request_fewer(ask, size)
            rows += [[json.loads(text) if text else None for text in row] for row in found]
        return rows

    async def show(self, path: str) -> dict[str, Json]:
        """Return an object's properties, or the result of State1.Get if they are too large."""
        try:
            return await _Interface(self._call, path, OBJECT).properties()
        except errors.LimitsExceeded:
            content = await self._state.one("Get", "oa{sv}", path, {"large": True})
        found = {key.capitalize(): value for key, value in json.loads(content).items()}
        sides = {side: json.dumps(found[side]) for side in ("Declared", "Observed") if found[side]}
        return found | sides

    async def drift(
        self, wanted: Mapping[str, str], most: float = math.inf, offset: int = 0
    ) -> list[list[Json]]:
        """Return (path, class, severity, since, distance, fields) of drifted objects.

        Each field is (path, declared value, observed value, severity), values as JSON. No more are
        requested once there are `most`, and none before the offset.
        """
        found: list[list[Json]] = []
        while True:
            page = {"offset": offset + len(found), "limit": _DRIFTS_A_CALL}
            part = await self._state.one("DriftReport", "a{sv}", {**wanted, **page})
            found += part
            if len(part) < _DRIFTS_A_CALL or len(found) >= most:
                return found

    async def drift_origins(self, objects: Sequence[str]) -> list[dict[str, dict[str, Json]]]:
        """Return of drifted objects, by field, the change that made it differ, if it is known.

        It has seq, at, cause, and by or as_root. Only the first 200 objects are asked for; of the
        others, and for a daemon without this method, nothing is known.
        """
        found: list[dict[str, dict[str, Json]]] = []
        asked = objects[:_MOST_ORIGINS]
        with suppress(errors.UnknownMethod):
            for start in range(0, len(asked), _DRIFTS_A_CALL):
                part = asked[start : start + _DRIFTS_A_CALL]
                found += await self._state.one("DriftOrigins", "aoa{sv}", part, {})
        return found + [{} for _ in range(len(objects) - len(found))]

    async def unobserved(self, most_names: int = 0) -> list[list[Json]]:
        """Return (plugin, kind, count, names, why) of declared objects that are not observed.

        The list is empty for a daemon without this method.
        """
        try:
            options = {"names": most_names} if most_names else {}
            found = await self._state.one("Unobserved", "a{sv}", options)
        except errors.UnknownMethod:
            return []
        return list(found)

    async def baseline(
        self, objects: Sequence[str], scope: str, *, changes: bool = False
    ) -> list[dict[str, Json]]:
        """Return what to declare of objects, as State1.Baseline; others are left out."""
        found: list[dict[str, Json]] = []
        options, at, size = {"scope": scope, "changes": changes}, 0, _OBJECTS_A_CALL

        async def ask(most: int) -> list[str]:
            part = objects[at : at + most]
            return list(await self._state.one("Baseline", "aoa{sv}", part, options))

        while at < len(objects):
            rows, size = await _request_fewer(ask, size)
            found += [json.loads(row) for row in rows if row]
            at += len(rows)
        return found

    async def baseline_kinds(self) -> tuple[list[list[str]], list[str]]:
        """Return the kinds that a baseline claims, and the observers that it awaits."""
        _, claims, awaits = await self._state.ask("Baseline", "aoa{sv}", [], {})
        return claims, awaits

    async def forget(self, what: Mapping[str, Json]) -> tuple[int, int, bool]:
        """Erase values of history, as History1.Forget; return its three results."""
        rows, kept, is_erased = await self._history.ask_patiently("Forget", "a{sv}", dict(what))
        return rows, kept, is_erased

    async def changes(self, wanted: Mapping[str, Json], limit: int) -> list[dict[str, Json]]:
        """Return changes by a filter of History1.Changes, the newest first by default."""
        found: list[dict[str, Json]] = []
        size, options = _ROWS_A_CALL, dict(wanted)
        is_oldest_first = options.get("order") == "oldest"
        while len(found) < limit:
            ask = partial(self._changes, options)
            part, size = await _request_fewer(ask, min(size, limit - len(found)))
            found += part
            if len(part) < size:
                break
            options["after" if is_oldest_first else "below"] = part[-1]["seq"]
        return found

    async def change(self, number: int) -> dict[str, Json] | None:
        """Return the change that has a row number; None if history does not keep it."""
        found = await self.changes({"after": number - 1, "below": number + 1}, 1)
        return found[0] if found else None

    async def changes_by_meaning(
        self, wanted: Mapping[str, Json], limit: int
    ) -> list[dict[str, Json]]:
        """Return the changes that answer best, by a filter with about or before_event."""
        return (await _request_fewer(partial(self._changes, wanted), limit))[0]

    async def _changes(self, wanted: Mapping[str, Json], limit: int) -> list[dict[str, Json]]:
        return list(await self._history.one("Changes", "a{sv}u", dict(wanted), limit))

    async def nearest(self, like: Mapping[str, Json], limit: int) -> list[list[Json]]:
        """Return similar past changes, each with those that followed, as History1.Nearest."""
        found: list[list[Json]] = await self._history.one("Nearest", "a{sv}u", dict(like), limit)
        return found

    async def is_journal_read(self) -> bool:
        """Return whether op-dbus-journal.service publishes who did what, and why units failed."""
        return (await self.page({"source": _JOURNAL_READER}, 0, 1))[0] > 0

    async def kept_rows(self) -> tuple[range, int]:
        """Return the numbers of all changes that can be read, and the number of hidden ones."""
        values = await self._history.properties()
        first = max(1, int(values["First"]))
        return range(first, first + int(values["Rows"])), int(values.get("Hidden", 0))

    async def last_row(self) -> int:
        """Return the number of the newest change, 0 if there is none."""
        kept, _ = await self.kept_rows()
        return kept.stop - 1

    async def new_rows(self) -> AsyncGenerator[frozenset[str], None]:
        """Yield the names of signals after which history may have new rows, or gets none any more.

        They are as of `news`, with PropertiesChanged instead of DriftDetected.
        """
        async with aclosing(self._signals(_ROWS, _STARTS, _PROPERTIES)) as bursts:
            async for signals in bursts:
                yield frozenset(member for member, _ in signals)

    async def storage_error(self) -> str:
        """Return why nothing can be stored; empty if all can be, or of a daemon without that."""
        return str((await self.state()).get("StorageError", ""))

    async def news(self) -> AsyncGenerator[frozenset[str], None]:
        """Yield the names of new signals: Recorded, DriftDetected and NameOwnerChanged.

        The first set is empty: from then on, none is missed. Raises BusError once the bus is gone.
        """
        async with aclosing(self._signals(_ROWS, _TRANSITIONS, _STARTS)) as bursts:
            async for signals in bursts:
                yield frozenset(member for member, _ in signals)

    async def transitions(self) -> AsyncGenerator[list[Json], None]:
        """Yield (path, class, severity, fields) of each DriftDetected.

        The first item is an empty list: from then on, none is missed. Raises BusError once the bus
        is gone.
        """
        async with aclosing(self._signals(_TRANSITIONS)) as bursts:
            async for signals in bursts:
                for _, body in signals or [("", [])]:
                    yield body

    async def all_news(self) -> AsyncGenerator[list[tuple[str, list[Json]]], None]:
        """Yield (name, body) of new signals: as of `news`, and Changed and Vectorized.

        The first list is empty: from then on, none is missed. Raises BusError once the bus is gone.
        """
        rules = (_ROWS, _TRANSITIONS, _STARTS, _CHANGED, _VECTORIZED)
        async with aclosing(self._signals(*rules)) as bursts:
            async for signals in bursts:
                yield signals

    async def publish(
        self,
        source: str,
        objects: Sequence[Sequence[Json]],
        lifetime: str = "kept",
        describe: Sequence[str] = (),
    ) -> list[str]:
        """Publish (plugin, kind, name, properties) each, and return their paths.

        Many objects take several calls: if one fails, the objects of earlier ones stay published.
        With the lifetime `connection`, objects exist as long as this connection. The properties
        named by `describe` make the text by whose meaning the objects are found.
        """
        options = {"lifetime": lifetime} | ({"describe": [*describe]} if describe else {})
        found: list[str] = []
        for part in split_by_size(objects, _OBJECTS_A_CALL, _path_size) or [[]]:
            found += await self._state.one("Publish", "sa(sssa{sv})a{sv}", source, part, options)
        return found

    async def withdraw(self, objects: Sequence[str]) -> int:
        """Withdraw published objects, and return the number of removed entries."""
        return int(await self._state.one("Withdraw", "aoa{sv}", list(objects), {}))

    async def _signals(self, *rules: str) -> AsyncGenerator[list[tuple[str, list[Json]]], None]:
        """Yield (member, body) of all signals since the last time.

        The first list is empty: from then on, none is missed. Raises BusError once the bus is gone.
        """
        signals: list[tuple[str, list[Json]]] = []
        news = asyncio.Event()
        wanted = {part for rule in rules for part in _MEMBER.findall(rule)}

        def hear(member: str, body: list[Json]) -> None:
            if member in wanted:
                signals.append((member, body))
                news.set()

        self._listeners.append(hear)
        lost = asyncio.ensure_future(self._connection.wait_closed())
        try:
            for rule in {*rules} - self._rules:
                await self._ask_bus("AddMatch", "s", rule)
                self._rules.add(rule)
            yield []
            while not lost.done():
                waiting = asyncio.ensure_future(news.wait())
                await asyncio.wait({waiting, lost}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                news.clear()
                taken, signals = signals, []
                if taken:
                    yield taken
        finally:
            lost.cancel()
            self._listeners.remove(hear)
        raise errors.BusError(f"the connection to the {self._bus} bus was lost")

    def _hear(self, member: str, body: list[Json]) -> None:
        for listener in self._listeners:
            listener(member, body)

    async def _ask_bus(self, method: str, signature: str, *body: Json) -> list[Json]:
        """Call a method of the bus itself; raises the errors of `opdbus.errors`."""
        try:
            return await self._connection.ask_bus(method, signature, *body)
        except RemoteError as error:
            raise self._translate(error) from None

    async def _call(self, path: str, member: str, signature: str, *body: Json) -> list[Json]:
        """Call `interface.method`, and wait for its reply without a time limit.

        Raises BusError if the daemon's process is stopped, since it would never answer.
        """
        reply = asyncio.ensure_future(
            self._connection.call(
                BUS_NAME, path, member, signature, *body, is_interactive=self._may_ask_user
            )
        )
        try:
            await asyncio.wait({reply}, timeout=_SILENCE_SECONDS)
            if not reply.done():
                await self._refuse_if_stopped()
            return await reply
        except RemoteError as error:
            raise self._translate(error) from None
        finally:
            reply.cancel()

    async def _refuse_if_stopped(self) -> None:
        """Raise BusError if the daemon's process is stopped, as by SIGSTOP or a debugger."""
        with suppress(RemoteError):
            (pid,) = await self._connection.ask_bus("GetConnectionUnixProcessID", "s", BUS_NAME)
            if _is_stopped(int(pid)):
                raise errors.BusError(
                    f"op-dbus is stopped and cannot answer: `kill -CONT {pid}` lets its process go"
                    " on, unless a debugger holds it"
                )

    def _not_running(self) -> errors.BusError:
        return errors.BusError(
            f"op-dbus is not running on the {self._bus} bus: start it with"
            " `systemctl start op-dbus` or `op-dbus daemon`, or name another bus:"
            " `op-dbus --bus BUS status`"
        )

    def _translate(self, error: RemoteError) -> errors.OpDbusError:
        """Return the error of `opdbus.errors` for a reply with an error."""
        if error.name.startswith(_NOT_THERE):
            return self._not_running()
        if error.name.endswith("AccessDenied"):
            return errors.AccessDenied(str(error))
        known = {kind.dbus_name: kind for kind in errors.tree()}
        return known.get(error.name, errors.OpDbusError)(str(error))


class _Interface:
    """One interface of an object of the daemon."""

    def __init__(self, call: Callable[..., Awaitable[list[Json]]], path: str, name: str) -> None:
        self._call = call
        self._path = path
        self._name = name

    async def properties(self) -> dict[str, Json]:
        """Return all properties."""
        every = _Interface(self._call, self._path, "org.freedesktop.DBus.Properties")
        return dict(await every.one("GetAll", "s", self._name))

    async def one(self, method: str, signature: str, *body: Json) -> Json:
        """Call a method, and return the first value of its reply."""
        return (await self.ask(method, signature, *body))[0]

    async def ask(self, method: str, signature: str, *body: Json) -> list[Json]:
        """Call a method, and return its reply; raise BusError after PATIENCE_SECONDS."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await self.ask_patiently(method, signature, *body)
        except TimeoutError:
            raise errors.BusError(
                f"op-dbus did not answer within {PATIENCE_SECONDS:.0f} s: see its log; if it does"
                " nothing, `systemctl restart op-dbus` starts it again"
            ) from None

    async def ask_patiently(self, method: str, signature: str, *body: Json) -> list[Json]:
        """Call a method, and return its reply, without a time limit."""
        return await self._call(self._path, f"{self._name}.{method}", signature, *body)


def _open_descriptor(descriptor: Any) -> BinaryIO:  # noqa: ANN401 -- the library's own type
    try:
        return os.fdopen(os.dup(descriptor.fileno()), "rb")
    finally:
        descriptor.close()


@contextmanager
def _open_texts(texts: Iterable[str] | Path) -> Iterator[BinaryIO]:
    """Open a file of texts, or write texts to a file in memory; raise InvalidArgs."""
    try:
        if isinstance(texts, Path):
            file: BinaryIO = texts.open("rb")
        else:
            file = os.fdopen(os.memfd_create("op-dbus-texts"), "w+b")
    except OSError as error:
        raise errors.InvalidArgs(f"cannot open the texts: {error}") from None
    with file:
        if not isinstance(texts, Path):
            file.writelines(json.dumps(text).encode() + b"\n" for text in texts)
            file.flush()
        yield file


def split_by_size(
    items: Sequence[T], most: int, size_of: Callable[[T], int], most_size: int = _BYTES_A_CALL
) -> list[list[T]]:
    """Split items into parts of at most `most` items and, unless it is one item, `most_size`."""
    parts: list[list[T]] = []
    size = 0
    for item in items:
        more = size_of(item)
        if not parts or len(parts[-1]) == most or size + more > most_size:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += more
    return parts


async def _request_fewer(ask: Callable[[int], Awaitable[T]], most: int) -> tuple[T, int]:
    """Request `most` rows, and fewer while the reply would be too large.

    Names and values can be very long. Return the answer and the number of requested rows; raise
    LimitsExceeded if a single row is too large.
    """
    while True:
        try:
            return await ask(most), most
        except errors.LimitsExceeded:
            if most == 1:
                raise
            most = max(1, most // 8)


def text_size(text: str) -> int:
    """Return a text's bytes."""
    # a lone surrogate is refused later, when it is sent
    return len(text.encode(errors="replace"))


def _path_size(item: Sequence[Any]) -> int:
    """Return an upper bound of the bytes of an object's path."""
    # an escaped byte takes three characters
    return len(paths.STATE) + 16 + 3 * sum(text_size(part) for part in item[:3])


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped: see proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[:1] in (["T"], ["t"])
