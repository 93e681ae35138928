"""What one call may bring and take away, by the rules and against a daemon."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.running import (
    OBJECT,
    ROOT_PATH,
    STATE,
    STATE_PATH,
    VECTORIZER,
    Caller,
    Running,
    calling,
    work_of,
)

from opdbus.bus.admission import limits
from opdbus.bus.transport.connection import RemoteError
from opdbus.client import Client
from opdbus.errors import LimitsExceeded
from opdbus.state.object import MAX_NAME

LONG = "x " * (1 << 19)


@pytest.fixture(scope="module")
def daemon(shared_daemons: Callable[..., Running]) -> Running:
    """Start a daemon that all tests here ask."""
    return shared_daemons().start()


def ask(daemon: Running, work: Callable[[Caller], Awaitable[None]]) -> None:
    """Do work as a client of a daemon that is ready."""

    async def both() -> None:
        async with calling(daemon.bus) as caller:
            await caller.ready("ready", "degraded")
            await work(caller)

    asyncio.run(both())


async def refused(call: Awaitable[Any]) -> str:
    """Give the sentence of a call that is refused with LimitsExceeded."""
    with pytest.raises(RemoteError) as caught:
        await call
    assert caught.value.name.endswith(".LimitsExceeded")
    return str(caught.value)


def test_text_is_counted_over_all_texts() -> None:
    """Allow 1 MiB of UTF-8 in total and no byte more, and say how much came."""
    limits.require_text([LONG])
    limits.require_text(["\u00e9" * (1 << 18), "y" * (1 << 19)])
    with pytest.raises(LimitsExceeded, match="1048577 bytes of text, past the limit of 1048576"):
        limits.require_text([LONG, "y"])


def test_an_answer_of_many_can_be_asked_for_in_parts() -> None:
    """Advise to ask for fewer only where there are several."""
    with pytest.raises(LimitsExceeded, match="ask for fewer"):
        limits.require_reply([2, ["y" * (1 << 20), "z"]])
    with pytest.raises(LimitsExceeded, match="cannot be split"):
        limits.require_reply(["y" * (1 << 20)])


@work_of(ask, "daemon")
async def test_too_much_text_is_refused(caller: Caller) -> None:
    """Refuse more than 1 MiB of text wherever text is read."""
    calls = {
        f"{VECTORIZER}.Vectorize": ("sa{sv}", LONG + "y", {}),
        f"{VECTORIZER}.VectorizeMany": ("asa{sv}", [LONG, "y"], {}),
        f"{VECTORIZER}.CountTokens": ("asa{sv}", [LONG, "y"], {}),
    }
    for member, arguments in calls.items():
        assert "bytes of text" in await refused(caller.call(ROOT_PATH, member, *arguments))
    search = caller.ask("Search", LONG + "y", 1, {})
    assert "bytes of text" in await refused(search)


@work_of(ask, "daemon")
async def test_what_is_refused_is_not_published(caller: Caller) -> None:
    """Take in nothing of a call that brings too much or whose answer would be too large."""

    async def publish(objects: list[Any]) -> str:
        member, signature = f"{STATE}.Publish", "sa(sssa{sv})a{sv}"
        return await refused(caller.call(STATE_PATH, member, signature, "x", objects, {}))

    before = await caller.read("Count")
    many = await publish([("p", "k", f"{n}", {}) for n in range(10_001)])
    assert "10001 objects, past the limit of 10000" in many
    long = "\u00e9" * 120
    await publish([("p" + long, "k" + long, f"{n}{long}", {}) for n in range(600)])
    assert await caller.read("Count") == before


@work_of(ask, "daemon")
async def test_much_is_given_to_a_client_that_asks_for_it(caller: Caller, daemon: Running) -> None:
    """Refuse more than 64 KiB of an object or of drifts until the caller says how much it wants."""

    async def one(member: str, signature: str, *body: Any) -> Any:
        return (await caller.call(STATE_PATH, f"{STATE}.{member}", signature, *body))[0]

    big = [("p", "k", "big", {"text": "word " * 20_000})]
    (path,) = await one("Publish", "sa(sssa{sv})a{sv}", "x", big, {})
    assert "option large" in await refused(one("Get", "oa{sv}", path, {}))
    assert len(await one("Get", "oa{sv}", path, {"large": True})) > 100_000
    properties = "org.freedesktop.DBus.Properties"
    for call in (
        caller.call(path, f"{properties}.Get", "ss", OBJECT, "Observed"),
        caller.call(path, f"{properties}.GetAll", "s", OBJECT),
    ):
        assert "State1.Get" in await refused(call)
    async with Client(daemon.bus) as client:
        assert len((await client.show(path))["Observed"]) > 100_000


@pytest.mark.parametrize("mode", ["lexical", "vector"])
@work_of(ask, "daemon")
async def test_a_hit_is_small_whatever_its_object_holds(caller: Caller, mode: str) -> None:
    """Give one hit in 64 KiB, with the longest names and as much text as can be published."""
    most = {place: "ж" * (size // 2) for place, size in MAX_NAME.items()}
    texts: list[dict[str, Any]] = [
        {"description": "needle " + "ж" * 120_000},
        {"description": "needle" * 40_000},
        {"needle": ["word " * 5_000] * 10, "description": ""},
        {f"needle{'k' * n}": "v" for n in range(600)},
    ]
    for number, properties in enumerate(texts):
        name = f"{number}{most['name'][1:]}"
        objects = [(most["plugin"], most["kind"], name, properties)]
        call = (f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "x", objects, {})
        await caller.call(STATE_PATH, *call)
    await caller.vectorized()
    found: list[Any] = []
    for offset in range(len(texts)):
        options = {"mode": mode, "offset": offset, "plugin": most["plugin"], "all": True}
        call = (f"{STATE}.Search", "sua{sv}", "needle", 1, options)
        (hits,) = await caller.call(STATE_PATH, *call)
        assert len(json.dumps(hits, ensure_ascii=False).encode()) < limits.SMALL_BYTES
        found.extend(hits)
    assert len(found) >= (len(texts) if mode == "vector" else 2)


@work_of(ask, "daemon")
async def test_clients_split_what_is_too_much_for_one_call(caller: Caller, daemon: Running) -> None:
    """Publish, embed and count over several calls where one would be refused."""
    async with Client(daemon.bus) as client:
        long = "\u00e9" * 120
        objects = [("p" + long, "k" + long, f"{n}{long}", {}) for n in range(600)]
        objects += [("p", "k", f"{n}", {}) for n in range(2500)]
        found = await client.publish("x", objects)
        assert len(found) == len(set(found)) == 3100
        assert found[-1] == "/org/opdbus/state/p/k/_32499"
        assert await client.publish("x", []) == []
        before = await caller.read("Truncated")
        texts = ["mail " * 80_000] * 5
        assert len(await client.vectorize(texts)) == 5
        assert await client.count_tokens(texts) == (48, [80_002] * 5)
        assert await client.count_tokens([]) == (48, [])
    assert await caller.read("Truncated") == before + 5
    assert await caller.read("Texts") >= 5
    assert 0 < await caller.read("Latency") < 60
    assert await caller.read("Memory") > 1 << 24
    assert await caller.read("Precision") == "fp32"
