"""Measures how long one call keeps the interpreter's lock, and how long it stops the event loop.

A daemon with 2,000 objects, watched as watched.py says, gets the largest calls that it takes, of
every method, and texts that patterns may be slow with. Time in which the daemon computed nothing
does not count, nor that in which its loop waited for a processor. Beginnings of the names of cases
as arguments run only these. Writes JSON to stdout.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

sys.path.extend(str(Path(__file__).parent / part) for part in (".", "../tests"))
import million
import sizes
from harness.running import (
    HISTORY,
    HISTORY_PATH,
    ROOT_PATH,
    STATE,
    STATE_PATH,
    VECTORIZER,
    Caller,
    Running,
    calling,
)
from watched import MARKS, TRACED

from opdbus.bench.machine import describe
from opdbus.bus import paths
from opdbus.bus.transport.connection import RemoteError
from opdbus.bus.transport.values import Typed
from opdbus.client import Client
from opdbus.errors import OpDbusError

Call: TypeAlias = Callable[[Caller], Awaitable[Any]]
Cases: TypeAlias = Iterator[tuple[str, Call]]

OBJECTS: Final = 2000
_MOST: Final = 10_000
_PUBLISH: Final = "Publish", "sa(sssa{sv})a{sv}", "lock"
_BOX: Final = paths.of("lab", "box", "eth0")
_HERE: Final = [paths.of("lock", "thing", f"thing-{n}") for n in range(OBJECTS)]
_KEYS: Final = {
    "plain": "key{}",
    "words": "some_key_of_{}",
    "secret": "password_{}",
    "long": "a.long-name of.many/words {}",
    "camel": "SomeKeyOf{}Words",
}
_TOKENS: Final = (
    ":", "a ", "a", "1", "a1", "=", "a=", "-", "--a ", "/", "a/", ".", "a.", "0.", "1:", "'", '"',
    "\\", "{", "[", "(", "<", "@", "a@", "not ", "a: ", "password ", "password=", "--password ",
    "https://a:", "a:b@", "\n", "\t", " ", ",", ", ", "% ", "$", "é", "\u200b", "\uff41", "Zz9+/",
    "AKIA", "-----BEGIN PRIVATE KEY-----",
    "eyJ", "0x", "1e", "bearer ", "a-", "a_", "is ", "before ",
)  # fmt: skip
_FEW: Final = ":", "a ", "not ", "é"


def _of(path: str, interface: str, member: str, signature: str, *body: object) -> Call:
    return lambda caller: caller.call(path, f"{interface}.{member}", signature, *body)


def _state(member: str, signature: str, *body: object) -> Call:
    return _of(STATE_PATH, STATE, member, signature, *body)


def _history(member: str, signature: str, *body: object) -> Call:
    return _of(HISTORY_PATH, HISTORY, member, signature, *body)


def _vectorizer(member: str, signature: str, *body: object) -> Call:
    return _of(ROOT_PATH, VECTORIZER, member, signature, *body)


def _publish(*objects: object) -> Call:
    return _state(*_PUBLISH, list(objects), {})


def _box(value: object) -> Call:
    return _publish(["lab", "box", "eth0", {"address": value}])


def _bulk(bus: str, lines: list[str]) -> Call:
    async def call(_caller: Caller) -> None:
        async with Client(bus) as client:
            (await client.vectorize_bulk(lines)).file.close()

    return call


def questions(bus: str) -> Cases:
    """Yield calls with the longest questions, conditions, names and options."""
    for name, text in texts(1_000_000, *_FEW).items():
        yield f"Search: {name}", _state("Search", "sua{sv}", text, 10, {})
        yield f"Ask: {name}", _state("Ask", "sua{sv}", text, 10, {})
        yield f"Vectorize: {name}", _vectorizer("Vectorize", "sa{sv}", text, {})
        yield f"CountTokens: {name}", _vectorizer("CountTokens", "asa{sv}", [text], {})
        yield f"VectorizeBulk: {name}", _bulk(bus, [text])
    for name, text in texts(60_000, *_FEW).items():
        for key in ("about", "before_event", "where"):
            yield f"Changes {key}: {name}", _history("Changes", "a{sv}u", {key: text}, 10)
        yield f"Nearest: {name}", _history("Nearest", "a{sv}u", {"about": text}, 10)
        yield f"DriftReport: {name}", _state("DriftReport", "a{sv}", {"about": text})
        yield f"Search where: {name}", _state("Search", "sua{sv}", "thing", 10, {"where": text})
        yield f"Forget: {name}", _history("Forget", "a{sv}", {"containing": text})
    for name, text in texts(_MOST, *_FEW).items():
        yield f"Resolve: {name}", _state("Resolve", "sa{sv}", text, {})
    for name, given in (
        ("many options", {f"o{n}": n for n in range(150_000)}),
        ("nested options", {"mode": nested(1_000_000)}),
    ):
        yield f"Search: {name}", _state("Search", "sua{sv}", "thing", 10, given)
        yield f"Changes: {name}", _history("Changes", "a{sv}u", given, 10)


def reads(bus: str) -> Cases:
    """Yield calls for as much as a method gives."""
    every = {"all": True}
    yield "Search: 10,000 hits", _state("Search", "sua{sv}", "thing word", _MOST, every)
    explained = every | {"explain": True}
    yield "Search: explained", _state("Search", "sua{sv}", "thing word", _MOST, explained)
    yield "Similar: 10,000", _state("Similar", "oua{sv}", _HERE[0], _MOST, {})
    yield "Similar: explained", _state("Similar", "oua{sv}", _HERE[0], 500, {"explain": True})
    yield "Clusters", _state("Clusters", "ua{sv}", 100, {})
    yield "Outliers", _state("Outliers", "ua{sv}", _MOST, {})
    yield "List", _state("List", "a{sv}uu", {}, 0, _MOST)
    yield "Fields", _state("Fields", "a{sv}", {})
    fields, object_ids = [f"key{n}" for n in range(64)], (_HERE * 5)[:_MOST]
    yield "Values: 640,000", _state("Values", "aoasa{sv}", object_ids, fields, {})
    yield "Values: marked", _state("Values", "aoasa{sv}", object_ids, fields, {"marked": True})
    yield "Values: no object", _state("Values", "aoasa{sv}", ["/a"] * 100_000, [], {})
    yield "Vector", _state("Vector", "oa{sv}", _HERE[0], {})
    yield "Vectors", _state("Vectors", "a{sv}", {})
    yield "Unobserved", _state("Unobserved", "a{sv}", {})
    yield "DriftReport", _state("DriftReport", "a{sv}", {"limit": _MOST})
    yield "Levels", _vectorizer("Levels", "a{sv}", {})
    yield "Status", _vectorizer("Status", "a{sv}", {})
    standard = "org.freedesktop.DBus."
    yield "GetAll", _of(STATE_PATH, f"{standard}Properties", "GetAll", "s", STATE)
    yield "Introspect", _of(STATE_PATH, f"{standard}Introspectable", "Introspect", "")
    level = "org.freedesktop.LogControl1", "LogLevel", Typed("s", "info")
    yield "Set", _of(paths.LOG_CONTROL, f"{standard}Properties", "Set", "ssv", *level)
    yield "Changes: 10,000", _history("Changes", "a{sv}u", {}, _MOST)
    yield "Changes: around", _history("Changes", "a{sv}u", {"around": _HERE[0]}, _MOST)
    yield "Changes: about", _history("Changes", "a{sv}u", {"about": "thing word"}, _MOST)
    yield "Nearest: an object", _history("Nearest", "a{sv}u", {"object": _HERE[0]}, _MOST)
    now = int(time.time() * 1e6)
    yield "ObjectAt", _history("ObjectAt", "ota{sv}", _HERE[0], now, {"large": True})
    many = [f"word {n} of a text" for n in range(_MOST)]
    yield "VectorizeMany", _vectorizer("VectorizeMany", "asa{sv}", many[:1000], {})
    yield "CountTokens: 10,000", _vectorizer("CountTokens", "asa{sv}", many, {})
    yield "VectorizeBulk: 10,000", _bulk(bus, many)


def values() -> Cases:
    """Yield calls that publish one object, declared with an address, of the largest values."""
    for name, text in texts(250_000).items():
        yield f"Publish: {name}", _box(text)
    yield "Publish: 64k numbers", _box([n % 10 for n in range(1 << 16)])
    yield "Publish: 64k texts", _box([""] * (1 << 16))
    yield "Publish: 50k variants", _box([n % 7 if n % 2 else "a" for n in range(50_000)])
    yield "Publish: 9,000 objects inside", _box([{"a": n, "b": "x"} for n in range(9000)])
    yield "Publish: nested lists", _box(nested(250_000))
    yield "Publish: 18 levels", _box(deep(18))
    for name, key in _KEYS.items():
        keys = {key.format(n): f"{n}" for n in range(9000)}
        yield f"Publish: 9,000 keys, {name}", _publish(["lab", "box", "eth0", keys])
    yield "Publish: 9,000 keys inside", _box({f"key{n}": f"value {n}" for n in range(9000)})
    yield "Publish: too large", _box(nested(3_900_000))
    yield "Get", _state("Get", "oa{sv}", _BOX, {"large": True})
    yield "Forget: an object", _history("Forget", "a{sv}", {"object": _BOX})
    yield "Forget: a text", _history("Forget", "a{sv}", {"containing": "value 77"})


def many_objects() -> Cases:
    """Yield calls that publish, read and withdraw 10,000 objects."""
    named = [["lock", "many", f"many-{n}", {"a": f"word {n}", "b": n}] for n in range(_MOST)]
    yield "Publish: 10,000 objects", _publish(*named)
    changed = [[*one[:3], {"a": "changed", "b": -n}] for n, one in enumerate(named)]
    yield "Publish: 10,000 changed", _publish(*changed)
    same = [["lock", f"kind{n % 500}", "eth0", {"a": n}] for n in range(_MOST)]
    yield "Publish: 10,000 of one name", _publish(*same)
    there = [paths.of(*map(str, one[:3])) for one in named]
    yield "Values: 20,000", _state("Values", "aoasa{sv}", there, ["a", "b"], {})
    yield "List: of more", _state("List", "a{sv}uu", {}, 0, _MOST)
    yield "Search: of more", _state("Search", "sua{sv}", "word", _MOST, {"all": True})
    yield "Similar: of more", _state("Similar", "oua{sv}", there[0], _MOST, {})
    yield "Changes: of more", _history("Changes", "a{sv}u", {}, _MOST)
    yield "Withdraw: 10,000", _state("Withdraw", "aoa{sv}", there, {})
    yield "Withdraw: no object", _state("Withdraw", "aoa{sv}", ["/a"] * 400_000, {})
    yield "Reload: 20,000 objects", _vectorizer("Reload", "a{sv}", {})
    yield "SetProvider", _vectorizer("SetProvider", "ssa{sv}", "cpu", "", {})


def texts(size: int, *tokens: str) -> dict[str, str]:
    """Return texts of so many bytes: tokens that are repeated, random words, pairs and JSON."""
    chance = random.Random(5)  # noqa: S311 -- the same texts each time
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
    made = {repr(one): one * (size // len(one.encode()) - 1) + "!" for one in tokens or _TOKENS}
    made["a random word"] = "".join(chance.choices(letters, k=size))
    words = ("".join(chance.choices(letters, k=9)) for _ in range(size // 10))
    made["random words"] = " ".join(words)
    made["lines of pairs"] = "\n".join(f"key{n}: value {n}" for n in range(size // 24))
    made["a JSON list"] = json.dumps([*range(size // 8)])[:size]
    return made | {"a deep JSON list": "[" * 500 + "]" * 500}


def deep(levels: int) -> Any:  # noqa: ANN401 -- of D-Bus
    """Return dicts inside each other."""
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value}
    return value


def nested(size: int) -> Any:  # noqa: ANN401 -- of D-Bus
    """Return the list of lists of bytes that takes the longest to decode, of so many bytes."""
    return [[Typed("y", 0)] * 10] * (size // 48)


async def _settled(daemon: Running) -> None:
    """Wait until the daemon computes next to nothing."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        before = sizes.exact_seconds(daemon.pid)
        await asyncio.sleep(0.2)
        # the watching thread takes some
        if sizes.exact_seconds(daemon.pid) - before < 0.05:
            return


async def measured(daemon: Running, marks: mmap.mmap, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Return the longest times of each case, or of those whose names begin as is wanted."""
    found: dict[str, Any] = {}
    async with calling(daemon.bus) as caller:
        await caller.vectorized()
        fields = [{f"key{k}": f"word {n} {k}" for k in range(8)} for n in range(OBJECTS)]
        object_ids = [["lock", "thing", f"thing-{n}", one] for n, one in enumerate(fields)]
        await _publish(*object_ids)(caller)
        bus = daemon.bus
        for name, call in chain(questions(bus), reads(bus), values(), many_objects()):
            if name.startswith(wanted):
                if name.startswith("Reload"):
                    _declare_more(Path(daemon.folder) / "none.json")
                await _settled(daemon)
                marks[:] = bytes(MARKS.size)
                found[name] = await _asked(caller, call)
                await _settled(daemon)
                lock, loop = (round(1000 * one, 1) for one in MARKS.unpack(marks[:]))
                found[name] |= {"lock ms": lock, "loop ms": loop}
                print(name, found[name], file=sys.stderr, flush=True)
    return found


async def _asked(caller: Caller, call: Call) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        await call(caller)
        outcome = "answered"
    except (OpDbusError, RemoteError) as error:
        outcome = getattr(error, "name", type(error).__name__).rpartition(".")[2]
    return {"call s": round(time.perf_counter() - began, 2), "outcome": outcome}


def _declare_more(path: Path) -> None:
    """Declare 20,000 objects more."""
    declared = {f"u{n}": {"description": f"word {n}", "enabled": True} for n in range(20_000)}
    path.write_text(json.dumps({"version": 1, "plugins": {"systemd": {"units": declared}}}))


def main() -> None:
    """Print the figures as JSON."""
    report: dict[str, Any] = {"date": f"{datetime.now(UTC):%F}", "machine": describe().line}
    with tempfile.TemporaryDirectory() as folder:
        home, marks = Path(folder), Path(folder) / "marks"
        marks.write_bytes(bytes(MARKS.size))
        declared = {"lab": {"boxes": [{"name": "eth0", "address": "10.0.0.1"}]}}
        (home / "none.json").write_text(json.dumps({"version": 1, "plugins": declared}))
        with million.placed(home, "static") as daemon, marks.open("r+b") as file:
            watched = Path(__file__).with_name("watched.py")
            daemon.starter = sys.executable, str(watched), str(marks)
            with daemon:
                memory = mmap.mmap(file.fileno(), MARKS.size)
                found = asyncio.run(measured(daemon, memory, tuple(sys.argv[1:]) or ("",)))
            if float("inf") != TRACED:
                print(daemon.logs(), file=sys.stderr)
    for which in ("lock ms", "loop ms"):
        report[f"longest {which}"] = max(one[which] for one in found.values())
    report["cases"] = found
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
