"""What objects cost a daemon by their number: starts, searches, changes, memory, recall.

`python benchmarks/size.py [--objects 10000 100000] [--level medium] [--json FILE]` starts a daemon
of its own on a state file for each number. Above --most objects the level is static, whose vectors
take seconds. Recall is that of a search by vector alone, beside exact cosines of the same vectors;
a hit whose cosine is that of the tenth best is right. OP_DBUS_MODEL_DIR has the models.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from harness import Daemon, cpu_seconds, memory_mib, milliseconds, parse, say, timed, write

from opdbus.client import Client
from opdbus.errors import OpDbusError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROLES: Final = "mail web database cache backup monitoring proxy directory print queue".split()
PLACES: Final = "Vienna Linz Graz Salzburg Innsbruck Bregenz Klagenfurt Villach Wels Steyr".split()
# The last of them have words that a tenth of all objects have, or half of them.
QUESTIONS: Final = (
    "what keeps the clock right?",
    "which service sends mail?",
    "nightly copy of the database",
    "interface eth17",
    "camera in Linz",
    "who prints for the office in Vienna?",
    "server in the office",
)
# A tenth of the objects meets the condition.
WAYS: Final = {
    "search": {},
    "search, where": {"where": "active_state=failed"},
    "search, vector": {"mode": "vector"},
    "search, lexical": {"mode": "lexical"},
}
_BEST: Final = 10
_RECALL_QUESTIONS: Final = 100
# float16 and sums in another order
_SAME_COSINE: Final = 1e-3
_FOLLOW_SECONDS: Final = 0.1


def state(count: int) -> dict[str, Any]:
    """Make a believable state of so many objects, each with a text of its own."""
    chance = random.Random(15)  # noqa: S311 -- no secret
    units = {
        f"{ROLES[i % 10]}-{i}.service": {
            "description": f"{ROLES[i % 10]} server {i} for the office in {PLACES[i // 10 % 10]}",
            "active_state": "active" if i % 5 else "failed",
            "enabled": i % 3 > 0,
            "path": f"/usr/sbin/{ROLES[i % 10]}d --port {chance.randrange(1 << 16)}",
        }
        for i in range(count // 2)
    }
    interfaces = [
        {
            "name": f"eth{i}",
            "type": "ethernet",
            "description": f"cable {i} to {PLACES[i % 10]}, desk {chance.randrange(10_000)}",
            "address": f"10.{i >> 8 & 255}.{i & 255}.1",
        }
        for i in range(count - count // 2)
    ]
    plugins = {"systemd": {"units": units}, "net": {"interfaces": interfaces}}
    return {"version": 1, "plugins": plugins}


async def first_start(daemon: Daemon, count: int) -> dict[str, Any]:
    """Start a daemon that has nothing yet, and return when what was there."""
    began, seconds = time.perf_counter(), dict[str, float]()
    daemon.start()

    def note(name: str, *, is_there: object) -> None:
        if is_there:
            seconds.setdefault(name, round(time.perf_counter() - began, 2))

    await daemon.until_serving()
    note("serving", is_there=True)
    async with Client(daemon.bus) as client:
        while "all vectors" not in seconds:
            values = await client.status()
            is_stored = values["Count"] == count
            note("all stored", is_there=is_stored)
            if "first answer" not in seconds:
                found = await client.search(QUESTIONS[1], 10, {"all": True})
                note("first answer", is_there=found)
            note("all vectors", is_there=is_stored and not values["Pending"])
            await asyncio.sleep(_FOLLOW_SECONDS)
    return {"seconds": seconds, "computed s": round(cpu_seconds(daemon.pid), 1)}


async def start(daemon: Daemon) -> float:
    """Start the daemon again, and return the seconds until every vector is there."""
    began = time.perf_counter()
    daemon.start()
    await daemon.until_vectorized()
    return time.perf_counter() - began


async def ask(daemon: Daemon, rounds: int) -> dict[str, Any]:
    """Return what searches, a status, topics and odd objects cost one caller, in milliseconds."""
    found: dict[str, Any] = {}
    async with Client(daemon.bus) as client:
        for name, options in WAYS.items():

            async def search(number: int, options: dict[str, str] = options) -> None:
                await client.search(QUESTIONS[number % len(QUESTIONS)], 10, options)

            await timed(len(QUESTIONS), search)
            used = cpu_seconds(daemon.pid)
            found[name] = milliseconds(await timed(rounds, search))
            used = cpu_seconds(daemon.pid) - used
            found[name]["daemon"] = round(1000 * used / rounds, 1)
        found["status"] = milliseconds(await timed(rounds, lambda _: client.status()))
        for name, survey in (("topics", client.clusters), ("odd objects", client.outliers)):
            times = await timed(2, lambda _, call=survey: call(10, {}))
            found[name] = {"first": round(1000 * times[0]), "again": round(1000 * times[1], 1)}
    return found


async def recall(daemon: Daemon, content: dict[str, Any]) -> float:
    """Return the share of the exactly nearest objects among the best of a search by vector."""
    units = list(content["plugins"]["systemd"]["units"].values())
    chosen = random.Random(1).sample(units, min(_RECALL_QUESTIONS, len(units)))  # noqa: S311
    texts = [each["description"].replace(" server ", " ") for each in chosen]
    async with Client(daemon.bus) as client:
        vectors = await _vectors(client)
        names, matrix = list(vectors), np.array(list(vectors.values()))
        found = []
        for text, query in zip(texts, np.array(await client.vectorize(texts)), strict=True):
            exact = matrix @ query
            least = np.partition(exact, -_BEST)[-_BEST] - _SAME_COSINE
            right = {name for name, cosine in zip(names, exact, strict=True) if cosine >= least}
            hits = await client.search(text, _BEST, {"mode": "vector", "all": True})
            found.append(sum(hit[0] in right for hit in hits) / _BEST)
    return round(statistics.mean(found), 4)


async def _vectors(client: Client) -> dict[str, NDArray[np.float32]]:
    """Return the vector of each object, by its path."""
    _, rows = await client.pages({}, 0, None)
    names = {"/".join(row[1:]): row[0] for row in rows}
    found = {}
    with await client.export([], vectors=True) as file:
        for line in file.read().decode().splitlines():
            meta, _, body = line.partition("\t")
            state = json.loads(body)
            data = base64.b64decode(json.loads(meta)[2])
            name = "/".join((state["plugin"], state["kind"], state["name"]))
            found[names[name]] = np.frombuffer(data, np.float16).astype(np.float32)
    return found


async def one_change(daemon: Daemon, content: dict[str, Any], rounds: int = 9) -> float:
    """Return the median milliseconds from replacing the state file until the object is found."""
    file, seconds = daemon.folder / "state.json", []
    async with Client(daemon.bus) as client:
        for number in range(rounds):
            word = f"rack{number}x{rounds}"
            content["plugins"]["net"]["interfaces"][7 * number]["description"] = f"moved to {word}"
            part = file.with_suffix(".new")
            part.write_text(json.dumps(content))
            began = time.perf_counter()
            part.replace(file)
            while not await _is_found(client, word):  # noqa: ASYNC110 -- as users see it
                await asyncio.sleep(0.005)
            seconds.append(time.perf_counter() - began)
    return milliseconds(seconds, 50)["p50"]


async def _is_found(client: Client, word: str) -> bool:
    hits = await client.search(word, 1, {"mode": "lexical", "all": True})
    return bool(hits) and not (await client.status())["Pending"]


def command_line(daemon: Daemon, rounds: int = 9) -> dict[str, float]:
    """Return the median milliseconds of whole `op-dbus` processes."""
    found = {}
    for argument in ("--help", "status"):
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            daemon.run(argument)
            seconds.append(time.perf_counter() - began)
        found[argument] = milliseconds(seconds, 50)["p50"]
    return found


def measure(count: int, level: str, rounds: int) -> dict[str, Any]:
    """Return all figures of a number of objects."""
    say(f"{count} objects, level {level}")
    content = state(count)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "state.json").write_text(json.dumps(content))
        settings = {"STATE_FILE": folder / "state.json", "LOG_LEVEL": "warning"}
        daemon = Daemon(folder, VECTOR_LEVEL=level, **settings)
        try:
            found: dict[str, Any] = {"objects": count, "level": level}
            found["first start"] = asyncio.run(first_start(daemon, count))
            found["peak MiB of it"] = memory_mib(daemon.pid, "VmHWM")
            daemon.until_idle()
            found["stop s"] = round(daemon.stop(), 2)
            restarts = []
            for _ in range(3):
                restarts.append(asyncio.run(start(daemon)))
                daemon.stop()
            found["restart s"] = round(statistics.median(restarts), 2)
            asyncio.run(start(daemon))
            found["ms"] = asyncio.run(ask(daemon, rounds))
            found["recall@10"] = asyncio.run(recall(daemon, content))
            found["one change ms"] = asyncio.run(one_change(daemon, content))
            found["command line ms"] = command_line(daemon)
            memory = {"resident": "VmRSS", "private": "RssAnon", "peak": "VmHWM"}
            found["MiB"] = {name: memory_mib(daemon.pid, row) for name, row in memory.items()}
        except OpDbusError as error:
            raise SystemExit(f"{error}\n{daemon.log.read_text()}") from None
        finally:
            daemon.close()
    say(found)
    return found


def main() -> None:
    """Measure each number of objects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--level", default="medium")
    parser.add_argument("--most", type=int, default=20_000, help="objects of that level")
    parser.add_argument("--rounds", type=int, default=210, help="of each way of searching")
    given = parse(parser)
    rows = [
        measure(count, given.level if count <= given.most else "static", given.rounds)
        for count in given.objects
    ]
    write(given, {"sizes": rows})


if __name__ == "__main__":
    main()
