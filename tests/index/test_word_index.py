"""The words of all objects in memory: the same as in the database, whatever changes."""

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest
from harness.remembering import OWNER, run, unit
from harness.running import work_of

from opdbus.errors import StoreError
from opdbus.index.database import fulltext_table
from opdbus.index.database.store import Store
from opdbus.index.fulltext import postings, word_index
from opdbus.index.fulltext.bm25 import InDatabase, InMemory
from opdbus.index.fulltext.postings import Vocabulary, sums
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import StateObject

TERMS = ["mail", "server", "servers", "10.0.0.7", "wien", "rack", "nothing", "name3"]


def _made(number: int, seed: int) -> StateObject:
    """Make an object whose words are made of a seed: one is said often, one hardly."""
    chance = random.Random(seed)  # noqa: S311 -- no secret
    said = " ".join(chance.choices(TERMS[:6], (30, 9, 9, 2, 2, 1), k=chance.randrange(1, 40)))
    return unit(f"name{number}", description=said)


async def _require_same(memory: StateStore, within: float) -> None:
    """Compare what has each term, and its score, with what FTS5 says."""
    assert memory.words.lookup
    lookup, view = memory.words.lookup, memory.catalogue.view

    def compare(store: Store) -> None:
        here = InMemory(store, lookup, TERMS, view)
        there = InDatabase(store, TERMS, view)
        assert here.counts == there.counts
        beginnings = ["ser", "server", "nam", "nothin", "xy"]
        assert lookup.find_prefixes(beginnings) == store.words.find_prefixes(beginnings)
        for term in TERMS:
            assert sorted(here.having(term)) == sorted(there.having(term))
        scores, expected = here.scores(), there.scores()
        assert np.array_equal(scores > 0, expected > 0)
        assert scores == pytest.approx(expected, rel=within)

    await memory.archive.read(compare)


async def _read(memory: StateStore) -> None:
    await memory.words.begin()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_index, "_PAUSES", 0)
    # what is read in parts is so of a hundred objects
    monkeypatch.setattr(postings, "_AT_A_TIME", 32)
    monkeypatch.setattr(fulltext_table, "_PARSED", 32)


@work_of(run, "tmp_path")
async def test_the_words_in_memory_are_those_of_the_database(memory: StateStore) -> None:
    """What comes, changes and goes is found as the database finds it, with the score of BM25."""
    await _read(memory)
    await memory.publish([_made(n, n) for n in range(90)], OWNER)
    await _require_same(memory, 0.002)
    await memory.publish([_made(n, n) for n in range(90, 100)], OWNER)
    await _read(memory)
    await _require_same(memory, 0.002)
    await memory.publish([_made(n, n + 1000) for n in range(0, 30, 3)], OWNER)
    await memory.withdraw([each.identity.object_id for each in memory.catalogue][:20], OWNER)
    # in places that became free, and in new ones
    await memory.publish([_made(n, n) for n in range(100, 140)], OWNER)
    await _require_same(memory, 0.05)
    await _read(memory)
    await _require_same(memory, 0.002)


@work_of(run, "tmp_path")
async def test_what_changes_while_the_words_are_read_is_not_lost(memory: StateStore) -> None:
    """Objects may come, change and go at any moment of the reading."""
    await memory.publish([_made(n, n) for n in range(60)], OWNER)
    for turn in range(5):
        reading = memory.words.begin()
        await asyncio.sleep(0.002 * turn)
        await memory.withdraw([each.identity.object_id for each in memory.catalogue][:5], OWNER)
        await memory.publish([_made(n, n + turn) for n in range(50, 70)], OWNER)
        await reading
        await _require_same(memory, 0.05)


def test_very_many_changes_have_the_words_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past a limit changes are not remembered one by one, and the database answers meanwhile."""
    monkeypatch.setattr(word_index, "_LEAST", 10)

    async def work(memory: StateStore) -> None:
        await memory.publish([_made(0, 0)], OWNER)
        await _read(memory)
        await memory.publish([_made(n, n) for n in range(11)], OWNER)
        before = memory.words.lookup
        assert before
        await _read(memory)
        assert memory.words.lookup not in (None, before)
        await _require_same(memory, 0.002)
        await memory.publish([_made(n, n) for n in range(20, 90)], OWNER)
        assert memory.words.lookup is None
        await _read(memory)
        await _require_same(memory, 0.002)

    run(tmp_path, work)


@work_of(run, "tmp_path")
async def test_words_that_cannot_be_read_are_left_to_the_database(memory: StateStore) -> None:
    """A search never fails for the words in memory: closing ends the reading of them."""
    await memory.publish([_made(0, 0)], OWNER)

    def fails(_store: Store) -> None:
        raise StoreError("no disk")

    with pytest.raises(StoreError):
        await memory.archive.read_apart(fails)
    memory.words.begin()


def test_a_vocabulary_finds_its_words_only() -> None:
    """Each word has its number, and no beginning of one has."""
    words = [b"a", b"ab", b"b", b"zebra"]
    found = Vocabulary(b"".join(words), sums(np.array([*map(len, words)])))
    assert [found.find(word) for word in words] == [0, 1, 2, 3]
    assert [found.find(word) for word in (b"", b"aa", b"zebr", b"zz")] == [None] * 4
    begun = [one for one in (b"a", b"ab", b"b", b"zebr", b"zebra", b"zz") if found.begins(one)]
    assert begun == [b"a", b"zebr"]
