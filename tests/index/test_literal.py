"""Values that a question gives as they are, beside the names of their fields."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness.house import search_words

from opdbus.index.database.store import Store
from opdbus.index.query import query_terms
from opdbus.index.search import lexical_matches
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Identity, StateObject

ADA = {"uid": 0, "gid": 7, "shell": "/bin/zsh", "groups": ["staff", "wheel"]}
BOB = {"uid": 7, "gid": 70, "shell": "/bin/sh", "full_name": "zsh lover"}
WEB = {
    "user": "ada", "exit_status": 4, "unit": "web.service", "options": "rw,noexec,size=4k",
    "sub_state": "auto-restart", "exit_signal": "SIGABRT", "port": 4321,
}  # fmt: skip
OBJECTS = {"ada": ADA, "bob": BOB, "web": WEB}


def test_a_value_that_is_denied_is_not_raised(tmp_path: Path) -> None:
    """Take no user for a value of `not run as root`, which the vocabulary reads."""
    job = StateObject(Identity("live:x", "cron", "job", "a"), {"user": "root"})
    assert having(tmp_path / "1", [job], "which user jobs run as root") == {"a"}
    assert having(tmp_path / "2", [job], "which user jobs do not run as root") == set()


def having(folder: Path, objects: Sequence[StateObject], question: str) -> set[str]:
    """Return the names of the objects that have values of a question."""

    async def work() -> set[str]:
        async with StateStore(folder / "db") as memory:
            await memory.observe(objects, frozenset(), {})
            found = await memory.archive.read(read)
            names = {entry.id: entry.identity.name for entry in memory.catalogue}
            return {names[number] for one in found for number in one.entries}

    def read(store: Store) -> Sequence[lexical_matches.Literal]:
        terms = query_terms.terms(question)
        return lexical_matches.read_literals(
            store, question, {term: store.words.count_matches(term) for term in terms}
        )

    return asyncio.run(work())


def _objects() -> list[StateObject]:
    return [StateObject(Identity("live:x", "x", "y", name), of) for name, of in OBJECTS.items()]


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("account with uid 0", {"ada"}),
        ("a UID of 7", {"bob"}),
        ("gid = 7", {"ada"}),
        ("exit status 4", {"web"}),
        ("status=4/NOPERMISSION", {"web"}),
        ("7 uid", {"bob"}),
        ("a uid of seven", {"bob"}),
        ("which has zsh as its shell?", {"ada"}),
        ("whose shell is '/bin/sh'", {"bob"}),
        ("run by the user ada", {"web"}),
        ("the group wheel", {"ada"}),
        ("of the unit web", {"web"}),
        ("option noexec", {"web"}),
        ("mounted noexec", {"web"}),
        ("anything in auto-restart", {"web"}),
        ("ended by SIGABRT", {"web"}),
        ("4321/udp", {"web"}),
    ],
)
def test_values_count_beside_their_fields(tmp_path: Path, question: str, names: set[str]) -> None:
    """A number counts next to its field's name, a word with it in the same question."""
    assert having(tmp_path, _objects(), question) == names


@pytest.mark.parametrize(
    "question",
    [
        "0",
        "uid",
        "uid 70",
        "uid 0.0.0.0",
        "zsh",
        "the lover of zsh",
        "wheel",
        "shell lover",
        "user user",
        'user "',
        '"shell" \\',
        "",
    ],
)
def test_other_words_are_no_values(tmp_path: Path, question: str) -> None:
    """A value alone, a part of one and a name of a field count for nothing."""
    assert having(tmp_path, _objects(), question) == set()


def test_what_has_the_number_is_raised(tmp_path: Path) -> None:
    """What has a number in the field beside it comes first, and nothing else is left out."""
    disks = [
        StateObject(Identity("live:x", "mounts", "mount", f"/srv/{n}"), {"used_percent": n})
        for n in (10, 50, 95)
    ]
    hits = search_words(tmp_path, disks, "mounts with used percent 50")
    assert (len(hits), hits[0].object_id.name) == (3, "/srv/50")


def test_a_name_alone_asks_for_what_has_it(tmp_path: Path) -> None:
    """What only belongs to a thing, or has its name in a path, comes after the thing."""
    units = {
        "a.service": {"slice": "ci.slice", "description": "ci slice"},
        "b.service": {"slice": "ci.slice", "description": "slice"},
        "ci.slice": {"description": "jobs"},
    }
    objects = [StateObject(Identity("live:x", "systemd", "unit", n), p) for n, p in units.items()]
    hits = search_words(tmp_path, objects, "ci.slice")
    assert (len(hits), hits[0].object_id.name) == (3, "ci.slice")


def test_hostile_values_are_not_looked_into(tmp_path: Path) -> None:
    """Large objects, and questions of many words, are looked at in part only."""
    huge = {"shell": ["zsh" + "x" * 10_000], "user": '","zsh"' * 5_000}
    item = StateObject(Identity("live:x", "x", "y", "huge"), huge)
    assert having(tmp_path, [item], "shell zsh user zsh " + "uid 5 " * 5_000) == set()
