"""A client of the daemon: one coroutine for each method."""

import json
import math
import os
from array import array
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from opdbus import errors
from opdbus.bus import paths
from opdbus.bus.names import BUS_NAME, HISTORY, OBJECT, STATE, VECTORIZER
from opdbus.client.parts import answered, as_file, pages, path_size, text_size
from opdbus.client.remote import Json, Remote

# Texts of a call, so that its vectors stay under 1 MiB, whatever the model.
_TEXTS_A_CALL: Final = 128
_OBJECTS_A_CALL: Final = 1000
# Rows of history of a call: 20 ms of work for the daemon.
_ROWS_A_CALL: Final = 200
# Drifted objects of a call: each may have many fields.
_DRIFTS_A_CALL: Final = 100
# Match rules of signals: new rows of history, drift transitions, starts and ends of the daemon.
_ROWS: Final = f"type='signal',interface='{HISTORY}',member='Recorded'"
_CROSSINGS: Final = f"type='signal',sender='{BUS_NAME}',interface='{STATE}',member='DriftDetected'"
_STARTS: Final = (
    f"type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{BUS_NAME}'"
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
        self._remote = Remote(bus)
        self._vectorizer = self._remote.at(paths.ROOT, VECTORIZER)
        self._state = self._remote.at(paths.STATE, STATE)
        self._history = self._remote.at(paths.HISTORY, HISTORY)

    async def __aenter__(self) -> Self:
        """Connect to the bus."""
        await self._remote.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Disconnect."""
        await self._remote.__aexit__(*error)

    def ask_no_user(self) -> None:
        """Disable password prompts: calls without the right fail from now on."""
        self._remote.may_ask_user = False

    async def is_served(self) -> bool:
        """Return whether a daemon owns the bus name; start none."""
        return await self._remote.is_there()

    async def status(self) -> dict[str, Json]:
        """Return all properties of the vectorizer and of the state, in one mapping."""
        try:
            return dict(await self._vectorizer.one("Status", "a{sv}", {}))
        except errors.UnknownMethod:  # a daemon of another version
            return await self._vectorizer.properties() | await self.state()

    async def state(self) -> dict[str, Json]:
        """Return all properties of the state."""
        return await self._state.properties()

    async def levels(self) -> list[list[Json]]:
        """Return (level, model, dimension, status, detail) of each level."""
        return list(await self._vectorizer.one("Levels", "a{sv}", {}))

    async def vectorize(
        self, texts: Sequence[str], options: Mapping[str, Json] | None = None
    ) -> list[list[float]]:
        """Return the vectors of any number of texts; options: level, dimensions."""
        vectors: list[list[float]] = []
        for part in pages(texts, _TEXTS_A_CALL, text_size):
            rows, dimension, _, data = await self._vectorizer.ask(
                "VectorizeMany", "asa{sv}", part, dict(options or {})
            )
            flat: list[float] = list(array("f", bytes(data)))
            vectors += [flat[row * dimension : (row + 1) * dimension] for row in range(rows)]
        return vectors

    async def vectorize_bulk(
        self, texts: Iterable[str] | Path, options: Mapping[str, Json] | None = None
    ) -> Vectors:
        """Return the vectors of any number of texts, or of a file of JSON strings, one a line.

        Options: level, dtype, dimensions, truncate, job. There is no time limit.
        """
        with as_file(texts) as file:
            descriptor, rows, dimension, dtype = await self._vectorizer.ask_patiently(
                "VectorizeBulk", "ha{sv}", file, dict(options or {})
            )
        return Vectors(_opened(descriptor), rows, dimension, dtype)

    async def count_tokens(
        self, texts: Sequence[str], options: Mapping[str, Json] | None = None
    ) -> tuple[int, list[int]]:
        """Return the model's limit and each text's number of tokens; options: level."""
        counts: list[int] = []
        limit = 0
        for part in pages(texts, _TEXTS_A_CALL, text_size) or [[]]:
            limit, tokens = await self._vectorizer.ask(
                "CountTokens", "asa{sv}", part, dict(options or {})
            )
            counts += tokens
        return limit, counts

    async def accuracy(self) -> list[dict[str, Json]]:
        """Return the accuracy gate's grades of each precision of the loaded levels."""
        return list((await self._vectorizer.properties())["Accuracy"])

    async def reload(self) -> None:
        """Let the daemon read its settings and its state file again."""
        await self._vectorizer.ask_patiently("Reload", "a{sv}", {})

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

    async def pages(
        self, wanted: Mapping[str, str], offset: int, limit: int | None
    ) -> tuple[int, list[list[str]]]:
        """Return the same from as many pages as needed; without a limit, all objects."""
        rows: list[list[str]] = []
        size = _OBJECTS_A_CALL
        while True:
            ask = partial(self.page, wanted, offset + len(rows))
            most = size if limit is None else min(size, limit - len(rows))
            (total, page), size = await answered(ask, most)
            rows += page
            if not page or len(rows) in {limit, total - offset}:
                return total, rows

    async def vectors(self, wanted: Mapping[str, Json]) -> BinaryIO:
        """Return a file with the vectors of objects, as State1.Vectors; the caller closes it."""
        return _opened(await self._state.one("Vectors", "a{sv}", dict(wanted)))

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
            found, size = await answered(ask, size)
            rows += [[json.loads(text) if text else None for text in row] for row in found]
        return rows

    async def show(self, path: str) -> dict[str, Json]:
        """Return an object's properties, or the result of State1.Get if they are too large."""
        try:
            return await self._remote.at(path, OBJECT).properties()
        except errors.LimitsExceeded:
            content = await self._state.one("Get", "oa{sv}", path, {"large": True})
        found = {key.capitalize(): value for key, value in json.loads(content).items()}
        sides = {side: json.dumps(found[side]) for side in ("Declared", "Observed") if found[side]}
        return found | sides

    async def drift(self, wanted: Mapping[str, str], most: float = math.inf) -> list[list[Json]]:
        """Return (path, class, severity, since, distance, fields) of drifted objects.

        Each field is (path, declared value, observed value, severity), values as JSON. No more are
        requested once there are `most`.
        """
        found: list[list[Json]] = []
        while True:
            page = {"offset": len(found), "limit": _DRIFTS_A_CALL}
            part = await self._state.one("DriftReport", "a{sv}", {**wanted, **page})
            found += part
            if len(part) < _DRIFTS_A_CALL or len(found) >= most:
                return found

    async def unobserved(self) -> list[list[Json]]:
        """Return (plugin, kind, count, names, why) of declared objects that are not observed.

        The list is empty for a daemon without this method.
        """
        try:
            found = await self._state.one("Unobserved", "a{sv}", {})
        except errors.UnknownMethod:
            return []
        return list(found)

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
            part, size = await answered(ask, min(size, limit - len(found)))
            found += part
            if len(part) < size:
                break
            options["after" if is_oldest_first else "below"] = part[-1]["seq"]
        return found

    async def found(self, wanted: Mapping[str, Json], limit: int) -> list[dict[str, Json]]:
        """Return the changes that answer best, by a filter with about or before_event."""
        return (await answered(partial(self._changes, wanted), limit))[0]

    async def _changes(self, wanted: Mapping[str, Json], limit: int) -> list[dict[str, Json]]:
        return list(await self._history.one("Changes", "a{sv}u", dict(wanted), limit))

    async def nearest(self, like: Mapping[str, Json], limit: int) -> list[list[Json]]:
        """Return similar past changes, each with those that followed, as History1.Nearest."""
        found: list[list[Json]] = await self._history.one("Nearest", "a{sv}u", dict(like), limit)
        return found

    async def last_row(self) -> int:
        """Return the number of the newest change, 0 if there is none."""
        values = await self._history.properties()
        return max(0, int(values["First"]) + int(values["Rows"]) - 1)

    async def recorded(self) -> AsyncGenerator[None, None]:
        """Yield when history may have new rows: after each signal, and after each daemon start."""
        async with aclosing(self._remote.heard(_ROWS, _STARTS)) as heard:
            async for _ in heard:
                yield

    async def news(self) -> AsyncGenerator[frozenset[str], None]:
        """Yield the names of new signals: Recorded, DriftDetected and NameOwnerChanged.

        The first set is empty: from then on, none is missed. Raises BusError once the bus is gone.
        """
        async with aclosing(self._remote.heard(_ROWS, _CROSSINGS, _STARTS)) as heard:
            async for signals in heard:
                yield frozenset(member for member, _ in signals)

    async def transitions(self) -> AsyncGenerator[list[Json], None]:
        """Yield (path, class, severity, fields) of each DriftDetected.

        The first item is an empty list: from then on, none is missed. Raises BusError once the bus
        is gone.
        """
        async with aclosing(self._remote.heard(_CROSSINGS)) as heard:
            async for signals in heard:
                for _, body in signals or [("", [])]:
                    yield body

    async def publish(
        self, source: str, objects: Sequence[Sequence[Json]], lifetime: str = "kept"
    ) -> list[str]:
        """Publish (plugin, kind, name, properties) each, and return their paths.

        Many objects take several calls: if one fails, the objects of earlier ones stay published.
        With the lifetime `connection`, objects exist as long as this connection.
        """
        options = {"lifetime": lifetime}
        found: list[str] = []
        for part in pages(objects, _OBJECTS_A_CALL, path_size) or [[]]:
            found += await self._state.one("Publish", "sa(sssa{sv})a{sv}", source, part, options)
        return found

    async def withdraw(self, objects: Sequence[str]) -> int:
        """Withdraw published objects, and return the number of removed entries."""
        return int(await self._state.one("Withdraw", "aoa{sv}", list(objects), {}))


def _opened(descriptor: Any) -> BinaryIO:  # noqa: ANN401 -- the library's own type
    try:
        return os.fdopen(os.dup(descriptor.fileno()), "rb")
    finally:
        descriptor.close()
