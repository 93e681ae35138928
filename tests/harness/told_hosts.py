"""Hosts of a fleet for tests of questions: their objects and histories, sent at once."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg

from harness.fleets import FleetDatabase, facts
from opdbus.fleet.uplink import ChangeRow, StateRow
from opdbus.history import change
from opdbus.history.hash_chain import row_hash
from opdbus.state.object import canonical

T = TypeVar("T")
Fields = Mapping[str, Any]


def thing(
    kind: str,
    name: str,
    fields: Fields | None,
    *,
    plugin: str = "lab",
    declared: Fields | None = None,
    text: str = "",
) -> StateRow:
    """Return the row of an object, gone if it has no fields."""
    if fields is None and declared is None:
        return StateRow(plugin, kind, name, 1, None)
    state = {
        "plugin": plugin,
        "kind": kind,
        "name": name,
        "source": "file" if fields is None else "live:lab",
        "declared": declared,
        "observed": fields,
        "text": text or f"{kind} {name}",
    }
    return StateRow(plugin, kind, name, 1, canonical(state))


def unit(name: str, state: str = "active", **more: Any) -> StateRow:
    """Return a unit's row."""
    fields = {"active_state": state, "description": f"runs {name}", **more}
    text = f"systemd service {name}: runs {name}"
    return thing("unit", f"{name}.service", fields, plugin="systemd", text=text)


def package(name: str, version: str) -> StateRow:
    """Return a package's row."""
    text = f"software package {name}"
    return thing("package", name, {"version": version}, plugin="packages", text=text)


@dataclass
class History:
    """A host's history as it grows: chained rows."""

    rows: list[ChangeRow]
    last: bytes = bytes(32)

    def add(
        self,
        at: int,
        one: tuple[str, str, str],
        what: str,
        states: tuple[Fields, Fields] = ({}, {}),
        *,
        sentence: str = "",
        cause: str = "",
        source: str = "live:lab",
        known: Fields | None = None,
    ) -> None:
        """Add a change between two states of an object."""
        fields = [
            [".".join(path), *(canonical(side[0]) if side else "" for side in (before, after))]
            for path, before, after in change.differences(*states)
            if before is not None and after is not None
        ]
        seq = len(self.rows) + 1
        hashed: Sequence[Any] = (seq, at, "boot", source, *one, what, cause, 0, "00" * 32)
        self.last = row_hash(self.last, hashed)
        details = {"fields": fields, "sentence": sentence, "severity": "", "known": known or {}}
        self.rows.append(ChangeRow(seq, canonical(hashed), self.last, details))


def tell(
    database: FleetDatabase,
    hosts: Mapping[str, Sequence[StateRow]],
    *tags: str,
    histories: Mapping[str, History] | None = None,
    drift: Mapping[str, Sequence[Sequence[Any]]] | None = None,
) -> None:
    """Add hosts with the tags, unless they are there, and send their objects and histories."""

    async def send(name: str, rows: Sequence[StateRow]) -> None:
        history = (histories or {}).get(name, History([]))
        async with database.uplink(name) as uplink:
            seq, _ = await uplink.stored_history()
            hashes = {row.seq: row.hash for row in history.rows}
            await uplink.begin(facts(name, 1, len(history.rows)), hashes.get(seq))
            await uplink.send(history.rows, rows, 0)
            await uplink.put_drift((drift or {}).get(name, []))
            await uplink.end_comparison()

    for name, rows in hosts.items():
        if name not in database.passwords:
            database.add(name, *tags)
        asyncio.run(send(name, rows))


def ask(database: FleetDatabase, question: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
    """Return the answer to a question."""
    return database.run(question)
