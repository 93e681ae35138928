"""Simulated hosts for benchmarks/fleet.py, made of the objects that a daemon observes on this host.

Most packages and files are shared, some by the hosts of one role; addresses and one object in
twenty are each host's own, some packages have another version on some hosts, and some values differ
on one host. Each host sends as the sender does.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opdbus.client import Client
from opdbus.fleet.uplink import ChangeRow, HostFacts, StateRow, Uplink
from opdbus.history.hash_chain import row_hash
from opdbus.state.object import canonical

# Every host has its own values of these kinds.
OWN_KINDS = {"net", "system", "devices", "login1", "mounts"}
ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b")
VERSION = re.compile(r"\d+(?=\D*$)")
# Shares of objects: of one role of hosts only; of one host only, as containers, accounts and sites
# are; packages with another version on some hosts; files with a content of their own; and values
# that have drifted.
ROLES, OF_A_ROLE, OWN, PATCHED, WAVES, OWN_FILES, DRIFTED = 4, 0.12, 0.05, 0.05, 4, 0.05, 0.01
BATCH = 500


@dataclass
class Vectors:
    """Vectors by the digest of their text, of one model."""

    client: Client
    numerics: str = ""
    dimension: int = 0
    rows: dict[bytes, list[float]] = field(default_factory=dict)

    async def add(self, texts: Sequence[str]) -> None:
        """Compute the vectors of the texts that have none."""
        new = {digest(text): text for text in texts}
        new = {key: text for key, text in new.items() if key not in self.rows}
        if new:
            found = await self.client.vectorize_bulk(list(new.values()))
            with found.file as file:
                data = np.frombuffer(file.read(), np.float32).reshape(-1, found.dimension)
            self.rows |= dict(zip(new, np.round(data, 5).tolist(), strict=True))


def digest(text: str) -> bytes:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode()).digest()


async def template(client: Client, vectors: Vectors, count: int) -> list[dict[str, Any]]:
    """Return states of this host's objects, padded to a number with units of packages."""
    await settled(client)
    states = []
    with await client.export([], vectors=True) as file:
        for line in file.read().decode().splitlines():
            meta, _, body = line.partition("\t")
            _, numerics, vector = json.loads(meta)
            state = json.loads(body)
            states.append(state)
            if vector:
                row = np.frombuffer(base64.b64decode(vector), np.float16).astype(np.float32)
                vectors.numerics, vectors.dimension = numerics, len(row)
                vectors.rows[digest(state["text"])] = np.round(row, 5).tolist()
    names = unit_files()
    for number in range(max(0, count - len(states))):
        unit = names[number % len(names)] if number < len(names) else f"job-{number}.service"
        observed = {"active_state": "active", "sub_state": "running", "unit_file_state": "enabled"}
        states.append(
            {
                "plugin": "systemd",
                "kind": "unit",
                "name": unit,
                "source": "live:systemd",
                "declared": None,
                "observed": observed,
                "text": f"systemd unit {unit}: active, running, enabled",
            }
        )
    return states[:count]


def unit_files() -> list[str]:
    """Return the names of this host's services, running or not."""
    return sorted(each.name for each in Path("/lib/systemd/system").glob("*.service"))


async def settled(client: Client) -> None:
    """Wait until the observers have listed, and every object has its vector."""
    before = -1
    while True:
        status = await client.status()
        if status["Count"] == before and not status["Pending"]:
            return
        before = status["Count"]
        await asyncio.sleep(5)


class Change(NamedTuple):
    """A change of a simulated host: the place of the object, its new state, and the row."""

    place: int
    state: dict[str, Any]
    row: ChangeRow


class Host:
    """A simulated host: its states, its history, and the time that its changes have waited."""

    def __init__(self, number: int, states: Sequence[dict[str, Any]], count: int) -> None:
        self.name = f"sim{number:04}"
        self.tags = ["sim", f"role{number % ROLES}"]
        self.random = random.Random(number)  # noqa: S311 -- a simulation
        ours = [state for state in states if _role(state) in {None, number % ROLES}]
        self.states = [self._own(number, state) for state in ours[:count]]
        self._planned: dict[int, dict[str, Any]] = {}
        self.changed: deque[tuple[float, int, ChangeRow]] = deque()
        self._seq, self._hash = 0, bytes(32)

    def _own(self, number: int, state: dict[str, Any]) -> dict[str, Any]:
        """Return an object as this host has it."""
        text, share = canonical(state), _share(state)
        changed = text
        if state["plugin"] in OWN_KINDS:
            ours = f"10.{number // 250}.{number % 250}"
            changed = ADDRESS.sub(lambda found: _address(found[0], ours, number), text)
        elif share > 1 - OWN:
            name = f"{state['name']}-{self.name}"
            own = {"name": name, "text": state["text"].replace(state["name"], name)}
            changed = canonical(state | own)
        elif state["plugin"] == "packages" and share < PATCHED:
            version = str((state["observed"] or {}).get("version", "0"))
            changed = text.replace(version, VERSION.sub(str(number % WAVES), version))
        elif state["plugin"] == "files" and share < OWN_FILES:
            own = (state["observed"] or {}) | {"sha256": digest(self.name + state["name"]).hex()}
            changed = canonical(state | {"observed": own})
        elif self.random.random() < DRIFTED:
            changed = text.replace("enabled", "disabled")
        return dict(json.loads(changed)) if changed != text else state

    def plan_change(self) -> Change:
        """Return the next change of a value of a random object."""
        place = self.random.randrange(len(self.states))
        state = json.loads(canonical(self._planned.get(place, self.states[place])))
        value = self.random.randrange(1000)
        state["observed"] = (state["observed"] or {}) | {"restarts": value}
        state["text"] = re.sub(r"; restarts \d+$", "", state["text"]) + f"; restarts {value}"
        self._planned[place] = state
        self._seq += 1
        at = time.time_ns() // 1000
        identity = (state["source"], state["plugin"], state["kind"], state["name"])
        row = [self._seq, at, "boot", *identity, "changed", "job", 0, "00" * 32]
        self._hash = row_hash(self._hash, row)
        details = {
            "fields": [["restarts", "", str(value)]],
            "sentence": f"{state['name']}: restarts {value}",
            "severity": "",
            "known": {},
        }
        return Change(place, state, ChangeRow(self._seq, canonical(row), self._hash, details))

    def make(self, change: Change) -> None:
        """Make a planned change, which waits from now on to be sent."""
        self.states[change.place] = change.state
        self.changed.append((time.perf_counter(), change.place, change.row))

    def row(self, place: int) -> StateRow:
        """Return an object's row."""
        state = self.states[place]
        identity = (state["plugin"], state["kind"], state["name"])
        return StateRow(*identity, time.time_ns() // 1000, canonical(state))

    def facts(self, vectors: Vectors) -> HostFacts:
        """Return what begins a synchronization."""
        return HostFacts(
            f"op-dbus/{self.name}",
            "sim",
            "medium",
            vectors.numerics,
            vectors.dimension,
            1,
            self._seq,
        )


def _share(state: dict[str, Any]) -> float:
    """Return a number from 0 to 1 by the name of an object, the same on all hosts."""
    return digest(f"{state['plugin']}/{state['name']}")[0] / 256


def _role(state: dict[str, Any]) -> int | None:
    """Return the only role that has an object; None if all have it."""
    share = digest(f"role of {state['plugin']}/{state['name']}")[0] / 256
    return int(share / OF_A_ROLE * ROLES) if share < OF_A_ROLE else None


def _address(found: str, ours: str, number: int) -> str:
    if found.startswith("127.") or "." not in found:
        return found if "." in found else f"{found[:-5]}{number // 256:02x}:{number % 256:02x}"
    return f"{ours}.{found.rpartition('.')[2]}"


async def offer(uplink: Uplink, lacking: Sequence[StateRow], vectors: Vectors) -> None:
    """Offer the vectors of objects whose texts lack them."""
    texts = {digest(json.loads(row.body or "{}")["text"]) for row in lacking}
    if texts:
        await uplink.offer_vectors({text: vectors.rows[text] for text in sorted(texts)})


async def load(host: Host, uplink: Uplink, vectors: Vectors) -> None:
    """Send all objects of a host."""
    await uplink.stored_history()
    await uplink.begin(host.facts(vectors), None)
    for start in range(0, len(host.states), BATCH):
        places = range(start, min(start + BATCH, len(host.states)))
        await offer(uplink, await uplink.send([], [host.row(at) for at in places], 0), vectors)
    await uplink.end_comparison()


async def send_changes(host: Host, uplink: Uplink, vectors: Vectors, waits: list[float]) -> None:
    """Send a host's changes as they come, until cancelled."""
    while True:
        if not host.changed:
            await asyncio.sleep(0.05)
            continue
        taken = [host.changed.popleft() for _ in range(len(host.changed))]
        places = sorted({place for _, place, _ in taken})
        lacking = await uplink.send([row for *_, row in taken], [host.row(at) for at in places], 0)
        await offer(uplink, lacking, vectors)
        waits += [time.perf_counter() - began for began, *_ in taken]


async def plan_changes(
    hosts: Sequence[Host], count: int, vectors: Vectors
) -> list[tuple[Host, Change]]:
    """Return changes of random hosts, and compute the vectors of their texts.

    Real hosts compute these themselves, each on its own processors.
    """
    chosen = random.choices(hosts, k=count)  # noqa: S311 -- a simulation
    planned = [(host, host.plan_change()) for host in chosen]
    await vectors.add([change.state["text"] for _, change in planned])
    return planned


async def make_changes(planned: Sequence[tuple[Host, Change]], rate: float) -> None:
    """Make planned changes, `rate` a second, until cancelled or none is left."""
    count = round(rate / 4)
    for start in range(0, len(planned), count):
        began = time.perf_counter()
        for host, change in planned[start : start + count]:
            host.make(change)
        await asyncio.sleep(max(0.0, 0.25 - (time.perf_counter() - began)))
    await asyncio.Event().wait()
