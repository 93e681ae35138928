"""Conditions asked of a memory: exact, also in questions, and read in parts."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.house import search_words

from opdbus.index.query import condition_matching, query_parser
from opdbus.index.ranking.scores import NAME_BOOST, OVERLAP_WEIGHT
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.conditions import OPERATORS, AllOf, Condition, parse
from opdbus.state.object import FILE, Identity, ObjectId, StateObject

LIVE = "live:systemd"
VALUES = (
    "failed",
    "FAILED",
    95,
    95.5,
    True,
    False,
    None,
    "no",
    "4G",
    ["a_b", 22],
    [],
    "50%",
    'q"x\\y',
)
ASKED = (
    "failed",
    "95",
    "no",
    "true",
    "4g",
    "a_b",
    "a%b",
    "",
    "22",
    "50%",
    'q"x',
    "il",
    "ü",
    "x\\y",
)


def unit(name: str, source: str = LIVE, **properties: Any) -> StateObject:
    """Make a unit with some properties."""
    return StateObject(Identity(source, "systemd", "unit", name), properties)


def run(
    folder: Path, objects: Sequence[StateObject], work: Callable[[StateStore], Awaitable[Any]]
) -> Any:
    """Run work with a memory that holds some objects; twice, then with all fields in arrays."""

    async def running() -> Any:
        async with StateStore(folder / "memory.db") as memory:
            for source in {item.identity.source for item in objects}:
                mine = [item for item in objects if item.identity.source == source]
                await memory.replace(source, {item.identity for item in mine}, mine)
            before = await work(memory)
            await memory.fields.catch_up()
            assert not memory.fields.unread().ids
            assert await work(memory) == before
            return before

    return asyncio.run(running())


def names(found: frozenset[ObjectId]) -> list[str]:
    """Give the names of things in order."""
    return sorted(object_id.name for object_id in found)


def test_it_agrees_with_every_object_looked_at(tmp_path: Path) -> None:
    """Find exactly what meets a condition, whatever the database leaves out beforehand."""
    keys = ("active_state", "ActiveState", "Ünit", "load_state")
    objects = [
        unit(f"u{n}", **{key: value, "x": n})
        for n, (key, value) in enumerate(itertools.product(keys, VALUES))
    ]
    asked = [
        Condition(field, operator, value)
        for field in ("active_state", "state", "ünit", "name", "kind", "missing")
        for operator in (*OPERATORS, ":")
        for value in ASKED
        if operator[0] not in "<>" or value in {"95", "4g"}
    ]

    async def compare(memory: StateStore) -> None:
        for condition in asked:
            found = await condition_matching.object_ids(memory, [condition])
            met = {
                item.identity.name
                for item in objects
                if AllOf([condition]).hold(item.identity, item.properties)
            }
            assert {object_id.name for object_id in found} == met, condition

    run(tmp_path, objects, compare)


@pytest.mark.parametrize(
    ("objects", "wanted"),
    [
        (
            [
                unit("a", FILE, enabled=True, active_state="active"),
                unit("a", active_state="failed"),
                unit("b", enabled=True),
            ],
            {
                "enabled=yes": ["b"],
                "active_state=failed": ["a"],
                "enabled=yes, active_state=failed": [],
                "active_state=active": [],
                "source=file, active_state=failed": ["a"],
            },
        ),
        (
            [
                unit("a", "live:systemd", active_state="active"),
                unit("a", "publish:probe", active_state="failed", note="odd"),
            ],
            {"active_state=active": ["a"], "active_state=failed": [], "note=odd": ["a"]},
        ),
    ],
    ids=["declared", "published"],
)
def test_what_op_dbus_observes_counts_first(
    tmp_path: Path, objects: list[StateObject], wanted: dict[str, list[str]]
) -> None:
    """What is declared counts only of what nothing observes, what is published only besides."""

    async def look(memory: StateStore) -> dict[str, list[str]]:
        return {
            text: names(await condition_matching.object_ids(memory, parse(text))) for text in wanted
        }

    assert run(tmp_path, objects, look) == wanted


def test_values_that_are_in_memory_only_count(tmp_path: Path) -> None:
    """Ask volatile values too, in place of those that are stored."""
    objects = [unit("a", restarts=1), unit("b")]

    async def look(memory: StateStore) -> list[list[str]]:
        values = {"restarts": 7}, {"idle": True}
        memory.volatile.put(dict(zip((o.identity for o in objects), values, strict=True)))
        asked = ("restarts>5", "restarts=1", "idle=yes", "name=b, idle=yes")
        return [names(await condition_matching.object_ids(memory, parse(text))) for text in asked]

    assert run(tmp_path, objects, look) == [["a"], [], ["b"], ["b"]]


def test_fields_are_counted(tmp_path: Path) -> None:
    """Name the fields that objects have, those of lists without positions, by plugin and kind."""
    objects = [unit("a", state="x", at=[{"ip": "::1"}, {"ip": "::2"}]), unit("b", state="y")]
    counted = run(
        tmp_path, objects, lambda memory: condition_matching.field_names(memory, {"kind": "unit"})
    )
    assert counted == {"state": 2, "at": 1, "at.ip": 1}
    assert not run(
        tmp_path, objects, lambda memory: condition_matching.field_names(memory, {"kind": "x"})
    )


def test_many_objects_leave_the_loop_free(tmp_path: Path) -> None:
    """Look at 4,000 objects in parts, while the event loop goes on."""
    objects = [unit(f"u{n}", active_state="active", used_percent=n % 100) for n in range(4_000)]

    async def look(memory: StateStore) -> int:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        began = time.process_time()
        found = await condition_matching.object_ids(memory, parse("used_percent>98"))
        assert time.process_time() - began < 4
        ticking.cancel()
        assert turns > 20 or not memory.fields.unread().ids
        return len(found)

    assert run(tmp_path, objects, look) == 40


QUESTION = [
    unit("sshd.service", active_state="failed", user="root", port=22, address=["fe80::1"]),
    unit("cups.service", active_state="active", description="Name resolution of printers"),
]


def parse_question(folder: Path, text: str) -> query_parser.ParsedQuery:
    """Parse a question to the two units of this file."""
    found: query_parser.ParsedQuery = run(
        folder, QUESTION, lambda memory: query_parser.parse_query(memory, text)
    )
    return found


@pytest.mark.parametrize(
    ("text", "words", "condition"),
    [
        ("state:failed", "", ("state", ":", "failed")),
        ("what is state:failed?", "what is ", ("state", ":", "failed")),
        ("Kind:unit dns", " dns", ("Kind", ":", "unit")),
        ('description:"name resolution" now', " now", ("description", ":", "name resolution")),
        ("active-state:dead here", " here", ("active-state", ":", "dead")),
        ("name:sshd", "", ("name", "~", "sshd")),
        ("user:root", "", ("user", ":", "root")),
        ("port:22", "", ("port", ":", "22")),
        ("address:fe80::1", "", ("address", ":", "fe80::1")),
        ("plugin:nothing", "", ("plugin", ":", "nothing")),
        ("port>=22 ssh", " ssh", ("port", ">=", "22")),
        ("what has port<1024?", "what has ", ("port", "<", "1024")),
        ("state!=active", "", ("state", "!=", "active")),
        ("state=active", "", ("state", "=", "active")),
    ],
)
def test_conditions_are_taken_out_of_questions(
    tmp_path: Path, text: str, words: str, condition: tuple[str, str, str]
) -> None:
    """Take FIELD:VALUE of a known field for a condition, with quotes around many words."""
    (found,) = parse_question(tmp_path, text).conditions
    assert (found.field, found.operator, found.value) == condition
    assert parse_question(tmp_path, text).words.split() == words.rstrip("?").split()


@pytest.mark.parametrize(
    "text",
    [
        "who serves https://state:80/failed",
        "state://failed",
        "what runs at 12:30 or state:12:30",
        "2001:db8::1 and ::1 and fe80::1%eth0",
        "02:1b:21:7a:00:01",
        "admin:hunter2",
        "user:hunter2",
        "user:password",
        "user:root@example.net",
        "/srv/state:failed",
        "nas:/export/media",
        "localhost:8080",
        "colour:red",
        "state: failed",
        'state:"',
        "state:?",
        "(state:failed)",
        "port>ssh",
        "state->failed",
        "port > 22",
        "password=hunter2",
        "user=hunter2",
    ],
)
def test_what_only_looks_like_a_condition_stays(tmp_path: Path, text: str) -> None:
    """Leave URLs, times, addresses, paths, credentials and unknown fields in the question."""
    assert parse_question(tmp_path, text) == query_parser.ParsedQuery(text)


def test_a_document_is_no_list_of_conditions(tmp_path: Path) -> None:
    """Take nothing out of a text that is full of colons."""
    text = "state:failed " * 9
    assert parse_question(tmp_path, text) == query_parser.ParsedQuery(text)


def test_text_of_several_words_is_searched(tmp_path: Path) -> None:
    """Let FIELD:VALUE mean a part of a text, but the whole of a single word."""

    async def look(memory: StateStore) -> list[list[str]]:
        asked = ("description:resolution", "state:active", "state:act")
        taken = [(await query_parser.parse_query(memory, text)).conditions for text in asked]
        return [
            names(await condition_matching.object_ids(memory, conditions)) for conditions in taken
        ]

    assert run(tmp_path, QUESTION, look) == [["cups.service"], ["cups.service"], []]


def test_things_are_known_by_their_whole_name(tmp_path: Path) -> None:
    """Give the places of what has just this name, of a service without its suffix too."""
    names = "ssh.service ssh.socket sshd.service ssh redis-server.service redis-sentinel.service"
    objects = [unit(name) for name in names.split()]

    async def look(memory: StateStore) -> list[list[str]]:
        asked = ("ssh", "sshd", "ssh.socket", "redis", "nothing")
        catalogue = memory.catalogue
        places = [catalogue.named(name) for name in asked]
        entries = [[catalogue.view.entries[place] for place in found] for found in places]
        return [sorted(entry.identity.name for entry in found if entry) for found in entries]

    assert run(tmp_path, objects, look) == [
        ["ssh", "ssh.service"],
        ["sshd.service"],
        ["ssh.socket"],
        ["redis-server.service"],
        [],
    ]


@pytest.mark.parametrize(
    ("question", "times"),
    [
        ("the stork", 1),
        ("is stork handy", 1),
        ("stork.service and its nest on a high roof", 1),
        ("does a stork nest on a high roof", 0.5),
        ("ports of stork", 0),
    ],
)
def test_a_name_raises_what_the_question_asks_for(
    tmp_path: Path, question: str, times: float
) -> None:
    """A name raises objects of the kind that is asked for; a mere word of a long question, less."""
    (hit,) = search_words(tmp_path, [unit("stork.service")], question)
    boost = hit.score.total - hit.score.lexical - OVERLAP_WEIGHT * hit.score.overlap
    assert boost == pytest.approx(times * NAME_BOOST, abs=1e-6)


def test_a_value_that_nothing_asked_for_has_is_left_out(tmp_path: Path) -> None:
    """Read no administrator as a value where files are asked for that one changed."""
    objects = [
        StateObject(Identity(LIVE, "users", "account", "ada"), {"administrator": True}),
        *(StateObject(Identity(LIVE, "files", "file", f"/etc/{n}"), {"modified": n == 3})
          for n in range(9)),
    ]  # fmt: skip

    hits = search_words(tmp_path, objects, "files that the administrator changed")
    found = {hit.object_id.name: hit.score.values for hit in hits}
    assert found["/etc/3"] > 0.5
    assert not found.get("ada")


@pytest.mark.parametrize(
    ("said", "names"), [("the bird call", ["lovebirds.service"]), ("we love birds", [])]
)
def test_two_words_are_read_as_the_name_that_they_make(
    tmp_path: Path, said: str, names: list[str]
) -> None:
    """Join words to the name of a thing, but for those that an object has one after the other."""
    objects = [
        unit("lovebirds.service"),
        unit("a.service", description=f"{said} of love and birds"),
    ]

    found = [hit.object_id.name for hit in search_words(tmp_path, objects, "who may love birds?")]
    assert [name for name in found if name == "lovebirds.service"] == names
