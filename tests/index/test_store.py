"""The database: private, durable, and honest about what is wrong with it."""

import random
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opdbus.errors import StoreError
from opdbus.index.database.store import Record, Store
from opdbus.index.query import query_terms
from opdbus.state.object import DIGEST_BYTES, Identity

# the questions only read, so that one database serves them all
_SHARED = HealthCheck.function_scoped_fixture


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Open a new database."""
    made = Store(tmp_path / "sub" / "memory.db")
    yield made
    made.close()


def record(name: str, text: str = "a text", *, transient: bool = False, words: str = "") -> Record:
    """Make a record of an object."""
    identity = Identity("file", "systemd", "unit", name)
    hashed = text.encode().ljust(DIGEST_BYTES)[:DIGEST_BYTES]
    return Record(identity, 0, "{}", text, words, f"print of {text}", hashed, 1, transient)


def put(store: Store, *records: Record) -> None:
    """Store records in one transaction."""
    with store.transaction():
        store.put(records)


def test_a_database_that_all_could_read_is_closed_to_them(tmp_path: Path) -> None:
    """Take permissions away from a file that has too many."""
    path = tmp_path / "memory.db"
    Store(path).close()
    path.chmod(0o644)
    Store(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_is_in_wal_mode(store: Store) -> None:
    """Let readers read while a writer writes."""
    with closing(sqlite3.connect(store.path)) as reader:
        assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other = Store(store.path)
    with store.transaction():
        store.put([record("a")])
        assert list(other.entries()) == []
    assert len(list(other.entries())) == 1
    other.close()


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    """Undo everything inside a transaction that raises, be it an error of ours or SQLite's."""
    put(store, record("a"))

    def fail() -> None:
        with store.transaction():
            store.put([record("b")])
            store.remove([1])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(StoreError, match=r"cannot use the database .*memory\.db"):
        put(store, record("c"), record("d")._replace(identity=Identity("file", "a", "b", None)))  # type: ignore[arg-type] -- what SQLite refuses
    assert [entry.identity.name for entry in store.entries()] == ["a"]
    put(store, record("d"))


def test_an_object_keeps_its_id_when_it_changes(store: Store) -> None:
    """Replace an object of the same identity in its place, in the lexicon too."""
    put(store, record("a", "old words"))
    (before,) = store.entries()
    put(store, record("a", "new words"))
    (after,) = store.entries()
    assert (before.id, before.text_digest) == (after.id, b"old words".ljust(DIGEST_BYTES))
    assert store.words.match(["new"], 10)
    assert not store.words.match(["old"], 10)


def test_the_best_matches_come_first_and_no_more_than_asked_for(store: Store) -> None:
    """Match any of the terms, or every one; more of them in fewer words are better."""
    texts = ["mail", "mail for the office", "clock", "disk", "name", "time"]
    put(store, *(record(text, text) for text in texts))
    names = {entry.id: entry.identity.name for entry in store.entries()}
    found = store.words.match(["mail", "office"], 10)
    assert [names[number] for number, _ in found] == ["mail for the office", "mail"]
    assert found[0][1] > found[1][1] > 0
    assert store.words.match(["mail", "office"], 1) == found[:1]
    assert store.words.match(["nothing"], 10) == []


def refused(store: Store, code: int) -> str:
    """Have SQLite fail with a code, and give the sentence."""
    setting = {
        sqlite3.SQLITE_FULL: "PRAGMA max_page_count = 1",
        sqlite3.SQLITE_BUSY: "PRAGMA busy_timeout = 0",
        sqlite3.SQLITE_READONLY: "PRAGMA query_only = ON",
    }
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute(setting[code])
        with ExitStack() as stack:
            if code == sqlite3.SQLITE_BUSY:
                stack.enter_context(store.transaction())
            with pytest.raises(StoreError) as caught, store.translate_errors():
                connection.execute("INSERT INTO facts VALUES ('a', ?)", ("a text" * 20_000,))
    return str(caught.value)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (sqlite3.SQLITE_FULL, "make room"),
        (sqlite3.SQLITE_BUSY, "another program uses it"),
        (sqlite3.SQLITE_READONLY, "let the user"),
    ],
)
def test_advice_fits_the_error(store: Store, code: int, advice: str) -> None:
    """Say what helps against this error, and never to move a sound database away."""
    sentence = refused(store, code)
    assert advice in sentence
    assert "damaged" not in sentence


def test_advice_knows_extended_codes(store: Store) -> None:
    """Say what helps against a kind of error whichever of its details SQLite gives."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    advice = "disk I/O error; look in the kernel's log"
    with pytest.raises(StoreError, match=advice), store.translate_errors():
        raise error


def test_unused_vectors_are_pruned(store: Store) -> None:
    """Delete exactly the vectors whose text no object has, all in parts or those of some."""
    put(store, record("a", "used"))
    used = record("a", "used").text_digest
    digests = [used, b"gone", used, b"\xff" * 16, bytes(16), b"gone"]
    store.put_vectors([bytes([n]) for n in range(6)], digests, np.ones((6, 2), np.float32))
    assert store.forget_vectors([used, bytes(16), b"never"]) == {bytes(16)}
    assert [key[0] for key, _, _ in store.vectors()] == [0, 1, 2, 3, 5]
    for first in range(256):
        store.prune_vectors(first)
    assert [key[0] for key, _, _ in store.vectors()] == [0, 2]


def test_common_words_add_to_the_scores_of_rare_ones(store: Store) -> None:
    """Give what has the rarest words the scores that it has of all words, and all where few are."""
    texts = [
        f"office {'mail' if n % 4 == 0 else 'disk'} {'clock' if n == 8 else n}" for n in range(40)
    ]
    put(store, *(record(str(n), text) for n, text in enumerate(texts)))
    terms = ["office", "mail", "clock", "nothing"]
    counts = {term: store.words.count_matches(term) for term in terms}
    assert list(counts.values()) == [40, 10, 1, 0]
    every = dict(store.words.match(terms, 99))
    assert dict(store.words.best(counts, 99, 999)) == pytest.approx(every)
    for enough, limit, left in ((15, 5, 10), (5, 1, 1), (5, 30, 5)):
        found = store.words.best(counts, limit, enough)
        assert len(found) == min(left, limit)
        assert found[0] == pytest.approx(max(every.items(), key=lambda row: row[1]))
        assert dict(found) == pytest.approx({row: every[row] for row, _ in found})
    assert store.words.best({"nothing": 0}, 9, 9) == []


@pytest.mark.parametrize("count", [1, 3, 700])
def test_shadow_tables_of_fts5_hold_the_lengths(store: Store, count: int) -> None:
    """Read lengths from FTS5's private tables as its own interface counts them, or name them."""
    long = "word " * 130
    put(store, *(record(f"n{n}", f"{long} {n}", words="more") for n in range(count)))
    with store.transaction():
        store.remove([1])
    lengths = {n: store.words.length(n) for n in range(2, count + 1)}
    mean = sum(lengths.values()) / len(lengths) if lengths else 1.0
    # one word of its name, those of its text, and one more
    reason = (
        f"SQLite {sqlite3.sqlite_version} keeps other numbers in lexicon_data or lexicon_docsize,"
        " the shadow tables of FTS5 that opdbus/index/database/fulltext_table.py reads: change"
        " that module"
    )
    assert set(lengths.values()) <= {133}, reason
    assert store.words.mean_length() == pytest.approx(mean), reason


def test_what_was_deleted_leaves_no_byte(store: Store) -> None:
    """Scrub words that were replaced from every file, the lexicon's own tables too."""
    many = [record(f"a{n}", f"text {n}", words="unforgettable") for n in range(50)]
    put(store, *many)
    put(store, *(record(f"a{n}", f"text {n}") for n in range(50)))
    for _ in store.clean_words():
        pass
    assert store.empty_log()
    for file in store.path.parent.iterdir():
        assert b"unforgettable" not in file.read_bytes()
    assert len(store.words.match(["text"], 100)) == 50


@settings(max_examples=60, deadline=None, suppress_health_check=[_SHARED])
@given(terms=st.lists(st.text(max_size=30), max_size=5))
def test_no_question_breaks_the_lexicon(store: Store, terms: list[str]) -> None:
    """Answer any words, also those that mean something to FTS5."""
    found = query_terms.terms(" ".join(terms))
    if found:
        store.words.match(found, 10)
        store.words.count_matches(found[0])


def test_words_are_cleaned_in_steps(store: Store) -> None:
    """Rewrite few records in one transaction, and have all of them as they were after the last."""
    chance = random.Random(7)  # noqa: S311 -- no secret
    words = [f"w{chance.randrange(1 << 40)}" for _ in range(20_000)]
    for _ in range(3):
        put(store, *(record(f"u{n}", " ".join(words[n * 20 : n * 20 + 20])) for n in range(1000)))
    steps, changed = 0, store._database.total_changes
    for _ in store.clean_words():
        assert store._database.total_changes - changed <= 4 * 256
        steps, changed = steps + 1, store._database.total_changes
    assert steps > 5
    store._database.execute("INSERT INTO lexicon (lexicon) VALUES ('integrity-check')")
    assert [found for found, _ in store.words.match([words[777]], 9)] == [39]
