"""Vectors in memory: exact or rounded, growing, forgetting."""

import asyncio
import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Event, current_thread, main_thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness.running import PATIENCE_SECONDS
from hypothesis import given
from hypothesis import strategies as st

from opdbus.index.catalogue.arrays import PlainRows, RoundedRows, VectorStorage
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.catalogue.text_table import TextTable
from opdbus.index.database.quota import Usage
from opdbus.index.database.store import Entry
from opdbus.index.ranking.scores import TYPICAL_BASELINE, CosineBaseline
from opdbus.index.vectors.quantized_rows import SignQuantizedVectors
from opdbus.index.vectors.vector_index import MANY, VectorIndex
from opdbus.state.object import Identity

# How far vectors and cosines may be off, of 8 dimensions.
KINDS = pytest.mark.parametrize(
    ("kind", "off", "cosine_off"), [(PlainRows, 0, 1e-6), (RoundedRows, 0.005, 0.012)]
)


def _unit(rows: int, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(rows, 8)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def cosines(index: VectorIndex, query: np.ndarray, *digests: bytes) -> np.ndarray:
    """Give the cosines of entries with these texts."""
    return index.similarity(query, _view(index, digests)).cosines


def _key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _view(index: VectorIndex, digests: Sequence[bytes]) -> Any:
    texts = np.array([index.texts.find(each) for each in digests], np.int32)
    return SimpleNamespace(texts=texts, end=len(digests), version=object())


@KINDS
def test_scores_are_cosines(
    kind: Callable[[int], VectorStorage], off: float, cosine_off: float
) -> None:
    """Give for each row what numpy gives for the whole matrix, and the rows as they were added."""
    vectors, made = VectorIndex("", 8, TextTable(), kind(8)), _unit(700)
    keys = _keys(700)
    for start in range(0, 700, 7):
        asyncio.run(vectors.add(keys[start : start + 7], made[start : start + 7]))
    found = cosines(vectors, made[3], *keys)
    np.testing.assert_allclose(found, made @ made[3], atol=cosine_off)
    for key, row in zip(keys, made, strict=True):
        np.testing.assert_allclose(vectors.get(key), row, atol=off, rtol=0)
    assert len(vectors) == 700


def test_an_empty_matrix_answers() -> None:
    """Give no scores, no row and no vector where nothing was added."""
    vectors = VectorIndex("", 8, TextTable())
    assert np.isnan(cosines(vectors, _unit(1)[0], b"x")).all()
    assert (vectors.get(b"x"), b"x" in vectors) == (None, False)
    vectors.drop([b"x"])
    asyncio.run(vectors.add([], _unit(0)))
    assert len(vectors) == 0


@given(
    st.lists(
        st.tuples(st.booleans(), st.sets(st.integers(0, 40), min_size=1, max_size=20)), max_size=12
    )
)
def test_it_holds_what_a_dict_would(steps: list[tuple[bool, set[int]]]) -> None:
    """Hold after any adding and dropping what a plain dict would hold."""
    rows, vectors, expected = _unit(41), VectorIndex("", 8, TextTable()), {}
    for adding, numbers in steps:
        if adding:
            new = [n for n in numbers if _key(n) not in expected]
            asyncio.run(vectors.add([_key(n) for n in new], rows[new]))
            expected |= {_key(n): rows[n] for n in new}
        else:
            vectors.drop([_key(n) for n in numbers])
            expected = {k: v for k, v in expected.items() if k[-1] not in numbers}
    assert len(vectors) == len(expected)
    scores = cosines(vectors, rows[0], *expected)
    for (key, vector), score in zip(expected.items(), scores, strict=True):
        np.testing.assert_array_equal(vectors.get(key), vector)
        assert abs(score - float(vector @ rows[0])) < 1e-6


@KINDS
def test_what_is_forgotten_takes_no_room(
    kind: Callable[[int], VectorStorage], off: float, cosine_off: float
) -> None:
    """Make the matrix smaller once half of it is forgotten, and add only what is new."""
    vectors, made = VectorIndex("", 8, TextTable(), kind(8)), _unit(100)
    keys = _keys(100)
    asyncio.run(vectors.add(keys, made))
    vectors.drop(keys[:60])
    assert len(vectors) == 40
    assert np.isnan(cosines(vectors, made[0], keys[0])).all()
    assert asyncio.run(vectors.add([keys[0], keys[99]], made[[0, 1]])) == keys[:1]
    for row in (0, 99):
        np.testing.assert_allclose(vectors.get(keys[row]), made[row], atol=off, rtol=0)
    vectors.drop(keys[:99])
    assert len(vectors) == 1
    assert abs(float(cosines(vectors, made[0], keys[99])[0] - made[0] @ made[99])) <= cosine_off


_TEXTS = [n.to_bytes(16, "little") for n in range(6)]


def _entries(number: int, texts: set[bytes]) -> list[Entry]:
    identities = [Identity(f"publish:{at}", "p", "k", str(number)) for at in range(len(texts))]
    return [
        Entry(10 * number + at, identity, 0, "", text, updated_at=0, transient=False)
        for at, (identity, text) in enumerate(zip(identities, sorted(texts), strict=True), 1)
    ]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 4), st.sets(st.sampled_from(_TEXTS), max_size=3)),
            st.tuples(st.just(-1), st.sets(st.sampled_from(_TEXTS), min_size=1, max_size=3)),
            st.tuples(st.just(-2), st.sets(st.sampled_from(_TEXTS), max_size=3)),
        ),
        max_size=20,
    )
)
def test_what_is_kept_is_what_counting_gives(steps: list[tuple[int, set[bytes]]]) -> None:
    """Know after any changes how many things wait, and for which texts, without counting."""
    catalogue, rows, object_ids = Catalogue(Usage()), _unit(6), dict[int, set[bytes]]()
    texts = catalogue.texts
    index = VectorIndex("", 8, texts)
    for number, given_texts in steps:
        if number >= 0:
            # each text by a source of its own
            before = _entries(number, object_ids.pop(number, set()))
            catalogue.put(_entries(number, given_texts))
            catalogue.remove(before[len(given_texts) :])
            object_ids |= {number: given_texts} if given_texts else {}
        elif number == -1:
            asyncio.run(
                index.add(sorted(given_texts), rows[[each[0] for each in sorted(given_texts)]])
            )
        else:
            texts.forget(texts.unused())
            index.drop(given_texts)
            asyncio.run(index.shrink())
        lacking = {each for held in object_ids.values() for each in held if each not in index}
        assert index.missing_object_count(catalogue.view) == sum(
            not held.isdisjoint(lacking) for held in object_ids.values()
        )
        assert set(index.missing_texts(9)) == lacking
        assert len(catalogue) == len(object_ids)


def _keys(rows: int) -> list[bytes]:
    # as random as digests are, which the table of texts counts on
    return [blake2b(b"%d" % row, digest_size=16).digest() for row in range(rows)]


def test_vectors_in_a_file_are_found_again(tmp_path: Path) -> None:
    """Know after a kill each whole row of the file, and give what was put in."""
    made, keys, path = _unit(3000), _keys(3000), tmp_path / "vectors" / "e.rows"
    index = VectorIndex("", 8, TextTable(), SignQuantizedVectors(path, 8))
    asyncio.run(index.add(keys, made))
    index.drop(keys[:2000])
    asyncio.run(index.shrink())
    asyncio.run(index.add(keys[:10], made[:10]))
    kept = [*range(10), *range(2000, 3000)]
    with path.open("ab") as file:
        # a row of a power cut, and one that was not written to its end
        file.write(keys[20] + bytes(16) + keys[21])
    again = VectorIndex("", 8, index.texts)
    again.adopt(SignQuantizedVectors(path, 8))
    for one in (index, again):
        assert len(one) == len(kept)
        exact = one.similarity(made[5], _view(one, keys)).exact
        assert exact is not None
        cosines = exact(np.arange(3000))
        assert np.flatnonzero(np.isfinite(cosines)).tolist() == kept
        np.testing.assert_allclose(cosines[kept], made[kept] @ made[5], atol=2e-3)
        baseline = one.baseline(made[5])
        assert baseline
        assert np.isfinite(baseline.mean)
    asyncio.run(again.add(keys[30:31], made[30:31]))
    np.testing.assert_allclose(again.get(keys[30]), made[30], atol=1e-3)


def test_what_is_usual_does_not_depend_on_the_order() -> None:
    """Say the same of a question however the vectors came: a start finds them in another order."""
    made, keys = _unit(3000), _keys(3000)
    one, other = (VectorIndex("", 8, TextTable()) for _ in range(2))
    asyncio.run(one.add(keys, made))
    asyncio.run(other.add(keys[::-1], made[::-1]))
    usual, again = one.baseline(made[5]), other.baseline(made[5])
    assert usual
    assert again
    np.testing.assert_allclose(usual, again, rtol=1e-4)
    # a sample, and one of them all
    assert 256 < len(one.texts.sample(np.arange(1, 3001), 384)) < 512
    own = [(made @ made[5]).mean(), (made @ made[5]).std()]
    np.testing.assert_allclose(usual[:2], own, atol=0.06)


def test_a_host_of_few_objects_has_its_own_cosines() -> None:
    """Know the usual cosines of a dozen vectors, and of fewer by what is usual elsewhere."""
    made = _unit(300)

    def baseline(count: int) -> CosineBaseline | None:
        index = VectorIndex("", 8, TextTable())
        asyncio.run(index.add(_keys(count), made[:count]))
        return index.baseline(made[299])

    assert baseline(0) is None
    for count in (8, 15, 40):
        cosines = made[:count] @ made[299]
        found = baseline(count)
        assert found
        np.testing.assert_allclose(found, [cosines.mean(), cosines.std(), 1.0], rtol=1e-4)
    one = baseline(1)
    assert one
    usual, own = np.array(TYPICAL_BASELINE[:2]), np.array([made[0] @ made[299], 0.0])
    np.testing.assert_allclose(one[:2], usual * 7 / 8 + own / 8, rtol=1e-4)
    few = [each.small_host for count in (48, 60, 100, 128, 300) if (each := baseline(count))]
    assert few[0] == 1
    assert few == sorted(few, reverse=True)
    assert 0 < few[2] < few[1] < 1
    assert few[3:] == [0, 0]


def test_signs_tell_what_is_likely(tmp_path: Path) -> None:
    """Estimate cosines so well that the best are among the first, and NaN without a vector."""
    made = np.random.default_rng(1).normal(size=(2000, 384)).astype(np.float32)
    made[:20] += 3 * made[0]
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    index = VectorIndex("", 384, TextTable(), SignQuantizedVectors(tmp_path / "e.rows", 384))
    asyncio.run(index.add([], made[:0]))
    assert np.isnan(cosines(index, made[0], b"unknown")).all()
    asyncio.run(index.add(_keys(2000), made))
    estimates = cosines(index, made[0], *_keys(2000), b"unknown")
    assert np.isnan(estimates[-1])
    assert set(np.argsort(-estimates[:-1])[:20]) == set(range(20))
    assert np.abs(estimates[:-1] - made @ made[0]).mean() < 0.1


@pytest.mark.parametrize("some", [0, 9, 1500, 4000])
@pytest.mark.parametrize("kind", [PlainRows, RoundedRows, SignQuantizedVectors])
def test_some_are_compared_as_all_are(kind: Any, some: int, tmp_path: Path) -> None:
    """Give the cosines of any part of the entries, in its order, as of all; of few exact ones."""
    made = _unit(8000)
    rows = SignQuantizedVectors(tmp_path / "e.rows", 8) if kind is SignQuantizedVectors else kind(8)
    index = VectorIndex("", 8, TextTable(), rows)
    asyncio.run(index.add(_keys(8000), made))
    view = _view(index, [b"unknown", *_keys(8000)])
    at = np.random.default_rng(0).permutation(8001)[:some]
    found, of_all = index.similarity(made[0], view, "", at), index.similarity(made[0], view)
    expected = np.append(np.float32("nan"), made @ made[0])[at]
    if some < 1000:
        assert found.exact is None
        np.testing.assert_allclose(found.cosines, expected, atol=0.012)
    else:
        np.testing.assert_allclose(found.cosines, of_all.cosines[at], atol=0.012)
    if found.exact:
        np.testing.assert_allclose(found.exact(np.arange(some)), expected, atol=0.001)


@pytest.mark.parametrize("kind", [PlainRows, RoundedRows, SignQuantizedVectors])
def test_what_is_numbered_anew_meanwhile_is_compared_as_it_was(kind: Any, tmp_path: Path) -> None:
    """Give the products of the rows that there were, whatever is forgotten or comes meanwhile."""
    made = _unit(100)
    rows = SignQuantizedVectors(tmp_path / "e.rows", 8) if kind is SignQuantizedVectors else kind(8)
    rows.append(_keys(100), made)
    products, expected = rows.products(), rows.products()(made[0])
    rows.append(_keys(9), made[:9])
    rows.replace_with(rows.copy_subset(np.arange(60, 90)))
    rows.append(_keys(9), made[:9])
    np.testing.assert_array_equal(products(made[0]), expected)
    assert len(rows.products()(made[0])) == 39


@pytest.mark.parametrize("kind", [PlainRows, RoundedRows, SignQuantizedVectors])
def test_what_is_forgotten_while_room_is_given_back_has_no_vector(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the vectors of all others, in half of the rows."""
    made, keys = _unit(100), _keys(100)
    rows = SignQuantizedVectors(tmp_path / "e.rows", 8) if kind is SignQuantizedVectors else kind(8)
    index = VectorIndex("", 8, TextTable(), rows)
    asyncio.run(index.add(keys, made))
    index.drop(keys[:60])

    def copy_subset(self: Any, which: Any, copy: Any = kind.copy_subset) -> Any:
        found = copy(self, which)
        index.drop(keys[60:70])
        return found

    monkeypatch.setattr(kind, "copy_subset", copy_subset)
    asyncio.run(index.shrink())
    assert (len(index), rows.end) == (30, 40)
    assert [key for key in keys if key in index] == keys[70:]
    for key, vector in zip(keys[70:], made[70:], strict=True):
        np.testing.assert_allclose(index.get(key), vector, atol=0.01)


def test_a_full_disk_moves_vectors_to_memory(tmp_path: Path) -> None:
    """Hold in memory what cannot be written, and go on."""
    rows = SignQuantizedVectors(tmp_path / "rows", 8)
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), rows._file, inheritable=False)
    index = VectorIndex("", 8, TextTable(), rows)
    asyncio.run(index.add(_keys(9), _unit(9)))
    assert index.similarity(_unit(1)[0], _view(index, [])).exact is None
    np.testing.assert_array_equal(index.get(_keys(9)[8]), _unit(9)[8])


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_vectors_are_as_they_were_stored(
    *, is_in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give what numpy makes of half precision, whether the file is in memory or is read first."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    some = every[np.isfinite(every) & (np.abs(every) < 1)]
    made = some[: len(some) // 8 * 8].reshape(-1, 8).astype(np.float32)
    made[:, 0] = 1
    rows = SignQuantizedVectors(tmp_path / "e.rows", 8)
    rows.append([bytes(16)] * len(made), made)
    monkeypatch.setattr(
        "opdbus.index.vectors.quantized_rows._waits",
        lambda work: work() is None or not is_in_memory,
    )
    length = np.sqrt(np.einsum("ij,ij->i", made, made))[:, None]
    for at in (np.arange(len(made)), np.arange(40)[::-1], np.array([3]), np.empty(0, np.intp)):
        np.testing.assert_array_equal(rows.take(at), (made / length)[at])


def test_what_is_forgotten_while_vectors_move_has_none(tmp_path: Path) -> None:
    """Move very many to a file beside other work, and give each of those that are left its own."""
    made, keys = _unit(MANY + 10), _keys(MANY + 10)

    async def work() -> VectorIndex:
        index = VectorIndex("", 8, TextTable(), folder=tmp_path)
        await index.add(keys[:MANY], made[:MANY])
        moving = asyncio.create_task(index.add(keys[MANY:], made[MANY:]))
        assert index.path
        while not index.path.exists():  # noqa: ASYNC110 -- nothing tells of it
            await asyncio.sleep(0)
        assert not moving.done()
        index.texts.forget(keys[:10])
        # to the end, though nobody waits for it
        moving.cancel()
        again = await index.add(keys[:5] + keys[MANY:], made[[*range(5), *range(MANY, MANY + 10)]])
        assert again == keys[:5]
        return index

    index = asyncio.run(work())
    assert len(index) == MANY + 5
    assert index.similarity(made[0], _view(index, keys)).exact is not None
    for at in (0, 4, 10, 5000, MANY - 1, MANY, MANY + 9):
        np.testing.assert_allclose(index.get(keys[at]), made[at], atol=2e-3)
    assert all(index.get(keys[at]) is None for at in range(5, 10))


async def test_the_event_loop_does_not_wait_for_another_thread() -> None:
    """Search, and give vectors and room back, while another thread reads rows by number."""
    made, keys = _unit(20), _keys(20)
    begun, may_go_on = Event(), Event()

    class Slow(PlainRows):
        """Rows that another thread reads for as long as the test wants."""

        def take(self, rows: np.ndarray) -> np.ndarray:
            if current_thread() is not main_thread():
                begun.set()
                assert may_go_on.wait(PATIENCE_SECONDS)
            return super().take(rows)

    index = VectorIndex("", 8, TextTable(), Slow(8))
    await index.add(keys, made)
    reading = asyncio.create_task(asyncio.to_thread(index.get_on_thread, keys[17]))
    await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    np.testing.assert_array_equal(index.get(keys[3]), made[3])
    assert index.baseline(made[0]) is not None
    index.texts.forget(keys[:15])
    shrinking = asyncio.create_task(index.shrink())
    await asyncio.sleep(0)
    assert cosines(index, made[16], keys[16])[0] == pytest.approx(1.0)
    assert not reading.done()
    may_go_on.set()
    found, _ = await asyncio.gather(reading, shrinking)
    np.testing.assert_array_equal(found, made[17])
    np.testing.assert_array_equal(index.get(keys[17]), made[17])
    assert index.get_on_thread(keys[0]) is None
