"""Scores that mean something, words that are corrected, and why something was found."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from harness.house import search_words
from harness.running import PATIENCE_SECONDS

from opdbus.config import load
from opdbus.index.database.store import Store
from opdbus.index.query import spelling
from opdbus.index.ranking.confidence import Features, LogisticModel, logistic_models, rate
from opdbus.index.ranking.scores import CosineBaseline, Score
from opdbus.index.search import explanations
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import Explanation, Hit, SearchRequest
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.indexer import Indexer
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.models.level_table import LEVELS
from opdbus.serving.serving import Serving
from opdbus.state.object import FILE, Identity, Json, StateObject

T = TypeVar("T")

HOST = {
    "postgresql@15-main.service": "PostgreSQL, the database of the shop",
    "cups.service": "printing on all printers of the network",
    "firewalld.service": "the firewall",
    "network-manager.service": "network manager",
}


# A dentist's server: plugin, kind, name, and what it says.
SMALL = [
    StateObject(Identity(FILE, *identity), {"description": said})
    for *identity, said in (
        ("systemd", "unit", "orthanc.service", "x-ray picture archive of the practice"),
        ("systemd", "unit", "mariadb.service", "database of patients and appointments"),
        ("systemd", "unit", "cups.service", "printing of prescriptions"),
        ("systemd", "unit", "smbd.service", "file shares for Windows computers"),
        ("systemd", "unit", "reminder-sms.timer", "sends appointment reminders every evening"),
        ("systemd", "unit", "ssh.service", "remote login"),
        ("packages", "package", "borgbackup", "encrypted backups that save space"),
        ("packages", "package", "nftables", "packet filter of the firewall"),
        ("packages", "package", "vim", "text editor"),
        ("users", "account", "assistant", "shared login at the front desk"),
        ("users", "account", "drpatel", "the dentist"),
        ("mounts", "mount", "/srv/xray", "file system of x-ray pictures"),
        ("net", "interface", "eno1", "network card of the practice network"),
        ("cron", "job", "nightly-dump", "dumps the patient database every night"),
    )
]
THERE = {
    "remote login": "ssh.service",
    "what prints prescriptions": "cups.service",
    "text editor": "vim",
    "which account is for the front desk": "assistant",
    "appointment reminders": "reminder-sms.timer",
    "shares for Windows computers": "smbd.service",
}
ABSENT = (
    "is there a mail server",
    "kubernetes cluster nodes",
    "which VPN tunnels are up",
    "video conferences",
    "telephone exchange",
    "music streaming",
    "bluetooth headset",
    "wiki of the company",
)
_NOTHING = Features(*[0.0] * len(Features._fields))

PAPER: dict[str, Json] = {"comment": "printing on paper"}


def found(score: float, *, cosine: float = 0.5) -> Score:
    """Return the score of a hit by the level medium."""
    return Score(score, cosine, 0.5, level="medium", baseline=CosineBaseline(0.1, 0.1))


UNITS = [
    StateObject(Identity(FILE, "systemd", "unit", name), {"description": text})
    for name, text in HOST.items()
]


def asked(folder: Path, work: Callable[[StateStore], Awaitable[T]]) -> T:
    """Return what work on a host of some units gives."""

    async def main() -> T:
        async with StateStore(folder / "db") as memory:
            await memory.replace(FILE, {each.identity for each in UNITS}, UNITS)
            return await work(memory)

    return asyncio.run(main())


async def indexed(vectors: ObjectVectors) -> None:
    """Wait until every object has its vector."""
    done = asyncio.Event()
    indexer = Indexer(vectors, on_progress=lambda waiting: waiting or done.set())
    indexing = asyncio.create_task(indexer.run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await done.wait()
    indexing.cancel()


def _constant(model: LogisticModel, chance: float) -> LogisticModel:
    """Return a curve by which a hit without any features is right so often."""
    odds = math.log(chance / (1 - chance))
    return model._replace(right=(odds, *[0.0] * len(_NOTHING)))


def search(folder: Path, question: str) -> list[Hit]:
    """Search by words, and have the hits explained."""
    return search_words(folder, UNITS, question, SearchRequest(10, is_explained=True))


def test_every_level_and_mode_has_a_curve() -> None:
    """Calibrate what any level may answer, by weights for every feature."""
    wanted = {(level, mode) for level in LEVELS for mode in ("hybrid", "vector")}
    assert logistic_models().keys() == wanted | {("none", "lexical")}
    for model in logistic_models().values():
        assert len(model.answerable) == len(model.right) == len(Features._fields) + 1
        assert 0 < model.least < 1


def test_no_hit_is_likelier_than_one_before_it() -> None:
    """Keep scores in the order of the hits, from 0 to 1."""
    scores = [found(0.9), found(0.8, cosine=0.9), found(0.2, cosine=-1.0)]
    rating = [each.confidence for each in rate(scores, "hybrid")]
    assert rating == sorted(rating, reverse=True)
    assert 0 <= rating[-1] < rating[0] <= 1


def test_a_score_is_the_same_on_a_page_of_any_size(tmp_path: Path) -> None:
    """How much better a hit is than others does not depend on how many of them are wanted."""

    async def scores(memory: StateStore) -> list[float]:
        async with Serving(load({"OP_DBUS_VECTOR_LEVEL": "static"})) as serving:
            vectors = ObjectVectors(memory, serving)
            await indexed(vectors)
            pages = [
                await Finder(vectors).search("network manager", SearchRequest(n)) for n in (1, 10)
            ]
            return [page[0].rating.confidence for page in pages]

    one, ten = asked(tmp_path, scores)
    assert one == ten


def test_an_answer_is_as_weak_as_its_best_hit() -> None:
    """Refuse the whole answer where its best hit is too unlikely, and else what nobody wants."""
    near, far = (
        found(0.9),
        Score(0.0, 0.0, 0.0, level="medium", baseline=CosineBaseline(0.1, 0.1)),
    )
    assert [each.is_weak for each in rate([near, far], "hybrid")] == [False, True]
    assert [each.is_weak for each in rate([far, far], "hybrid")] == [True, True]
    assert rate([], "hybrid") == []
    # another level compared what was found by words alone
    assert rate([near, far], "lexical") == rate([near, far], "hybrid")


@pytest.mark.parametrize("key", logistic_models())
def test_an_answer_of_few_objects_must_be_likelier(key: tuple[str, str]) -> None:
    """Demand a likelier hit, the fewer objects a host has, at every level."""
    model = logistic_models()[key]._replace(answerable=(30.0, *[0.0] * len(_NOTHING)))
    unlikely, enough, likely = (_constant(model, chance) for chance in (0.01, 0.1, 0.3))
    assert [unlikely.is_weak(_NOTHING, few) for few in (0, 0.5, 1)] == [False, True, True]
    assert [enough.is_weak(_NOTHING, few) for few in (0, 0.5, 1)] == [False, False, True]
    assert [likely.is_weak(_NOTHING, few) for few in (0, 0.5, 1)] == [False, False, False]


def test_a_small_host_refuses_what_it_lacks(tmp_path: Path) -> None:
    """Find what a host of fourteen objects has, and refuse most questions about what it lacks."""

    async def refused(memory: StateStore) -> list[bool]:
        await memory.replace(FILE, {each.identity for each in SMALL}, SMALL)
        async with Serving(load({"OP_DBUS_VECTOR_LEVEL": "static"})) as serving:
            vectors = ObjectVectors(memory, serving)
            await indexed(vectors)
            finder = Finder(vectors)
            hits = [
                await finder.search(question, SearchRequest(10)) for question in (*THERE, *ABSENT)
            ]
            names = [found[0].object_id[-1] for found in hits]
            assert names[: len(THERE)] == [*THERE.values()]
            return [found[0].rating.is_weak for found in hits]

    weak = asked(tmp_path, refused)
    assert not any(weak[: len(THERE)])
    assert sum(weak[len(THERE) :]) >= len(ABSENT) - 2


def test_one_of_many_that_are_alike_is_unlikely_and_not_weak() -> None:
    """Refuse by whether the host has anything about a question, not by which of it is right."""
    ((one,), (alike, *_)) = rate([found(0.9)], "hybrid"), rate([found(0.9)] * 10, "hybrid")
    assert alike.confidence < one.confidence
    assert not alike.is_weak


@pytest.mark.parametrize(
    ("question", "name", "corrected"),
    [
        ("postgress", "postgresql@15-main.service", [("postgress", "postgresql")]),
        ("databse", "postgresql@15-main.service", [("databse", "database")]),
        ("printng", "cups.service", [("printng", "printing")]),
        ("datab", "postgresql@15-main.service", [("datab", "database")]),
        ("fire wall", "firewalld.service", [("fire wall", "firewall")]),
        ("networkmanager", "network-manager.service", [("networkmanager", "network manager")]),
        ("shop", "postgresql@15-main.service", []),
        # one letter more than cups, and a name of its own
        ("cupsd printing", "cups.service", []),
    ],
)
def test_words_that_no_object_has_are_corrected(
    tmp_path: Path, question: str, name: str, corrected: list[tuple[str, str]]
) -> None:
    """Look for the host's own words where a question has none of them, and say so."""
    best = search(tmp_path, question)[0]
    assert best.object_id.name == name
    assert best.why
    assert [(each.asked, each.meant) for each in best.why.corrected] == corrected


def test_what_is_like_nothing_stays_as_it_is(tmp_path: Path) -> None:
    """Find nothing for words that are like none of the host's."""
    assert search(tmp_path, "zzzzqqq") == []


def test_words_of_a_language_are_no_mistakes(tmp_path: Path) -> None:
    """Correct only what is wrong, but join and part any words that no object has."""

    def correct(store: Store) -> list[spelling.Correction]:
        missing = spelling.unknown_words(store, "fire wall of shot")
        assert missing == ["fire", "wall", "shot"]
        return spelling.corrections(store, "fire wall of shot", missing, [])

    found = asked(tmp_path, lambda memory: memory.archive.read(correct))
    assert found == [spelling.Correction("fire wall", "firewall")]
    assert spelling.apply_corrections("Fire-wall of shot", found) == "firewall of shot"


@pytest.mark.parametrize(
    ("objects", "question", "words", "names"),
    [
        (300, "purple printing by nginx", 2 / 3, 1 / 3),
        (300, "purple printing", 0.5, 0.0),
        (300, "failed printing", 0.0, 0.0),
        (30, "purple printing by nginx", 0.0, 0.0),
    ],
)
def test_what_no_object_has_counts_where_there_are_many(
    tmp_path: Path, objects: int, question: str, words: float, names: float
) -> None:
    """Count words that none of many objects has, and names of programs among them."""
    items = [
        StateObject(Identity(FILE, "systemd", "unit", f"{n}.service"), PAPER)
        for n in range(objects)
    ]
    found = search_words(tmp_path, items, question, SearchRequest(1))[0].score.missing
    assert (found.words, found.names) == pytest.approx((words, names))


def test_why_names_fields_and_what_is_missing(tmp_path: Path) -> None:
    """Say which fields have which words, in any form, and which words none has."""
    (best,) = search(tmp_path, "printers of a zeppelin")
    assert best.why
    assert [(field.name, field.words) for field in best.why.fields] == [
        ("description", ("printers",))
    ]
    assert best.why.missing == ("zeppelin",)
    assert best.why.total == best.score.total


@pytest.mark.parametrize(
    ("question", "field", "words"),
    [
        ("what version of bash is installed?", "version", ("version",)),
        ("how big is bash?", "installed_size_mb", ("big",)),
        ("how full is the disk /mnt/code?", "used_percent", ("full",)),
        ("who has the user id 1001?", "uid", ("user", "id", "1001")),
        ("group id of bob", "gid", ("group", "id")),
        ("accounts that cannot log in", "can_log_in", ("not log in", "log")),
        ("when does logrotate run next?", "next_elapse", ("when", "next")),
    ],
)
def test_the_field_that_is_asked_for_comes_first(
    tmp_path: Path, question: str, field: str, words: tuple[str, ...]
) -> None:
    """Explain a hit by the field whose name the question has in plain words, then by others."""
    host: dict[tuple[str, str, str], dict[str, Json]] = {
        ("packages", "package", "bash"): {"installed_size_mb": 7.0, "version": "5.2.15-2+b8"},
        ("systemd", "unit", "logrotate.timer"): {"unit": "logrotate.service"},
        ("mounts", "mount", "/mnt/code"): {"inodes_used_percent": 5, "used_percent": 65},
        ("users", "account", "bob"): {"can_log_in": False, "gid": 1001, "uid": 1001},
    }

    async def work(memory: StateStore) -> Explanation | None:
        objects = [StateObject(Identity("live:x", *name), has) for name, has in host.items()]
        moving = {Identity("live:x", "systemd", "unit", "logrotate.timer"): {"next_elapse": "6:00"}}
        await memory.observe(objects, set(), moving)
        finder = Finder(ObjectVectors(memory, Serving(load({}))))
        return (await finder.search(question, SearchRequest(1, is_explained=True), "lexical"))[
            0
        ].why

    why = asked(tmp_path, work)
    assert why
    assert (why.fields[0].name, why.fields[0].words) == (field, words)


TIMER: dict[str, Json] = {
    "active_state": "active", "unit": "a.service", "triggers": ["a.service"],
    "next_elapse": "18:40", "last_trigger": "06:12",
}  # fmt: skip
SERVICE: dict[str, Json] = {
    "active_state": "active", "sub_state": "running", "user": "www-data", "main_pid": 812,
    "active_since": "06:12",
}  # fmt: skip
INTERFACE: dict[str, Json] = {"mac": "52:54", "mtu": 1500, "addresses": ["10.0.0.5/24", "fe80::1"]}
MOUNT: dict[str, Json] = {"size_gb": 60, "used_percent": 57, "free_bytes": 9}
FACT: dict[str, Json] = {"timezone": "UTC", "boot_time": "2026-11-28", "uptime": "3d"}


@pytest.mark.parametrize(
    ("question", "fields", "shown"),
    [
        ("when does a.timer run next?", TIMER, "next_elapse 18:40"),
        ("next run of a.timer", TIMER, "next_elapse 18:40"),
        ("when did a.timer last trigger", TIMER, "last_trigger 06:12"),
        ("which addresses does eth0 have?", INTERFACE, "addresses 10.0.0.5/24, fe80::1"),
        ("what is the ip of eth0", INTERFACE, "addresses 10.0.0.5/24, fe80::1"),
        ("mac address of eth0", INTERFACE, "mac 52:54"),
        ("which user runs nginx", SERVICE, "user www-data"),
        ("who runs nginx", SERVICE, "user www-data"),
        ("pid of nginx", SERVICE, "main_pid 812"),
        ("since when is nginx running", SERVICE, "active_since 06:12"),
        ("how full is /srv", MOUNT, "used_percent 57"),
        ("how much space is free on /srv", MOUNT, "free_bytes 9"),
        ("how large is /srv", MOUNT, "size_gb 60"),
        ("uptime", FACT, "uptime 3d"),
        ("when was the last boot?", FACT, "boot_time 2026-11-28"),
        ("web server", SERVICE, ""),
        ("is nginx active", SERVICE, ""),
        ("which interfaces are up", INTERFACE, ""),
    ],
)
def test_the_field_that_is_asked_for_is_shown(
    question: str, fields: dict[str, Json], shown: str
) -> None:
    """A hit shows the field whose name a question has, in its own words or in others; no other."""
    assert explanations.find_asked(fields, question) == shown
