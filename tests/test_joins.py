"""Answers that the best hit names: from a port to its unit, and from that to its package."""

import asyncio
from pathlib import Path

import pytest

from opdbus.config import load
from opdbus.index.finder import Finder
from opdbus.index.hits import Page
from opdbus.index.memory import Memory
from opdbus.index.object_vectors import ObjectVectors
from opdbus.serving.serving import Serving
from opdbus.state.object import Identity, Json, StateObject

UNIT_FILE = "/etc/systemd/system/weather.service"
OBJECTS: dict[tuple[str, str, str], dict[str, Json]] = {
    ("net", "listener", "tcp 0.0.0.0:631"): {"port": 631, "unit": "cups.service"},
    ("net", "listener", "tcp 0.0.0.0:9"): {"port": 9, "unit": "gone.service"},
    ("systemd", "unit", "cups.service"): {"description": "Scheduler", "package": "cups-daemon"},
    ("packages", "package", "cups-daemon"): {"description": "Unix system"},
    ("packages", "package", "listening-tools"): {"description": "tools"},
    ("systemd", "unit", "weather.service"): {
        "description": "Reads the weather",
        "triggered_by": ["weather.timer"],
        "fragment_path": UNIT_FILE,
    },
    ("systemd", "unit", "weather.timer"): {"description": "Every hour"},
    ("files", "file", UNIT_FILE): {"description": "written on this host"},
}


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("which package brings what listens on port 631", "cups-daemon"),
        ("which service listens on port 631", "cups.service"),
        ("port 631", "tcp 0.0.0.0:631"),
        ("which service listens on port 9", "tcp 0.0.0.0:9"),
        ("what starts the weather", "weather.timer"),
        ("unit file of the weather service", UNIT_FILE),
        ("weather service", "weather.service"),
    ],
)
def test_what_a_hit_names_comes_first_where_it_is_asked_for(
    tmp_path: Path, question: str, first: str
) -> None:
    """Follow the fields of the best hit to what a question asks for, if it is there."""

    async def main() -> list[tuple[str, float]]:
        async with Memory(tmp_path / "db") as memory:
            objects = [StateObject(Identity("live:x", *of), said) for of, said in OBJECTS.items()]
            await memory.observe(objects, set(), {})
            finder = Finder(ObjectVectors(memory, Serving(load({}))))
            hits = await finder.search(question, Page(9), "lexical")
            return [(hit.thing.name, hit.score.total) for hit in hits]

    found = asyncio.run(main())
    assert found[0][0] == first
    assert len(found) == len(dict(found))
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
