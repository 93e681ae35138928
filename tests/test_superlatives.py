"""The most and the least of a field, as questions ask for it."""

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
    """Compare the things of the sort that a question asks for by the field that it means."""
    found = asyncio.run(names(tmp_path, OBJECTS, question))
    assert found[: len(first)] == first


def test_values_of_two_types_are_compared_apart(tmp_path: Path) -> None:
    """Take numbers where a thing has one: a size in words of another is no error."""
    of_words: dict[tuple[str, str, str], dict[str, Json]] = {
        ("packages", "package", "vim"): {"installed_size_mb": "unknown"}
    }
    found = asyncio.run(names(tmp_path, OBJECTS | of_words, "largest packages"))
    assert found[:2] == ["gcc", "git"]


async def names(
    folder: Path, objects: dict[tuple[str, str, str], dict[str, Json]], question: str
) -> list[str]:
    """Return the names of what a question finds, best first."""
    async with Memory(folder / "db") as memory:
        stored = [StateObject(Identity("live:x", *of), said) for of, said in objects.items()]
        await memory.observe(stored, set(), {})
        finder = Finder(ObjectVectors(memory, Serving(load({}))))
        return [hit.thing.name for hit in await finder.search(question, Page(9), "lexical")]
