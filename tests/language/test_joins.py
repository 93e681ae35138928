"""Answers that the best hit names: from a port to its unit, and from that to its package."""

from pathlib import Path

import pytest
from harness.house import search_words

from opdbus.index.search import related_answers
from opdbus.index.search.hits import SearchRequest
from opdbus.index.search.related_answers import UnitQuestion
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


def search(
    folder: Path, question: str, page: SearchRequest, *others: StateObject
) -> list[tuple[str, float]]:
    """Return the names and totals of what a question finds by words."""
    objects = [StateObject(Identity("live:x", *of), fields) for of, fields in OBJECTS.items()]
    hits = search_words(folder, [*others, *objects], question, page)
    return [(hit.object_id.name, hit.score.total) for hit in hits]


@pytest.mark.parametrize("row", related_answers.UNIT_QUESTIONS)
def test_each_question_about_units_reads_its_example(row: UnitQuestion) -> None:
    """Read the example of each row of the table by this row alone."""
    rows = related_answers.UNIT_QUESTIONS
    assert [one for one in rows if one.pattern.fullmatch(row.example)] == [row]


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
    found = search(tmp_path, question, SearchRequest(9))
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
    found = search(tmp_path, question, SearchRequest(9))
    assert [name for name, _ in found][: len(first)] == first
    assert len(found) == len(dict(found))
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


def test_a_condition_counts_for_what_a_hit_names(tmp_path: Path) -> None:
    """Leave out what is asked for where it does not meet the conditions of a search."""
    page = SearchRequest(9, where=parse("kind!=package"))
    names = [name for name, _ in search(tmp_path, TO_PACKAGE, page)]
    assert names
    assert not {"cups-daemon", "listening-tools"} & {*names}


@pytest.mark.parametrize("source", ["live:a", "live:y"])
def test_a_thing_of_two_sources_comes_once(tmp_path: Path, source: str) -> None:
    """Count what is asked for once, whichever of its entries is found by its words."""
    name = Identity(source, "packages", "package", "cups-daemon")
    other = StateObject(name, {"wanted": "what a port brings"})
    found = search(tmp_path, TO_PACKAGE, SearchRequest(9), other)
    names = [name for name, _ in found]
    assert names[0] == "cups-daemon"
    assert names.count("cups-daemon") == 1
