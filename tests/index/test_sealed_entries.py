"""What is known in files: a start from them is one from the database, whatever happened since."""

import asyncio
import itertools
import random
import shutil
import stat
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdbus.history.forget import Target
from opdbus.index.catalogue import entry_columns
from opdbus.index.database.identity_set import IdentityHashSet
from opdbus.index.fields.field_index import FieldIndex, Item
from opdbus.index.query import condition_matching
from opdbus.index.snapshot import entry_snapshot, postings
from opdbus.index.snapshot.entry_snapshot import SNAPSHOT_TOKEN
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.conditions import Condition
from opdbus.state.object import FILE, Identity, ObjectId, StateObject

OWNER = 1000
SOURCES = ("publish:one", "publish:two")


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opdbus.index.state_store.snapshot_writer.MANY", 10)


def item(source: str, number: int, value: object) -> StateObject:
    """Make an object, of which several sources may tell."""
    return StateObject(
        Identity(source, "p", "ab"[number % 2], f"n{number}"),
        # some have many more words than others
        {"value": value, "extra": [number, value, *["more"] * (number % 7)]},
    )


class Run:
    """Memories in one folder, one after the other, by a clock that goes on with each change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ticks = itertools.count(1_000_000)

    def of(self, work: Callable[[StateStore], Awaitable[Any]]) -> Any:
        """Do work with a memory."""

        async def both() -> Any:
            path = self.folder / "memory.db"
            async with StateStore(path, clock=lambda: next(self._ticks), boot="b") as memory:
                return await work(memory)

        return asyncio.run(both())

    @property
    def file(self) -> Path:
        """Where the entries are sealed; words and fields are beside it."""
        return self.folder / "entries.sealed"


async def known(memory: StateStore) -> list[Any]:
    """Return all that a memory knows, but for places."""
    return [*in_catalogue(memory), await having_words(memory), await meeting(memory)]


async def having_words(memory: StateStore) -> dict[str, dict[int, float]]:
    """Return the ids of what has each word, and the scores that it gives them."""
    await memory.words.ready()
    lookup = memory.words.lookup
    assert lookup
    words = ["p", "a", "b", "value", "old", "new", "passing", *map(str, range(4))]
    words += [f"n{number}" for number in range(80)]
    mean_length = await memory.archive.read(postings.mean_length)
    ids, found = memory.catalogue.view.ids, {}
    for word in words:
        term = lookup.find(word.encode(), mean_length)
        scores = lookup.scores([(term, 1.0)], len(ids))
        places = lookup.places(term)
        assert np.count_nonzero(scores[ids > 0]) == np.count_nonzero(ids[places])
        found[word] = dict(zip(ids[places].tolist(), scores[places].tolist(), strict=True))
    return found


async def meeting(memory: StateStore) -> list[frozenset[ObjectId]]:
    """Return what meets some conditions, first with what is not read yet, then with all of it."""
    asked = [("value", "=", "1"), ("value", ">", "1"), ("value", "~", "ass"), ("kind", "!=", "a")]
    asked += [("extra", "~", "2"), ("name", "=", "n7"), ("value", "!=", "3")]
    conditions = [[Condition(*one)] for one in asked]
    before = [await condition_matching.object_ids(memory, each) for each in conditions]
    await memory.fields.catch_up()
    assert [await condition_matching.object_ids(memory, each) for each in conditions] == before
    return before


def in_catalogue(memory: StateStore) -> list[Any]:
    """Return all that a catalogue knows, but for places."""
    catalogue = memory.catalogue
    object_ids = catalogue.object_ids({})
    return [
        {entry.id: entry for entry in catalogue},
        {object_id: catalogue.entries(object_id) for object_id in object_ids},
        object_ids,
        +catalogue.sources,
        {*catalogue.shared().object_ids},
        [len(catalogue), len(catalogue.texts), catalogue.texts.layer().missing_object_count],
    ]


def without_file(run: Run, folder: Path) -> Any:
    """Return what a start knows that has the database alone."""
    shutil.copytree(run.folder, folder)
    for file in folder.glob("*.sealed"):
        file.unlink()
    return Run(folder).of(known)


async def changed(memory: StateStore, chance: random.Random) -> None:
    """Change some objects, have some come, and some go."""
    for source in SOURCES:
        numbers = chance.sample(range(60), 12)
        await memory.publish([item(source, n, chance.randrange(4)) for n in numbers], OWNER)
    declared = [item(FILE, n, chance.randrange(4)) for n in chance.sample(range(60), 15)]
    await memory.replace(FILE, IdentityHashSet({one.identity for one in declared}), declared)
    published = [e for source in SOURCES for e in memory.catalogue.of_source(source)]
    gone = {e.identity.object_id for e in chance.sample(published, 4)}
    await memory.withdraw(gone, OWNER)
    await memory.publish([item("publish:one", 70, "passing")], OWNER, holder="somebody")


@pytest.mark.parametrize("seed", range(6))
def test_a_start_from_the_file_is_one_from_the_database(tmp_path: Path, seed: int) -> None:
    """Know the same after every kind of change, and after several files."""
    chance, run = random.Random(seed), Run(tmp_path / "it")  # noqa: S311 -- no secret
    from_file = []
    for turn in range(8):

        async def work(memory: StateStore) -> None:
            if chance.random() < 0.5:
                await changed(memory, chance)
            if chance.random() < 0.6:
                await memory.fields.catch_up()
            if chance.random() < 0.6:
                await memory.snapshot_writer.write_snapshot()
            if chance.random() < 0.5:
                await changed(memory, chance)

        run.of(work)
        expected = without_file(run, tmp_path / f"copy {turn}")
        assert run.of(known) == expected
        from_file.append(run.file.exists())
    assert any(from_file)


def sealed(run: Run, count: int = 200) -> None:
    """Have entries be in a file."""

    async def work(memory: StateStore) -> None:
        await memory.publish([item("publish:one", n, n) for n in range(count)], OWNER)
        await memory.snapshot_writer.write_snapshot()

    run.of(work)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give how many entries each reading of the database gave."""
    counts: list[int] = []
    original = entry_columns.read

    def counting(*given: Any, **named: Any) -> Any:
        found = original(*given, **named)
        counts.append(len(found.ids))
        return found

    monkeypatch.setattr(entry_columns, "read", counting)
    return counts


def test_a_start_reads_only_what_has_changed_since(tmp_path: Path, read: list[int]) -> None:
    """Read one changed object and one new one of the database, and no other."""
    run = Run(tmp_path)
    sealed(run)
    run.of(lambda memory: memory.publish([item("publish:one", n, "new") for n in (3, 300)], OWNER))
    read.clear()
    assert run.of(known)[5][0] == 201
    assert read == [2]
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("*.sealed")} == {0o600}


def test_any_damage_of_the_file_is_found(tmp_path: Path, read: list[int]) -> None:
    """Read the database where a byte of the file is another one, or it is cut or missing."""
    run = Run(tmp_path)
    sealed(run)
    expected, data = run.of(known), run.file.read_bytes()
    step = len(data) // 40
    damaged = [
        data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(0, len(data), step)
    ]
    for each in (*damaged, data[: len(data) // 2], b"", None):
        if each is None:
            run.file.unlink()
        else:
            run.file.write_bytes(each)
        read.clear()
        assert run.of(known) == expected
        assert read == [200]


def test_a_file_that_was_not_confirmed_is_not_read(tmp_path: Path, read: list[int]) -> None:
    """A daemon killed between a file and the database that is to belong to it loses nothing."""
    run = Run(tmp_path)
    sealed(run)

    async def killed(memory: StateStore) -> None:
        await memory.publish([item("publish:one", 5, "another")], OWNER)
        await memory.archive.read_apart(lambda store: entry_snapshot.write(store, 0))

    run.of(killed)
    expected = without_file(run, tmp_path / "copy")
    read.clear()
    assert run.of(known) == expected
    assert read == [200]


def test_what_made_a_file_before_an_update_is_made_anew(
    tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another version of op-dbus is not read."""
    run = Run(tmp_path)
    sealed(run)
    monkeypatch.setattr("opdbus.index.snapshot.snapshot_file.__version__", "another")
    read.clear()
    run.of(known)
    assert read == [200]


def test_what_is_redacted_anew_is_in_no_file(
    tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where objects are written anew, the file goes before, and nothing is noted for it."""
    run = Run(tmp_path)
    sealed(run)
    monkeypatch.setattr("opdbus.index.storage.migration.written_by", lambda: "another redaction")
    read.clear()

    async def noted(memory: StateStore) -> list[int]:
        return await memory.archive.read(lambda store: store.changed_since(0))

    assert run.of(noted) == []
    assert (run.file.exists(), read) == (False, [200])


def test_few_objects_are_in_no_file_and_their_changes_are_not_noted(tmp_path: Path) -> None:
    """Once most objects are gone, so is the file, and the database does not grow by notes."""
    run = Run(tmp_path)
    sealed(run)
    assert run.file.exists()

    async def work(memory: StateStore) -> tuple[Any, Any]:
        gone = [item("publish:one", n, n).identity.object_id for n in range(195)]
        await memory.withdraw(gone, OWNER)
        await memory.snapshot_writer.write_snapshot()
        await memory.publish([item("publish:one", 197, "another")], OWNER)
        return await memory.archive.read(
            lambda store: (store.fact(SNAPSHOT_TOKEN), store.changed_since(0))
        )

    assert run.of(work) == (None, [])
    assert not run.file.exists()


def test_a_file_is_written_when_enough_has_changed(tmp_path: Path) -> None:
    """Write it at once after a start without one, and then not with each change."""
    run = Run(tmp_path)
    run.of(lambda memory: memory.publish([item("publish:one", n, n) for n in range(1200)], OWNER))

    async def work(memory: StateStore) -> None:
        sealing = asyncio.create_task(memory.snapshot_writer.run())
        while True:
            # a token, and not that changes are noted for a file that comes
            if " " not in await memory.archive.read(
                lambda store: store.fact(SNAPSHOT_TOKEN) or " "
            ):
                break
            await asyncio.sleep(0.01)
        sealing.cancel()
        await memory.publish([item("publish:one", 5, "another")], OWNER)
        assert not memory.snapshot_writer._due.is_set()

    run.of(work)
    assert run.file.exists()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the words of each reading of all words, and of all fields, of the database."""
    found: list[str] = []
    reading, writing = postings.read, FieldIndex.write

    def read(*given: Any) -> Any:
        found.append("words")
        return reading(*given)

    def write(self: FieldIndex, items: Iterable[Item]) -> Any:
        some = [*items]
        found.extend("field" for _ in some)
        return writing(self, some)

    monkeypatch.setattr(postings, "read", read)
    monkeypatch.setattr(FieldIndex, "write", write)
    return found


def test_a_start_reads_words_and_fields_of_what_has_changed_since(
    tmp_path: Path, asked: list[str]
) -> None:
    """Read the fields of one changed object and a new one, and no words of others."""
    run = Run(tmp_path)

    async def work(memory: StateStore) -> None:
        await memory.publish([item("publish:one", n, n % 4) for n in range(200)], OWNER)
        await memory.fields.catch_up()
        await memory.snapshot_writer.write_snapshot()

    run.of(work)
    run.of(lambda memory: memory.publish([item("publish:one", n, "new") for n in (3, 300)], OWNER))
    expected = without_file(run, tmp_path / "copy")
    asked.clear()
    assert run.of(known) == expected
    assert asked == ["field", "field"]


def test_words_of_shorter_objects_are_read_again(tmp_path: Path, asked: list[str]) -> None:
    """Score by the length that objects have now, where it is another one than in the file."""
    run = Run(tmp_path)

    async def work(memory: StateStore) -> None:
        await memory.publish([item("publish:one", n, n % 4) for n in range(200)], OWNER)
        await memory.snapshot_writer.write_snapshot()

    run.of(work)
    run.of(lambda memory: memory.publish([item("publish:one", 3, "new " * 400)], OWNER))
    expected = without_file(run, tmp_path / "copy")
    asked.clear()
    assert run.of(known) == expected
    assert "words" in asked


@pytest.mark.parametrize("name", ["words", "fields"])
def test_damaged_words_and_fields_are_read_again(
    tmp_path: Path, asked: list[str], name: str
) -> None:
    """Find a byte that is another one, and a file that is missing, and read the database."""
    run = Run(tmp_path)

    async def work(memory: StateStore) -> None:
        await memory.publish([item("publish:one", n, n % 4) for n in range(200)], OWNER)
        await memory.fields.catch_up()
        await memory.snapshot_writer.write_snapshot()

    run.of(work)
    expected, file = run.of(known), tmp_path / f"{name}.sealed"
    data = file.read_bytes()
    asked.clear()
    for each in (data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], b"", None):
        file.unlink() if each is None else file.write_bytes(each)
        asked.clear()
        assert run.of(known) == expected
        assert asked == {"words": ["words"], "fields": ["field"] * 200}[name]


def test_fields_that_cannot_be_written_are_read_again(tmp_path: Path, asked: list[str]) -> None:
    """Go on without the file of fields: the next start takes the others."""
    run = Run(tmp_path)
    # a folder is where it would be written
    (tmp_path / "fields.new").mkdir()
    sealed(run)
    expected = without_file(run, tmp_path / "copy")
    asked.clear()
    assert run.of(known) == expected
    assert asked == ["field"] * 200


def test_values_that_are_forgotten_are_in_no_file(tmp_path: Path) -> None:
    """What history forgets is not in a file of an earlier moment either."""
    run = Run(tmp_path)

    async def work(memory: StateStore) -> list[set[str]]:
        secret = [item("publish:one", n, "swordfish") for n in range(50)]
        await memory.publish(secret, OWNER)
        await memory.fields.catch_up()
        await memory.snapshot_writer.write_snapshot()
        before = holding(tmp_path, b"swordfish")
        await memory.publish([item("publish:one", n, "plain") for n in range(50)], OWNER)
        await memory.forget(Target(text="swordfish"), "somebody")
        await memory.snapshot_writer.write_snapshot()
        return [before, holding(tmp_path, b"swordfish")]

    assert run.of(work) == [{"fields.sealed", "words.sealed"}, set()]


def holding(folder: Path, text: bytes) -> set[str]:
    """Return the names of the sealed files that hold a text."""
    return {file.name for file in folder.glob("*.sealed") if text in file.read_bytes()}
