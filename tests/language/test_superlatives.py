"""The most and the least of a field, as questions ask for it."""

import asyncio
from pathlib import Path

import pytest
from harness.house import search_words
from harness.remembering import run
from harness.running import work_of

from opdbus.config import load
from opdbus.index.query import extremes
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import SearchRequest
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.platform.slices import batches
from opdbus.serving.serving import Serving
from opdbus.state.object import FILE, Identity, Json, StateObject

OBJECTS: dict[tuple[str, str, str], dict[str, Json]] = {
    ("mounts", "mount", "/"): {"size_gb": 12, "used_percent": 30, "description": "largest disk"},
    ("mounts", "mount", "/srv"): {"size_gb": 252.5, "used_percent": 60},
    ("mounts", "mount", "/run"): {"size_gb": 0.5, "used_percent": 5, "read_only": True},
    ("packages", "package", "git"): {"installed_size_mb": 40, "description": "file system"},
    ("packages", "package", "gcc"): {"installed_size_mb": 900},
    ("users", "group", "disk"): {"member_count": 0},
    ("users", "group", "family"): {"member_count": 5},
    ("files", "file", "/etc/a"): {"modified_at": "2026-11-22T10:00:00Z"},
    ("files", "file", "/etc/b"): {"modified_at": "2026-11-23T09:00:00Z"},
    ("net", "interface", "lan0"): {"mtu": 9000, "state": "up"},
    ("net", "interface", "wan0"): {"mtu": 1500, "state": "up"},
    ("tls", "certificate", "shop"): {"expires": "2026-12-03", "issued": "2026-09-03"},
    ("tls", "certificate", "club"): {"expires": "2027-02-14", "issued": "2026-08-01"},
    ("dairy", "vat", "curd"): {"temperature_c": 31.5, "stirring_hours": 2, "level_percent": 80},
    ("dairy", "vat", "whey"): {"temperature_c": 12, "stirring_hours": 9, "level_percent": 15},
    ("dairy", "scale", "north"): {"load_kg": 4, "calibrated": "2025-03-11"},
    ("dairy", "scale", "south"): {"load_kg": 7, "calibrated": "2026-09-30"},
}


QUESTIONS = [
    ("largest file system", ["/srv"]),
    ("which is the smallest disk?", ["/run"]),
    ("fullest disk", ["/srv"]),
    ("which disk has the most free space", ["/run"]),
    ("biggest package", ["gcc"]),
    ("bigest package", ["gcc"]),
    ("which group has the most members?", ["family"]),
    ("newest configuration file", ["/etc/b"]),
    ("oldest configuration file", ["/etc/a"]),
    # of fields that words of the question name, or that the adjective is about
    ("which interface has the biggest MTU?", ["lan0"]),
    ("which vat is warmest", ["curd"]),
    ("which vat has been stirring for the most hours?", ["whey"]),
    ("vat with the lowest level", ["whey"]),
    ("the coldest of the dairy", ["whey"]),
    ("what has the highest load?", ["south"]),
    # what was long ago is an early time
    ("which scale was calibrated longest ago?", ["north"]),
    ("most recently calibrated scale", ["south"]),
    ("which certificate expires first", ["shop"]),
    ("newest certificate by when it was issued", ["shop"]),
    # several, in order
    ("largest file systems", ["/srv", "/", "/run"]),
    ("which packages are the smallest?", ["git", "gcc"]),
    ("the fullest disks", ["/srv", "/", "/run"]),
    # of what a condition leaves
    ("largest file system read_only:true", ["/run"]),
    ("fullest disks name:r", ["/srv", "/run"]),
]


@pytest.mark.parametrize(("question", "first"), QUESTIONS)
def test_the_most_of_what_is_asked_for_comes_first(
    tmp_path: Path, question: str, first: list[str]
) -> None:
    """Compare the objects of the kind that a question asks for by the field that it means."""
    found = names(tmp_path, OBJECTS, question)
    assert found[: len(first)] == first


def test_a_bound_is_no_superlative(tmp_path: Path) -> None:
    """Read `at least` as a bound, not as asking for the least."""

    async def work() -> list[bool]:
        async with StateStore(tmp_path / "db") as memory:
            stored = [StateObject(Identity("live:x", *of), said) for of, said in OBJECTS.items()]
            await memory.observe(stored, set(), {})
            asked = "the least level of a vat", "a vat whose level is at least okay"
            return [bool(await extremes.find_extremes(memory, each, None)) for each in asked]

    assert asyncio.run(work()) == [True, False]


def test_values_of_two_types_are_compared_apart(tmp_path: Path) -> None:
    """Take numbers where a thing has one: a size in words of another is no error."""
    of_words: dict[tuple[str, str, str], dict[str, Json]] = {
        ("packages", "package", "vim"): {"installed_size_mb": "unknown"}
    }
    found = names(tmp_path, OBJECTS | of_words, "largest packages")
    assert found[:2] == ["gcc", "git"]


def names(
    folder: Path, objects: dict[tuple[str, str, str], dict[str, Json]], question: str
) -> list[str]:
    """Return the names of what a question finds, best first."""
    stored = [StateObject(Identity("live:x", *of), fields) for of, fields in objects.items()]
    return [hit.object_id.name for hit in search_words(folder, stored, question)]


def test_the_most_is_the_most_that_is_observed(tmp_path: Path) -> None:
    """Compare what is observed, also what moves by itself; what is declared only where none is."""

    def mount(name: str, source: str, **fields: Json) -> StateObject:
        return StateObject(Identity(source, "mounts", "mount", name), fields)

    async def work() -> list[str]:
        async with StateStore(tmp_path / "db") as memory:
            wished = [
                mount(name, FILE, used_percent=n, size_gb=n) for name, n in (("/", 1), ("/w", 99))
            ]
            await memory.replace(FILE, {one.identity for one in wished}, wished)
            seen = [mount(name, "live:filesystems", fstype="ext4") for name in ("/", "/srv")]
            moved = zip((one.identity for one in seen), (71, 40), strict=True)
            await memory.observe(seen, set(), {one: {"used_percent": n} for one, n in moved})
            finder = Finder(ObjectVectors(memory, Serving(load({"OP_DBUS_VECTOR_LEVEL": "none"}))))
            asked = ("which filesystem is fullest?", "emptiest disk", "largest disk")
            return [
                (await finder.search(each, SearchRequest(1)))[0].object_id.name for each in asked
            ]

    # nobody observes how large one is
    assert asyncio.run(work()) == ["/", "/srv", "/w"]


@work_of(run, "tmp_path")
async def test_a_superlative_is_answered_among_very_many_objects(memory: StateStore) -> None:
    """The largest of 5,500 objects of a kind is found, also where its words name every kind."""
    named = {f"p{number}": 7919 * number % 100_003 for number in range(5_500)}
    items = [
        StateObject(Identity("live:packages", "packages", "package", name), {"size": size})
        for name, size in named.items()
    ]
    for part in batches(items, 2000):
        await memory.observe(part, set(), {})
    first, second = sorted(named, key=named.__getitem__, reverse=True)[:2]
    found = await extremes.find_extremes(memory, "which package is the largest?", None)
    assert found
    assert [one.name for one in found.object_ids] == [first]
    found = await extremes.find_extremes(memory, "which packages are the largest?", None)
    assert found
    assert [one.name for one in found.object_ids][:2] == [first, second]
