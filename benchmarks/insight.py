"""What topics and odd objects cost, how well topics are named, and which planted objects are found.

The objects are the packages that the distribution has, with static vectors (`apt-cache dumpavail`);
beyond those, the same again under other names and with a word more. Writes JSON to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from harness import value_host
from harness.health import memory_mib

from opdbus.bench.machine import describe
from opdbus.config import load
from opdbus.index.database.quota import Quota, Usage
from opdbus.index.search.hits import SearchRequest
from opdbus.index.state_store.events import Event, Vectorized
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.indexer import Indexer
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.insight import topics
from opdbus.insight.insight import Insight
from opdbus.insight.kind_survey import Survey, outliers
from opdbus.insight.naming import name_words
from opdbus.serving.serving import Serving
from opdbus.state import publish
from opdbus.state.object import ObjectId, StateObject

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opdbus.insight.topics import Topic

SIZES: Final = (1_000, 10_000, 100_000)
_NO_LIMIT: Final = Quota(1 << 40, 1 << 50)
_AT_A_TIME: Final = 10_000
_FIELDS: Final = "Architecture Section Priority Source Version Homepage".split()
# One of so many objects has a value in one field that no other has.
_PLANTED: Final = 50
_ROUNDS: Final = 20
# Topics beside as many as the square root of the objects.
_FACTORS: Final = (0.25, 0.5, 1.0, 2.0)


def packages() -> list[dict[str, str]]:
    """Read what the distribution has, in an order of its own for each run alike."""
    text = subprocess.run(
        ["apt-cache", "dumpavail"], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for block in text.split("\n\n"):
        lines = (line.partition(": ") for line in block.splitlines() if not line.startswith(" "))
        fields = {key: value for key, _, value in lines}
        if "Package" in fields and "Description" in fields:
            found[fields["Package"]] = fields
    ordered = list(found.values())
    random.Random(15).shuffle(ordered)  # noqa: S311 -- no secret
    return ordered


def objects(known: Sequence[Mapping[str, str]], count: int) -> Iterator[StateObject]:
    """Yield packages as they are observed; where there are too few, again with a word more."""
    for number, fields in enumerate(itertools.islice(itertools.cycle(known), count)):
        turn = number // len(known)
        again = f" ({turn})" if turn else ""
        properties = {key.lower(): fields[key] for key in _FIELDS if key in fields}
        properties |= {"description": fields["Description"] + again, "status": "installed"}
        name = fields["Package"] + ("+" * turn)
        yield publish.make_object("publish:benchmark", "packages", "package", name, properties)


async def cost(known: Sequence[Mapping[str, str]], count: int) -> dict[str, Any]:
    """Measure the first answer, and one that is kept."""
    settings = load({"OP_DBUS_VECTOR_LEVEL": "static"})
    made = objects(known, count)
    with tempfile.TemporaryDirectory() as folder:
        path, vectorized = Path(folder) / "memory.db", asyncio.Event()

        def hear(event: Event) -> None:
            if isinstance(event, Vectorized):
                vectorized.set()

        async with (
            StateStore(path, hear, usage=Usage(_NO_LIMIT, _NO_LIMIT)) as memory,
            Serving(settings) as serving,
        ):
            while part := list(itertools.islice(made, _AT_A_TIME)):
                await memory.publish(part, 0)
            vectors = ObjectVectors(memory, serving)
            await serving.start()
            indexing = asyncio.create_task(Indexer(vectors).run())
            await vectorized.wait()
            insight = Insight(vectors)
            found: dict[str, Any] = {}
            for name, ask in (("topics", insight.topics), ("odd", insight.outliers)):
                for when in ("first", "kept"):
                    before, began, used = _rest(), time.perf_counter(), time.process_time()
                    answer = await ask(SearchRequest(10))
                    found[f"{name}, {when} ms"] = round(1000 * (time.perf_counter() - began), 1)
                    found[f"{name}, {when} cpu ms"] = round(1000 * (time.process_time() - used), 1)
                    if when == "first":
                        found[name] = len(answer)
                        found[f"{name}, peak MiB more"] = round(_peak() - before)
            if count <= SIZES[1]:
                found["named"] = await named(vectors)
            indexing.cancel()
    return found


async def named(vectors: ObjectVectors) -> dict[str, Any]:
    """Measure names of more and fewer topics: which share of members has a word of its topic."""
    found, usual = {}, topics.count_for
    for factor in _FACTORS:
        topics.count_for = lambda n, f=factor: max(2, round(f * math.sqrt(n)))
        answer = await Insight(vectors).topics(SearchRequest(10))
        found[str(factor)] = await _coverage(answer, vectors.memory)
    topics.count_for = usual
    return found


async def _coverage(answer: Sequence[Topic], memory: StateStore) -> dict[str, Any]:
    having, sections = [], []
    for topic in answer:
        about = [memory.catalogue.require_entries(object_id)[0] for object_id, _ in topic.members]
        contents = await memory.content(about)
        names = {stem for word in topic.words for stem in name_words(word)}
        texts = [contents[entry.id] for entry in about]
        having += [bool(names & name_words(text.text).keys()) for text in texts]
        of = Counter(json.loads(text.properties).get("section") for text in texts)
        sections.append((of.most_common(1)[0][1], len(texts)))
    pure = sum(most for most, _ in sections) / sum(size for _, size in sections)
    return {
        "topics": len(answer),
        "members with a word of the name": round(statistics.fmean(having), 3),
        "members of the most frequent section": round(pure, 3),
    }


def planted(known: Sequence[Mapping[str, str]], count: int) -> dict[str, float]:
    """Measure how many planted objects are found, and how many others are called odd."""
    chance, found, others, uniform = random.Random(1), 0, 0, 0  # noqa: S311 -- no secret
    total = _ROUNDS * count
    for turn in range(_ROUNDS):
        part = list(objects(known[turn * count :], count))
        fields = ("architecture", "priority", "status", "section", "version")
        agreed = [
            (item, chance.choice(fields[:3])) for item in chance.sample(part, count // _PLANTED)
        ]
        odd = _odd(part, {item.name: field for item, field in agreed})
        names = {item.name for item, _ in agreed}
        found += len(odd & names)
        others += len(odd - names)
        uniform += len(_odd(part, {}))
    return {
        "planted found": round(found / (total // _PLANTED), 3),
        "others called odd": round(others / total, 4),
        "called odd where nothing is planted": round(uniform / total, 4),
    }


async def of_host() -> dict[str, int]:
    """Count what is called odd of the host of tests/data/value_host.json, by its fields."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            StateStore(Path(folder) / "memory.db") as memory,
            Serving(load({"OP_DBUS_VECTOR_LEVEL": "none"})) as serving,
        ):
            await memory.publish(value_host.objects(), 0)
            found = await Insight(ObjectVectors(memory, serving)).outliers(SearchRequest(10))
            return {"objects": len(memory.catalogue), "odd": len(found)}


def _odd(part: Sequence[StateObject], changed: Mapping[str, str]) -> set[str]:
    survey = Survey()
    for number, item in enumerate(part):
        more = {changed[item.name]: f"planted {number}"} if item.name in changed else {}
        # of packages the distribution's own fields do not count
        survey.add(ObjectId("stock", "item", item.name), {**item.properties, **more})
    return {odd.object_id.name for odd in outliers(survey, {})}


def _rest() -> float:
    """Forget the highest resident memory so far, and return what is resident now, in MiB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return memory_mib(os.getpid(), "VmRSS")


def _peak() -> float:
    return memory_mib(os.getpid(), "VmHWM")


def main() -> None:
    """Measure, and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    given = options.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    known = packages()
    found = {
        "date": f"{datetime.now(UTC):%F}",
        "machine": describe().line,
        "packages": len(known),
        "sizes": {str(size): asyncio.run(cost(known, size)) for size in given.sizes},
        "odd": {str(size): planted(known, size) for size in (50, 1_000)},
        "of a host": asyncio.run(of_host()),
    }
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
