"""What is there at the start is no garbage; what comes later is searched and freed."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from opdbus.platform.gc_tuning import Heap, keep_searches_short


class Thing:
    """What may be in a cycle, and watched."""

    def __init__(self) -> None:
        self.other: Thing | None = None


@pytest.fixture
def before() -> list[list[int]]:
    """Give an object that is there before the collector is tuned."""
    return [[7]]


@pytest.fixture
def tuned(before: list[list[int]]) -> Iterator[None]:
    """Tune the collector, and undo that."""
    assert before
    threshold = gc.get_threshold()
    gc.unfreeze()
    keep_searches_short()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


@pytest.mark.usefixtures("tuned")
def test_no_search_looks_through_what_was_there_before(before: list[list[int]]) -> None:
    """Leave what was there at the start out of each search."""
    gc.collect()
    assert not any(each is before for each in gc.get_objects())


@pytest.mark.usefixtures("tuned")
def test_few_objects_are_searched_again() -> None:
    """Free cycles that outlive a search, as long as not many objects are new."""
    gc.collect()
    one, other = Thing(), Thing()
    one.other, other.other = other, one
    gc.collect()
    cycle = weakref.ref(one)
    del one, other
    gc.collect()
    assert cycle() is None


@pytest.mark.usefixtures("tuned")
def test_what_was_in_use_during_a_long_search_is_freed_later() -> None:
    """Free a cycle that lived through searches of very many objects, as requests in flight do."""
    one, other, many = Thing(), Thing(), [[n] for n in range(300_000)]
    one.other, other.other = other, one
    frozen, cycle = gc.get_freeze_count(), weakref.ref(one)
    many += [[n] for n in range(300_000)]
    gc.collect()
    del one, other
    gc.collect()
    assert (cycle(), gc.get_freeze_count(), len(many)) == (None, frozen, 600_000)


def test_memory_is_given_back_when_most_objects_are_gone() -> None:
    """Trim once after many objects have gone, and not for few."""
    trimmed: list[str] = []
    heap = Heap(lambda: trimmed.append("trim"))
    for size, times in ((20_000, 0), (19_000, 0), (2_000, 1), (1_900, 1), (900, 2), (10, 2)):
        heap.hold(size)
        heap.trim_if_shrunk(size)
        assert len(trimmed) == times, size
