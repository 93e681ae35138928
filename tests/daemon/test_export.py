"""What a program copies: all objects in one file, and history with what its hashes cover."""

import asyncio
import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.running import STATE, STATE_PATH, Caller, Running, calling, replace, work_of

from opdbus.bus import paths
from opdbus.bus.transport.connection import RemoteError
from opdbus.client import Client
from opdbus.errors import LimitsExceeded, UnknownObject
from opdbus.state.object import canonical

# Characters that a careless reader takes for an end of line or of a part.
ODD = 'tab\t line\n end\u2028 next\x85 "\\u0000\\" whole\U0001f600'
DECLARED = {
    "version": 1,
    "plugins": {
        "systemd": {"units": {"a.service": {"enabled": True}, "b.service": {"note": ODD}}},
        "lab": {"boxes": {"shared": {"size": 1, "only": "here"}}},
    },
}
UNKNOWN = f"{STATE_PATH}/lab/box/nowhere"


async def exported(
    client: Client, objects: tuple[str, ...] = (), **options: bool
) -> list[tuple[Any, str]]:
    """Export objects, and give META and BODY of each line."""
    with await client.export(objects, **options) as file:
        lines = file.read().decode().split("\n")
    assert lines.pop() == ""
    pairs = [line.split("\t") for line in lines]
    return [(json.loads(meta), body) for meta, body in pairs]


def served(daemon: Running, work: Callable[[Client, Caller], Awaitable[Any]]) -> Any:
    """Do work as two clients of a daemon that has compared and embedded everything."""

    async def both() -> Any:
        async with calling(daemon.bus) as caller, Client(daemon.bus) as client:
            await caller.vectorized()
            return await work(client, caller)

    return asyncio.run(both())


@pytest.fixture(scope="module")
def shared(
    shared_daemons: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Running:
    """Start a daemon with objects of several sources."""
    file = replace(tmp_path_factory.mktemp("state") / "state.json", json.dumps(DECLARED))
    running = shared_daemons(STATE_FILE=file).start()

    async def publish(client: Client, _caller: Caller) -> None:
        box = ("lab", "box", "shared")
        await client.publish("one", [(*box, {"size": 2, "of one": [1.5, True]})])
        await client.publish("two", [(*box, {"size": 3, "nested": {"z": 1, "a": "ü"}})])
        many = [("lab", "box", f"n{n} ü/\n", {"number": n}) for n in range(250)]
        await client.publish("two", many)

    served(running, publish)
    return running


@work_of(served, "shared")
async def test_a_line_says_what_its_object_says(client: Client) -> None:
    """Give what Object1 has of each object that List has, in canonical JSON."""
    _, rows = await client.pages({}, 0, None)
    found = await exported(client)
    assert len(found) == len(rows) >= 253
    names = []
    for meta, body in found:
        line = json.loads(body)
        assert body == canonical(line)
        names.append([line["plugin"], line["kind"], line["name"]])
        if len(names) % 20 and line["name"].startswith("n"):
            continue
        about = await client.show(paths.of(*names[-1]))
        assert meta == [about["UpdatedAt"] * 10**6]
        assert line == {
            "plugin": about["Plugin"],
            "kind": about["Kind"],
            "name": about["Name"],
            "source": about["Source"],
            # what is embedded has no words about presence
            "text": about["Text"].removeprefix("declared, missing: ").removeprefix("declared "),
            "observed": json.loads(about["Observed"] or "null"),
            "declared": json.loads(about["Declared"] or "null"),
        }
    assert names == [row[1:] for row in rows]
    (_, body), (_, other) = await exported(
        client, (f"{STATE_PATH}/lab/box/shared", f"{STATE_PATH}/systemd/unit/b_2eservice")
    )
    line = json.loads(body)
    assert line["source"] == "publish:two"
    assert line["declared"] == {"size": 1, "only": "here"}
    assert line["observed"] == {"size": 3, "of one": [1.5, True], "nested": {"z": 1, "a": "ü"}}
    assert json.loads(other)["declared"] == {"note": ODD}


@work_of(served, "shared", handed=2)
async def test_named_objects_come_in_their_order(client: Client, caller: Caller) -> None:
    """Write a line for each named object, also for one that is named twice or does not exist."""
    everything = {paths.of(*_name(body)): (meta, body) for meta, body in await exported(client)}
    one, two, *_ = everything
    wanted = (two, UNKNOWN, one, two)
    found = await exported(client, wanted)
    unknown = ([], '["lab","box","nowhere"]')
    assert found == [everything[two], unknown, everything[one], everything[two]]
    digests = await exported(client, wanted, digests=True)
    for (meta, body), (same, digest) in zip(found, digests, strict=True):
        own = [*_name(body), *([hashlib.sha256(body.encode()).hexdigest()] if meta else [])]
        assert (meta, canonical(own)) == (same, digest)
    with pytest.raises(UnknownObject):
        await exported(client, ("/org/opdbus/history",))
    with pytest.raises(LimitsExceeded, match="100001 objects, past the limit"):
        await exported(client, (f"{STATE_PATH}/a/b/c",) * 100_001)
    with pytest.raises(RemoteError, match="digests"):
        await caller.call(STATE_PATH, f"{STATE}.Export", "aoa{sv}", [], {"digests": 1})


@work_of(served, "shared", handed=2)
async def test_vectors_come_with_what_made_them(client: Client, caller: Caller) -> None:
    """Give the vector of each object as Vector does, and the numerics of Embed."""
    *_, details = await caller.ask("Embed", ["mail"], {})
    found = await exported(client, vectors=True)
    assert [body for _, body in found] == [body for _, body in await exported(client)]
    for (at, numerics, data), body in found[::50]:
        (path,) = [paths.of(*_name(body))]
        *_, vector = await caller.call(
            STATE_PATH, f"{STATE}.Vector", "oa{sv}", path, {"dtype": "float16"}
        )
        assert (numerics, base64.b64decode(data)) == (details["numerics"], bytes(vector))
        assert np.frombuffer(bytes(vector), "<f2").any()
        assert at % 10**6 == 0
    assert details["numerics"]
    assert (await exported(client, (UNKNOWN,), vectors=True))[0][0] == []


@work_of(served, "shared")
async def test_a_client_computes_the_chain_of_history(client: Client) -> None:
    """Read all changes in parts with what their hashes cover, the same after values are erased."""
    wanted = {"chain": True, "order": "oldest"}

    async def verified() -> list[str]:
        before, found = bytes(32), await client.changes(wanted, 10_000)
        for number, row in enumerate(found, 1):
            before = hashlib.sha256(b"\0" + before + row["chained"].encode()).digest()
            assert (row["seq"], row["hash"]) == (number, before.hex())
        return [row["hash"] for row in found]

    hashes = await verified()
    assert len(hashes) > 250
    assert (await client.forget({"object": f"{STATE_PATH}/lab/box/shared"}))[0] >= 3
    assert (await verified())[: len(hashes)] == hashes
    newest = await client.changes({"chain": True}, 1)
    assert newest[0]["seq"] > len(hashes)


def test_the_same_state_has_the_same_bytes_after_a_restart(
    daemons: Callable[..., Running], tmp_path: Path
) -> None:
    """Repeat all lines, and change only the one of an object that changed; without a model."""
    file = replace(tmp_path / "state.json", json.dumps(DECLARED))
    boxes = [("lab", "box", f"n{n}", {"number": n}) for n in range(5)]
    with daemons(STATE_FILE=file, VECTOR_LEVEL="none").start() as daemon:

        async def begin(client: Client, _caller: Caller) -> list[tuple[Any, str]]:
            await client.publish("one", [("lab", "box", "shared", {"size": 2}), *boxes])
            await client.publish("two", [("lab", "box", "shared", {"size": 3, "more": 1})])
            # the same second, most probably: which source comes first must not depend on it
            await client.publish("one", [("lab", "box", "shared", {"size": 4})])
            found = await exported(client, vectors=True)
            assert all(meta[1:] == ["", ""] for meta, _ in found)
            return [body for _, body in found]

        before = served(daemon, begin)
        assert daemon.stop() == 0
        daemon.start()

        async def again(client: Client, caller: Caller) -> None:
            async def bodies() -> list[str]:
                return [body for _, body in await exported(client)]

            await caller.until(bodies, before)
            await client.publish("one", [("lab", "box", "n3", {"number": 33})])
            after = await bodies()
            changed = [body for body in after if body not in before]
            assert [json.loads(body)["observed"] for body in changed] == [{"number": 33}]
            assert len(after) == len(before)

        served(daemon, again)


def _name(body: str) -> list[str]:
    line = json.loads(body)
    return line[:3] if isinstance(line, list) else [line["plugin"], line["kind"], line["name"]]
