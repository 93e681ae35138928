"""Changes found by meaning: by words where there is no model, and by vectors where there is one."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from harness.running import work_of

from opdbus.config import Config
from opdbus.errors import CallerError, NotKept
from opdbus.history.change import FIRST, STATE_FILE, Cause
from opdbus.history.row_filter import Filter
from opdbus.history.sentence_table import SentenceHit
from opdbus.index.changes import connections
from opdbus.index.changes.change_finder import ChangeFinder, RankedChange
from opdbus.index.changes.change_ranking import Candidate, SentenceCosines, about
from opdbus.index.query.config_mentions import Mentions
from opdbus.index.ranking.scores import CosineBaseline
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.indexer import Indexer
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.sentence_vectors import SentenceVectors
from opdbus.serving.serving import Serving
from opdbus.state.object import FILE, Identity, Json, ObjectId, StateObject

MINUTE = 60
SOURCE = "observe:probe"
_PLUGINS = {
    "unit": "systemd",
    "package": "packages",
    "file": "files",
    "account": "users",
    "group": "users",
    "mount": "mounts",
    "sysctl": "kernel",
    "listener": "net",
    "session": "login1",
    "user": "login1",
    "seat": "login1",
}
ON = {"active_state": "active", "unit_file_state": "enabled"}
OFF = {"active_state": "inactive", "unit_file_state": "disabled"}
SHOP = {"description": "Web server of the shop"}
WEB = SHOP | {"package": "shopd"}


class Day:
    """A host whose clock moves a minute with each change."""

    def __init__(self, memory: StateStore, vectors: ObjectVectors, clock: list[float]) -> None:
        self.memory = memory
        self.vectors = vectors
        self.finder = ChangeFinder(vectors, connections.nothing_more)
        self._clock = clock
        self._pause = MINUTE

    def hurry(self) -> None:
        """Let a second pass with each change from now on."""
        self._pause = 1

    def tick(self) -> str:
        """Let a minute pass, and return the time."""
        self._clock[0] += MINUTE
        return datetime.fromtimestamp(self._clock[0], UTC).isoformat()

    async def see(self, kind: str, name: str, cause: str = "", **properties: object) -> None:
        """Observe an object; without properties it is gone."""
        self._clock[0] += self._pause
        plugin = _PLUGINS.get(kind, "host")
        source = FILE if cause == STATE_FILE else SOURCE
        identity = Identity(source, plugin, kind, name)
        objects = [StateObject(identity, properties)] if properties else []
        gone = set() if properties else {identity}
        await self.memory.observe(objects, gone, {}, lambda _: Cause(cause))

    async def repeat(self, name: str, cause: str, times: int) -> None:
        """Let the same happen to an object again and again, and leave it as it is."""
        identity = Identity(SOURCE, "systemd", "unit", name)
        for _ in range(times):
            self._clock[0] += 1
            events = {identity: Cause(cause, is_event=True)}
            await self.memory.observe([], set(), {}, events=events)


def run(settings: Config, work: Callable[[Day], Awaitable[None]], *, level: str = "none") -> None:
    """Work with a day, on which nothing has happened yet."""

    async def both() -> None:
        clock = [1_800_000_000.0]
        path = settings.state_dir / "memory.db"
        ours = replace(settings, vector_level=level)
        async with StateStore(path, clock=lambda: clock[0]) as memory, Serving(ours) as serving:
            await work(Day(memory, ObjectVectors(memory, serving), clock))

    asyncio.run(both())


def on_a_day(*, level: str = "none") -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Run a test with a day as its first parameter."""
    return work_of(lambda settings, work: run(settings, work, level=level), "settings")


async def morning(day: Day) -> None:
    """Let a service be reconfigured, restarted and fail, and other things happen besides."""
    await day.see("package", "shopd", version="1.0", summary="web shop")
    await day.see("unit", "shop.service", active_state="active", **WEB)
    await day.see("unit", "mail.service", active_state="active", description="Mail transport")
    await day.see("unit", "mail.service", active_state="inactive", description="Mail transport")
    await day.see("package", "shopd", cause="dpkg:now", version="2.0", summary="web shop")
    await day.see("file", "/etc/hosts", description="names of hosts")
    await day.see("unit", "shop.service", active_state="failed", **WEB)


def names(found: Sequence[RankedChange]) -> list[str]:
    """Give the names of what was found."""
    return [each.row.identity.name for each in found]


@on_a_day()
async def test_words_find_changes_without_a_model(day: Day) -> None:
    """Answer by words, by what happened and what led to it, where there is no engine."""
    await morning(day)
    found = await day.finder.about("which services crashed?", Filter(), 3)
    assert names(found)[0] == "shop.service"
    assert found[0].row.change_type == "changed"
    assert names(await day.finder.about("mail", Filter(), 1)) == ["mail.service"]
    upgraded = await day.finder.about("what was upgraded?", Filter(), 1)
    assert [each.row.seq for each in upgraded] == [5]
    # only rows that a filter means
    of_units = await day.finder.about("shop", Filter(kind="unit"), 9)
    assert {each.row.identity.kind for each in of_units} == {"unit"}
    assert names(await day.finder.about("shop", Filter(cause="dpkg"), 9)) == ["shopd"]
    early = await day.finder.about("mail stopped", Filter(before_seq=4), 9)
    assert max(each.row.seq for each in early) == 3
    # first what has to do with an event, such as an upgrade of its package
    for found in (
        await day.finder.before("the shop failed", Filter(), 9),
        await day.finder.about("what happened before the web shop failed?", Filter(), 9),
    ):
        first = [(each.row.identity.name, each.row.change_type) for each in found][:2]
        assert first == [("shopd", "changed"), ("shopd", "appeared")]
        assert all(each.row.seq < 7 for each in found)


@on_a_day()
async def test_a_sort_that_is_named_is_found(day: Day) -> None:
    """Find settings of the kernel by their names, and declarations only where they are meant."""
    await morning(day)
    await day.see("sysctl", "vm.panic", value="1")
    await day.see("sysctl", "vm.swappiness", value="60")
    await day.see("sysctl", "vm.swappiness", value="10")
    await day.see("account", "carol", uid=1001)
    await day.see("account", "alice", STATE_FILE, uid=1000)
    await day.see("file", "/etc/hosts", size=5)
    for asked, first in (
        ("kernel tuning", {"vm.swappiness", "vm.panic"}),
        ("sysctl settings changed", {"vm.swappiness", "vm.panic"}),
        ("were any sysctls adjusted?", {"vm.swappiness"}),
        ("new users", {"carol"}),
        ("which accounts were declared?", {"alice"}),
        ("alice", {"alice"}),
    ):
        found = names(await day.finder.about(asked, Filter(), 9))
        assert set(found[: len(first)]) == first, asked
        assert ("alice" in found) == ("alice" in first), asked


def test_what_is_not_about_a_question_is_left_out() -> None:
    """Of some changes that are about a question, those that are not are no answers."""
    near = SentenceCosines({}, CosineBaseline(mean=0.1, spread=0.1))
    texts = {"router; closed": (0.4, 0.0), "lamp; failed": (0.2, 0.0), "hosts; edited": (0.2, 0.1)}
    found = [
        Candidate(SentenceHit(text, seq, 1), cosine, share)
        for seq, (text, (cosine, share)) in enumerate(texts.items(), 1)
    ]
    assert about("name resolution", near, found) == {1, 3}
    assert about("names of what crashed", near, found) == {1, 2, 3}
    assert about("what changed?", near, found) == {1, 2, 3}
    assert about("name resolution", near._replace(baseline=None), found) == {1, 2, 3}


@on_a_day()
async def test_what_happens_again_and_again_is_one_answer(day: Day) -> None:
    """Return the newest row of each sentence, with how many there are."""
    await morning(day)
    await day.repeat("mail.service", "job:7 restart", 100)
    found = await day.finder.about("what was restarted?", Filter(), 3)
    assert (found[0].row.identity.name, found[0].count) == ("mail.service", 100)
    assert found[0].row.seq == 107
    assert len({each.row.sentence for each in found}) == len(found)


@on_a_day()
async def test_what_happened_before_the_history_begins(day: Day) -> None:
    """What was there at the first listing was installed before; a later time is kept."""
    await day.see("package", "shopd", FIRST, version="1.0")
    await day.see("unit", "shopd.service", FIRST, **ON)
    await day.see("package", "mail", version="1.0")
    for event, said in (
        ("installed shopd", "shopd was installed before the history begins .at 2027-01-15"),
        ("shopd was removed", "shopd has not been removed in the history"),
        ("shopd.service started", "shopd.service has not started in the history"),
    ):
        with pytest.raises(NotKept, match=said):
            await day.finder.before(event, Filter(), 9)
    later = Filter(since=1_800_000_100_000_000)
    with pytest.raises(NotKept, match="shopd has not been installed in the history"):
        await day.finder.before("installed shopd", later, 9)


@on_a_day()
async def test_what_never_happened_is_said_to_be_so(day: Day) -> None:
    """Name the object that an event is of, and lead to no other one to which it happened."""
    await day.see("lamp", "lamp", FIRST, colour="red")
    await morning(day)
    await day.see("unit", "mailer.service", active_state="active")
    await day.see("unit", "mail.service", active_state="active", description="Mail transport")
    await day.see("account", "mail", uid=8)
    await day.see("unit", "db.service", active_state="failed")
    await day.repeat("db.service", "job:7 restart", 1)
    await day.see("file", "/etc/mail")
    for event, said in (
        ("mail failed", "mail has not failed in the history"),
        ("mail.service crashed", "mail.service has not failed in the history"),
        ("mail was restarted", "mail has not restarted"),
        ("mailer went down", "mailer has not gone down"),
        ("shop reload", "shop has not been reloaded in the history"),
        ("shopd get removed", "shopd has not been removed"),
        ("lamp changed", "lamp has not changed in the history"),
        ("frobd failed", "there is no object named frobd, and history has none"),
        ("mail.timer failed", "there is no object named mail.timer"),
        ("purple elephant crashed", "there is no object named purple elephant"),
    ):
        with pytest.raises(CallerError, match=said):
            await day.finder.before(event, Filter(), 9)


@on_a_day()
async def test_what_is_no_longer_so_is_not_so_again(day: Day) -> None:
    """Ask for what is not so any more: what was undone later, or never happened, is left out."""
    for name in ("back", "over"):
        await day.see("unit", f"{name}.service", **ON)
        await day.see("unit", f"{name}.service", **OFF)
        await day.see("package", name, version="1")
        await day.see("package", name)
    await day.see("unit", "back.service", **ON)
    await day.see("package", "back", version="1")
    for question in (
        "what no longer starts at boot?",
        "which services are no longer running?",
        "which services are not running any more?",
    ):
        assert names(await day.finder.about(question, Filter(), 9)) == ["over.service"]
    found = await day.finder.about("which packages are no longer installed?", Filter(), 9)
    assert names(found) == ["over"]
    both = await day.finder.about("which services were stopped?", Filter(), 9)
    assert set(names(both)) == {"back.service", "over.service"}
    for question in ("was anything unmasked?", "which service is no longer mounted?"):
        assert await day.finder.about(question, Filter(), 9) == []


@on_a_day()
async def test_an_event_in_other_words_is_of_what_has_them(day: Day) -> None:
    """Find the event by what an object is described as, and none of an object without the words."""
    await morning(day)
    await day.see("account", "web", uid=33)
    await day.see("unit", "db.service", active_state="failed", description="Ledger")
    found = await day.finder.before("the web server failed", Filter(), 9)
    assert {each.event for each in found} == {7}
    assert await day.finder.before("the mail transport failed", Filter(), 9) == []


@on_a_day()
async def test_what_a_user_did_and_who_did_what(day: Day) -> None:
    """A user's commands answer what the user did; any change of an object, who changed it."""
    await morning(day)
    for mode in ("0644", "0600"):
        await day.see("file", "/etc/ssh/sshd_config", mode=mode)
    await day.see("account", "bob", uid=1)
    await day.see("account", "bob", uid=2)
    command: dict[str, Json] = {"with": "sudo", "command": "chmod 600 /etc/ssh/sshd_config"}
    said = StateObject(Identity("publish:journal", "journal", "user", "bob"), {"ran": [command]})
    await day.memory.publish([said], 0, cause="bus::1.9 uid 0")
    for question in ("what did bob do?", "Which commands did bob run?"):
        found = await day.finder.about(question, Filter(), 5)
        assert [each.row.identity[1:] for each in found] == [("journal", "user", "bob")]
    newest, *_ = await day.finder.about("who changed sshd_config?", Filter(), 5)
    assert [[*field.path] for field in newest.row.fields] == [["mode"]]
    assert newest.row.change_type == "changed"


@on_a_day()
async def test_an_event_of_a_named_object_is_no_other_objects(day: Day) -> None:
    """List only changes that have the name of the object that a question and an event name."""
    await day.see("group", "scanners", members=["petra", "bob"])
    await day.see("account", "petra", groups=["petra", "scanners"])
    await day.see("account", "carl", uid=1007)
    await day.see("group", "scanners", members=["bob"])
    await day.see("account", "petra", groups=["petra"])
    await day.see("account", "carl")
    await day.see("file", "/etc/old", description="a file")
    await day.see("file", "/etc/old")
    found = await day.finder.about("who was removed from group scanners?", Filter(), 9)
    assert names(found)[0] == "scanners"
    assert set(names(found)) == {"scanners", "petra"}
    every = await day.finder.about("what was removed?", Filter(), 9)
    assert {"carl", "/etc/old"} <= set(names(every))


@on_a_day()
async def test_the_host_comes_before_what_is_declared(day: Day) -> None:
    """Rank what the state file says below the host's own, which it neither led to nor followed."""
    await day.see("account", "alice", home="/home/a", description="alice")
    await day.see("account", "alice", home="/srv/a", description="alice")
    await day.see("account", "alice", STATE_FILE, home="/home/a")
    found = await day.finder.about("home of alice", Filter(), 9)
    assert [each.row.seq for each in found] == [2, 1, 3]
    await day.see("mount", "/srv", used_percent=2)
    await day.see("account", "alice", description="locked alice", can_log_in=False)
    led = await day.finder.before("alice locked", Filter(), 9)
    assert led[-1].row.seq == 3
    (first, *_) = await day.finder.nearest("alice added", Filter(), 1)
    assert [row.seq for row in first.rows] == [2, 5]
    declared = await day.finder.about("what was declared of alice?", Filter(), 1)
    assert [each.row.seq for each in declared] == [3]


@on_a_day()
async def test_a_sort_comes_first_where_only_what_happened_is_asked(day: Day) -> None:
    """Give the file that was deleted before other things that are gone, whose words are closer."""
    for kind, name in (("file", "/etc/issue"), ("lamp", "files"), ("mount", "/mnt/files")):
        await day.see(kind, name, description="Which files were deleted")
    for kind, name in (("file", "/etc/issue"), ("lamp", "files"), ("mount", "/mnt/files")):
        await day.see(kind, name)
    found = names(await day.finder.about("which files were deleted?", Filter(), 3))
    assert found[0] == "/etc/issue"


@on_a_day()
async def test_it_has_happened_before(day: Day) -> None:
    """Find the earlier changes like one, not itself, with what followed of it within minutes."""
    await morning(day)
    await day.see("unit", "shop.service", active_state="active", **WEB)
    await day.see("unit", "shop.service", active_state="failed", **WEB)
    rows = await day.memory.archive.read(lambda store: store.history.rows_by_seq([9]))
    found = await day.finder.nearest(rows[0], Filter(), 1)
    assert [each.found.row.seq for each in found] == [7]
    assert [row.seq for row in found[0].rows] == [8, 9]
    said = await day.finder.nearest("mail", Filter(), 2)
    assert {each.found.row.identity.name for each in said} == {"mail.service"}


@on_a_day()
async def test_what_people_call_themselves_connects_nothing(day: Day) -> None:
    """An account has to do with its groups, and not with what has a word of its full name."""
    await day.see("account", "bob", full_name="N16 Baker", description="N16 Baker", uid=1001)
    await day.see("mount", "/mnt/n16", fstype="tmpfs")
    await day.see("group", "audio", members=["alice", "bob"])
    (found,) = await day.finder.nearest("account added", Filter(), 1)
    assert [row.identity.name for row in found.rows] == ["audio"]
    account = ObjectId("users", "account", "bob")
    around = await connections.around(day.memory, account)
    assert around.object_ids == {account, ObjectId("users", "group", "audio")}


@on_a_day(level="medium")
async def test_sentences_get_vectors_after_the_objects(day: Day, tiny_graphs: Path) -> None:
    """Embed each sentence once, the newest first, and no more than the hour allows."""
    del tiny_graphs
    await morning(day)
    memory, serving = day.memory, day.vectors.serving
    engine = (await day.vectors.index(*await numerics(serving))).numerics_key
    ours = SentenceVectors(day.vectors, an_hour=3, clock=lambda: 0.0)
    async with asyncio.timeout(60):
        indexing = asyncio.create_task(Indexer(day.vectors).run())
        while await waiting(memory, engine):  # noqa: ASYNC110 -- nothing says when a sentence has its vector
            await asyncio.sleep(0.01)
        indexing.cancel()
    vectors = await memory.archive.read(lambda store: store.sentences.block(engine, 32, 0, 99))
    assert len(vectors.ids) == 7
    await memory.archive.write(forget)
    memory.unembedded.set()
    working = asyncio.create_task(ours.run())
    async with asyncio.timeout(60):
        while len(await waiting(memory, engine)) > 4:  # noqa: ASYNC110 -- nothing says when a sentence has its vector
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    working.cancel()
    left = await waiting(memory, engine)
    assert [number for number, _ in left] == [4, 3, 2, 1]


async def numerics(serving: Serving) -> tuple[str, int]:
    """Give what an index needs to know of the engine that serves."""
    embedder = await serving.embedder()
    return embedder.numerics, embedder.dimension


async def waiting(memory: StateStore, engine: bytes) -> list[tuple[int, str]]:
    """Give the sentences without a vector."""
    return await memory.archive.read(lambda store: store.sentences.waiting(engine, 99))


def forget(store: Any) -> None:
    """Take the vectors away, as another engine would."""
    with store.transaction():
        store._database.execute("UPDATE sentences SET engine = x'', vector = NULL")


WORDS = {
    "telnetd": "uninstalled deinstalled de-installed removed deleted purged erased scrapped"
    " discarded ditched dropped",
    "nmap": "installed added",
    "cron.service": "stopped halted",
    "/etc/issue": "edited modified tweaked overwritten amended altered",
    "/srv": "unmounted",
}


@on_a_day()
async def test_what_happened_is_found_by_any_of_its_words(day: Day) -> None:
    """Find a change first by each synonym of what happened, and by nothing else in the question."""
    telnet = {"description": "remote login server", "version": "0.17"}
    await day.see("package", "telnetd", status="installed", **telnet)
    await day.see("unit", "cron.service", active_state="active", description="jobs")
    await day.see("mount", "/srv", fstype="ext4")
    await day.see("file", "/etc/issue", sha256="a", size=1)
    await day.see("file", "/etc/issue", sha256="b", size=2)
    await day.see("mount", "/srv")
    await day.see("unit", "cron.service", active_state="inactive", description="jobs")
    await day.see("package", "telnetd", status="config-files", removed=True, **telnet)
    await day.see("package", "nmap", status="installed", description="network mapper")
    for name, word in ((name, word) for name, words in WORDS.items() for word in words.split()):
        assert name in names(await day.finder.about(f"what was {word}?", Filter(), 3)), word
        of_package = await day.finder.about(f"which packages were {word}?", Filter(), 1)
        assert name.startswith(("/", "cron")) or names(of_package) == [name], word


async def needed(unit: str, fields: Mapping[str, Json], files: Collection[str]) -> Mentions:
    """Say that the shop needs its database, and where the database has its configuration."""
    del fields, files
    named = {"shop.service": Mentions(units=frozenset({"db.service"}))}
    return named.get(unit, Mentions(folders=frozenset({"/etc/db"})))


async def named(_: str, __: Mapping[str, Json], ___: Collection[str]) -> Mentions:
    """Say what the name server has its configuration in, listens at and writes to."""
    paths, folders = frozenset({"/srv/zones"}), frozenset({"/etc/bind"})
    return Mentions(paths=paths, ports=frozenset({53}), folders=folders)


@on_a_day()
async def test_many_changes_of_one_cause_are_one(day: Day) -> None:
    """An upgrade of 200 packages is one answer, but for the package that the event concerns."""
    await day.see("unit", "shop.service", active_state="active", **WEB)
    for number in range(60):
        name = "shopd" if number == 30 else f"gir{number}"
        await day.see("package", name, version="1.0", description=f"{name} data")
    day.hurry()
    for number in range(60):
        name = "shopd" if number == 30 else f"gir{number}"
        await day.see("package", name, "apt:x", version="2.0", description=f"{name} data")
    await day.see("file", "/etc/motd", description="message of the day")
    await day.see("unit", "shop.service", active_state="failed", **WEB)
    found = await day.finder.before("shop failed", Filter(), 9, within=61_500_000)
    assert names(found)[0] == "shopd"
    others = {each.row.identity.name: each.others for each in found}
    assert others.pop("shopd") == others.pop("/etc/motd") == 0
    assert list(others.values()) == [58]
    assert found[0].total == 3


@on_a_day()
async def test_what_led_to_the_failure_of_what_is_needed(day: Day) -> None:
    """Of a unit that failed because another one did, both that and its cause are answers."""
    day.finder = ChangeFinder(day.vectors, needed)
    for name in ("db.service", "shop.service", "mail.service"):
        await day.see("unit", name, active_state="active", description=name)
    for path in ("/etc/mail/main.cf", "/etc/db/db.conf", "/etc/motd"):
        await day.see("file", path, description="configuration", sha256="1")
    await day.see("file", "/etc/db/db.conf", description="configuration", sha256="2")
    await day.see("file", "/etc/mail/main.cf", description="configuration", sha256="2")
    await day.see("unit", "mail.service", active_state="failed", description="mail.service")
    await day.see("unit", "db.service", active_state="failed", description="db.service")
    await day.see("unit", "shop.service", active_state="failed", description="shop.service")
    found = await day.finder.before("shop.service failed", Filter(), 2)
    assert names(found) == ["db.service", "/etc/db/db.conf"]


@pytest.mark.parametrize("unit", [{"unit": "named.service"}, {}])
@on_a_day()
async def test_a_port_that_closes_led_to_nothing(day: Day, unit: dict[str, str]) -> None:
    """What is configured comes before the ports of a service that closed as it failed."""
    day.finder = ChangeFinder(day.vectors, named)
    ports = [f"{kind} {at}:53" for kind in ("tcp", "udp") for at in ("127.0.0.1", "10.0.0.5")]
    await day.see("unit", "named.service", active_state="active", description="DNS")
    await day.see("file", "/etc/bind/zones", description="configuration", sha256="1")
    for port in ports:
        await day.see("listener", port, port=53, **unit)
    await day.see("file", "/etc/bind/zones", description="configuration", sha256="2")
    for port in ports:
        await day.see("listener", port)
    await day.see("unit", "named.service", active_state="failed", description="DNS")
    found = await day.finder.before("named failed", Filter(), 3)
    assert names(found)[0] == "/etc/bind/zones"


@pytest.mark.parametrize(
    ("kind", "name", "fields", "seconds", "is_first"),
    [
        ("mount", "/srv", {"used_percent": 100}, 40, True),
        ("listener", "tcp 0.0.0.0:53", {"unit": "session-3.scope"}, 3, True),
        ("listener", "tcp 0.0.0.0:53", {"unit": "session-3.scope"}, 30, False),
        ("file", "/etc/bind/other", {"sha256": "1"}, 3, False),
    ],
)
@on_a_day()
async def test_what_is_looked_at_now_and_then_may_be_seen_late(
    day: Day, kind: str, name: str, fields: dict[str, Any], seconds: int, *, is_first: bool
) -> None:
    """A file system that was seen to be full, or a port to be taken, after a failure led to it."""
    day.finder, day._pause = ChangeFinder(day.vectors, named), 1
    await day.see("mount", "/srv", used_percent=50)
    await day.see("unit", "named.service", active_state="active", description="DNS")
    await day.see("account", "carol", uid=1001)
    await day.see("unit", "named.service", active_state="failed", description="DNS")
    day._pause = seconds
    await day.see(kind, name, **fields)
    found = await day.finder.before("named failed", Filter(), 3)
    assert (name == names(found)[0] and found[0].row.seq == 5) == is_first


@on_a_day()
async def test_an_outage_begins_with_its_first_failure(day: Day) -> None:
    """What led to an outage came before its first failure, however often it was tried again."""
    await day.see("unit", "shop.service", active_state="failed", **SHOP)
    await day.see("unit", "shop.service", active_state="active", **SHOP)
    await day.see("file", "/etc/shop/shop.conf", description="configuration", sha256="1")
    await day.see("unit", "shop.service", active_state="failed", **SHOP)
    for number in range(5):
        await day.see("file", f"/etc/shop/try{number}", description="x", sha256="1")
        await day.repeat("shop.service", "job:9 start, failed", 1)
    found = await day.finder.before("shop failed", Filter(), 9)
    assert {each.event for each in found} == {4}
    assert {each.row.seq for each in found} == {1, 2, 3}


@on_a_day()
async def test_what_a_unit_has_run_with_led_less_to_its_failure(day: Day) -> None:
    """A change after which a unit started well comes below one that came after that start."""
    port = "tcp 0.0.0.0:80"
    await day.see("unit", "shop.service", active_state="active", **SHOP)
    await day.see("listener", port, unit="shop.service", port=80)
    await day.see("file", "/etc/default/shop", description="settings of shop", sha256="1")
    await day.see("unit", "shop.service", active_state="inactive", **SHOP)
    await day.see("unit", "shop.service", active_state="active", **SHOP)
    await day.see("unit", "shop.service", active_state="inactive", **SHOP)
    # somebody else has the port before it was seen to be closed
    await day.see("listener", port, unit="session-3.scope", port=80)
    await day.see("unit", "shop.service", active_state="failed", **SHOP)
    found = await day.finder.before("shop failed", Filter(), 9)
    assert names(found)[0] == port
    assert found[0].row.seq == 7
    assert names(found).index("/etc/default/shop") <= 2


@on_a_day()
async def test_the_newest_of_alike_failures_is_the_event(day: Day) -> None:
    """Of several failures of a unit, which differ in their details, the last one is meant."""
    for before, result in (("inactive", ""), ("active", "exit-code"), ("activating", "oom")):
        await day.see("unit", "shop.service", active_state=before, result="", **SHOP)
        await day.see("file", f"/etc/shop/{before}", description="configuration", sha256="1")
        await day.see("unit", "shop.service", active_state="failed", result=result, **SHOP)
        await day.see("unit", "shop.service", "job:1 start", active_state="active", **SHOP)
    found = await day.finder.before("shop failed", Filter(), 9)
    assert {each.event for each in found} == {11}


@on_a_day()
@pytest.mark.parametrize("asked", ["shop failed", "the web server failed"])
async def test_a_failure_of_another_kind_is_an_event_of_its_own(day: Day, asked: str) -> None:
    """Of two failures that ended in different ways, the newest is meant, with what led to it."""
    shop = {"description": "Web server of the shop"}
    await day.see("unit", "shop.service", active_state="active", **shop)
    await day.see("file", "/etc/shop/one", description="configuration", sha256="1")
    failed = {"active_state": "failed", "result": "exit-code", "exit_status": 3}
    await day.see("unit", "shop.service", "exit", **failed, **shop)
    await day.see("file", "/etc/shop/two", description="configuration", sha256="1")
    await day.see("unit", "shop.service", "job:1 start", active_state="activating", **shop)
    killed = {"active_state": "failed", "result": "signal", "exit_signal": "SIGKILL"}
    await day.see("unit", "shop.service", "job:1 start", **killed, **shop)
    await day.repeat("shop.service", "job:2 start, failed", 2)
    found = await day.finder.before(asked, Filter(), 9)
    assert {each.event for each in found} == {6}
    assert names(found)[0] == "/etc/shop/two"
    given_up = killed | {"result": "start-limit-hit"}
    await day.see("unit", "shop.service", "exit:start limit", **given_up, **shop)
    found = await day.finder.before(asked, Filter(), 9)
    assert {each.event for each in found} == {6}


@on_a_day()
async def test_the_event_is_of_the_time_that_is_asked_for(day: Day) -> None:
    """Of the failures of a unit that is the event which was from `since` to `before`."""
    for number in range(3):
        await day.see("unit", "shop.service", active_state="active", **SHOP)
        await day.see("file", f"/etc/shop/{number}", description="configuration", sha256="1")
        await day.see("unit", "shop.service", active_state="failed", **SHOP)
    start = 1_800_000_000 * 1_000_000
    for number in range(3):
        since, before = (start + (3 * n) * MINUTE * 1_000_000 + 1 for n in (number, number + 1))
        found = await day.finder.before("shop failed", Filter(since=since, before=before), 9)
        assert {each.event for each in found} == {3 * number + 3}
    later = Filter(since=start + 60 * MINUTE * 1_000_000)
    with pytest.raises(NotKept, match=r"shop has not failed in the history .since 2027-01-15"):
        await day.finder.before("shop failed", later, 9)


@on_a_day()
async def test_history_denies_nothing_that_it_has(day: Day) -> None:
    """Take a restart for a start and a stop, and a value from changes of other objects."""
    unit = {"active_state": "active", "description": "Stock"}
    port = {"port": 8081, "protocol": "tcp", "unit": "stockroom.service"}
    await day.see("unit", "stockroom.service", FIRST, **unit)
    await day.see("listener", "tcp 0.0.0.0:8081", FIRST, **port)
    await day.see("package", "less", FIRST, version="590-1", status="installed")
    await day.see("unit", "fstrim.timer", FIRST, unit_file_state="masked", masked=True)
    await day.repeat("stockroom.service", "job:7 restart", 1)
    await day.see("listener", "tcp 0.0.0.0:8081")
    await day.see("package", "less")
    await day.see("unit", "fstrim.timer", unit_file_state="enabled", masked=False)
    for question, name in (
        ("when did stockroom last start?", "stockroom.service"),
        ("did stockroom.service stop", "stockroom.service"),
        ("which port did stockroom use?", "tcp 0.0.0.0:8081"),
        ("what version of less was installed?", "less"),
        ("what was unmasked", "fstrim.timer"),
    ):
        found = await day.finder.about(question, Filter(), 9)
        assert names(found)[:1] == [name], question
    await day.see("unit", "stockroom.service", active_state="inactive", description="Stock")
    await day.repeat("stockroom.service", "job:8 restart", 1)
    found = await day.finder.before("stockroom stopped", Filter(), 9)
    assert found[0].event == 9


async def _run_as_root(day: Day, user: str, command: str, program: str = "sudo") -> None:
    """Publish a command as the reader of the journal does."""
    ran = {"at": day.tick(), "with": program, "command": command, "folder": "/"}
    said = StateObject(Identity("publish:journal", "journal", "user", user), {"ran": [ran]})
    await day.memory.publish([said], 0, cause="bus::1.9 uid 0")


@on_a_day()
async def test_what_was_tried_answers_who_did_what_did_not_happen(day: Day) -> None:
    """Who stopped what did not stop is answered by the command that was to stop it."""
    for unit in ("cron.service", "nginx.service", "cron-daily.service"):
        await day.see("unit", unit, active_state="inactive")
        await day.see("unit", unit, active_state="inactive", description=unit)
    await _run_as_root(day, "alice", "/usr/bin/systemctl disable --now cron")
    await _run_as_root(day, "carol", "/usr/bin/systemctl reload nginx")
    await _run_as_root(day, "carol", "/usr/bin/systemctl restart nginx")
    for question, user, of in (
        ("who stopped cron?", "alice", "cron has not stopped"),
        ("who has disabled cron?", "alice", "cron has not been disabled"),
        ("who restarted nginx?", "carol", "nginx has not restarted"),
        ("did nginx restart?", "carol", "nginx has not restarted"),
        ("which user reloaded nginx?", "carol", "nginx has not been reloaded"),
        ("who tried to stop cron?", "alice", "cron has not stopped"),
        ("did anyone restart nginx?", "carol", "nginx has not restarted"),
        ("did somebody try to reload nginx", "carol", "nginx has not been reloaded"),
    ):
        first, *more = await day.finder.about(question, Filter(), 9)
        assert first.row.identity[1:] == ("journal", "user", user), question
        assert first.note.startswith(of), question
        assert not more, question
    with pytest.raises(NotKept):
        await day.finder.about("who enabled cron?", Filter(), 9)


@on_a_day()
async def test_commands_are_listed_the_newest_first(day: Day) -> None:
    """Who ran commands is answered by these commands alone, each with its user."""
    await morning(day)
    await _run_as_root(day, "alice", "/usr/bin/systemctl restart chrony")
    await _run_as_root(day, "bob", "/usr/bin/cat /etc/shadow")
    await _run_as_root(day, "alice", "", program="su")
    for question, users in (
        ("who ran commands as root?", ["alice", "bob", "alice"]),
        ("which commands were run as root?", ["alice", "bob", "alice"]),
        ("who used sudo?", ["bob", "alice"]),
        ("who used su?", ["alice"]),
        ("who ran systemctl restart chrony?", ["alice"]),
        ("who executed cat?", ["bob"]),
        ("which commands were run by bob?", ["bob"]),
    ):
        found = await day.finder.about(question, Filter(), 9)
        assert names(found) == users, question
    with pytest.raises(NotKept, match="no such command"):
        await day.finder.about("who ran reboot as root?", Filter(), 9)


@on_a_day()
async def test_why_a_unit_does_not_run_is_what_its_fields_say(day: Day) -> None:
    """Where history has no stop or failure, the unit's fields say why it does not run."""
    off: dict[str, Json] = {"active_state": "inactive", "load_state": "loaded"}
    unmet: list[Json] = ["ConditionCapability=CAP_SYS_TIME"]
    await day.see("unit", "chrony.service", unmet_condition=unmet, **off)
    await day.see("unit", "spare.service", unit_file_state="disabled", **off)
    await day.see("unit", "apt.service", triggered_by=["apt.timer"], **off)
    await day.see("unit", "cron.service", masked=True, **off)
    await day.see("unit", "good.service", **ON)
    await _run_as_root(day, "alice", "systemctl restart chrony")
    for question, reason in (
        ("chrony not start", "its condition is not met: ConditionCapability=CAP_SYS_TIME"),
        ("chrony not running", "its condition is not met: ConditionCapability=CAP_SYS_TIME"),
        ("spare not running", "spare.service is inactive and disabled"),
        ("apt stopped", "apt.timer starts it"),
        ("cron not start", "cron.service is masked"),
        ("not cron start", "cron.service is masked"),
        ("not chrony up", "its condition is not met"),
    ):
        found = await day.finder.before(question, Filter(), 9)
        assert reason in found[0].note, question
    with pytest.raises(NotKept, match="good has not failed"):
        await day.finder.before("good failed", Filter(), 9)
    tried, *_ = await day.finder.before("chrony down", Filter(), 9)
    assert tried.row.identity.name == "alice"
    # what history has is the answer
    await day.see("unit", "spare.service", **ON)
    await day.see("unit", "spare.service", **OFF)
    assert not any(each.note for each in await day.finder.before("spare stopped", Filter(), 9))


@on_a_day()
async def test_who_logged_in_is_every_user_with_the_sessions(day: Day) -> None:
    """List users and their sessions, the newest first, and no seats or accounts."""
    await day.see("user", "alice", uid=1001)
    await day.see("session", "c1", user="alice")
    await day.see("seat", "seat0", session="c1")
    await day.see("account", "carol", uid=1003)
    await day.see("user", "carol", uid=1003)
    for name in ("c2", "c3"):
        await day.see("session", name, user="carol")
    await day.see("session", "c2")
    for question in ("who logged in?", "Who has logged in recently?", "which users logged on?"):
        found = await day.finder.about(question, Filter(), 9)
        assert names(found) == ["c3", "c2", "carol", "c1", "alice"]
