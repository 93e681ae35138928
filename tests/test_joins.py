"""Answers that the best hit names: from a port to its unit, and from that to its package."""

import asyncio
from pathlib import Path

import pytest

from opdbus.config import load
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import Page
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.serving.serving import Serving
from opdbus.state.conditions import parse
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
    ("systemd", "unit", "ticketdb.service"): {"description": "Stores tickets"},
    ("packages", "package", "ticketdb"): {"description": "Needs no database"},
    ("systemd", "unit", "desk.service"): {
        "description": "Answers customers",
        "requires": ["ticketdb.service"],
        "wants": ["cups.service"],
        "after": ["cups.service"],
    },
    ("systemd", "unit", "letters.service"): {
        "description": "Writes to them",
        "wants": ["ticketdb.service", "absent.service"],
        "after": ["sensor-recorder.service"],
    },
    ("systemd", "unit", "old.service"): {"requires": ["old-ticketdb.service"]},
    ("systemd", "unit", "sensor-recorder.service"): {"description": "Keeps temperatures"},
    ("files", "file", UNIT_FILE): {"description": "written on this host"},
}


TO_PACKAGE = "which package brings what listens on port 631"


@pytest.mark.parametrize(
    ("question", "first"),
    [
        (TO_PACKAGE, "cups-daemon"),
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
    found = asyncio.run(search(tmp_path, question, Page(9)))
    assert found[0][0] == first
    assert len(found) == len(dict(found))
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("what needs ticketdb", ["desk.service", "letters.service"]),
        ("Which services depend on the ticketdb service?", ["desk.service", "letters.service"]),
        ("what does desk require", ["ticketdb.service", "cups.service"]),
        ("what does letters.service depend on?", ["ticketdb.service"]),
        ("what starts after the sensor recorder", ["letters.service"]),
        ("which package needs ticketdb", ["ticketdb"]),
    ],
)
def test_what_requires_a_unit_comes_first(tmp_path: Path, question: str, first: list[str]) -> None:
    """Put the units that name another, or that it names, before it where they are asked for."""
    found = asyncio.run(search(tmp_path, question, Page(9)))
    assert [name for name, _ in found][: len(first)] == first
    assert len(found) == len(dict(found))
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


def test_a_condition_counts_for_what_a_hit_names(tmp_path: Path) -> None:
    """Leave out what is asked for where it does not meet the conditions of a search."""
    page = Page(9, where=parse("kind!=package"))
    names = [name for name, _ in asyncio.run(search(tmp_path, TO_PACKAGE, page))]
    assert names
    assert not {"cups-daemon", "listening-tools"} & {*names}


@pytest.mark.parametrize("source", ["live:a", "live:y"])
def test_a_thing_of_two_sources_comes_once(tmp_path: Path, source: str) -> None:
    """Count what is asked for once, whichever of its entries is found by its words."""
    name = Identity(source, "packages", "package", "cups-daemon")
    other = StateObject(name, {"wanted": "what a port brings"})
    found = asyncio.run(search(tmp_path, TO_PACKAGE, Page(9), other))
    names = [name for name, _ in found]
    assert names[0] == "cups-daemon"
    assert names.count("cups-daemon") == 1


async def search(
    folder: Path, question: str, page: Page, *others: StateObject
) -> list[tuple[str, float]]:
    """Return the names and totals of what a question finds by words."""
    async with StateStore(folder / "db") as memory:
        objects = [StateObject(Identity("live:x", *of), said) for of, said in OBJECTS.items()]
        await memory.observe([*others, *objects], set(), {})
        finder = Finder(ObjectVectors(memory, Serving(load({}))))
        hits = await finder.search(question, page, "lexical")
        return [(hit.object_id.name, hit.score.total) for hit in hits]
