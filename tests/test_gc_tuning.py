"""Frozen objects are not collected, and are freed all the same."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from opdbus.gc_tuning import FrozenObjects, Heap, collect_all_rarely


class Thing:
    """What may be in a cycle, and watched."""

    def __init__(self) -> None:
        self.other: Thing | None = None


def is_searched(thing: Thing) -> bool:
    """Tell whether the search for garbage looks at an object."""
    return any(each is thing for each in gc.get_objects())


@pytest.fixture
def frozen() -> Iterator[FrozenObjects]:
    """Give a keeper, and undo what it does to this process."""
    gc.unfreeze()
    yield FrozenObjects()
    gc.unfreeze()


def test_what_is_frozen_is_searched_no_more(frozen: FrozenObjects) -> None:
    """Freeze all there is at first, and when it has grown by a quarter."""
    early = Thing()
    frozen.freeze_if_grown(4000)
    late = Thing()
    frozen.freeze_if_grown(4999)
    assert (is_searched(early), is_searched(late)) == (False, True)
    frozen.freeze_if_grown(5000)
    assert not is_searched(late)


def test_what_is_frozen_is_freed_all_the_same(frozen: FrozenObjects) -> None:
    """Free what nobody holds at once, and what comes later also where it is a cycle."""
    thing = Thing()
    frozen.freeze_if_grown(1)
    gone = weakref.ref(thing)
    del thing
    assert gone() is None
    one, other = Thing(), Thing()
    one.other, other.other = other, one
    cycle = weakref.ref(one)
    del one, other
    gc.collect()
    assert cycle() is None


def test_many_new_objects_are_not_looked_through() -> None:
    """Go on without a search of all there is while the objects of a large file are made."""
    before = gc.get_threshold()
    try:
        collect_all_rarely()
        gc.collect()
        searches = gc.get_stats()[2]["collections"]
        made = [[n] for n in range(200_000)]
        assert gc.get_stats()[2]["collections"] == searches
        assert len(made) == 200_000
    finally:
        gc.set_threshold(*before)


def test_memory_is_given_back_when_most_objects_are_gone() -> None:
    """Trim once after many objects have gone, and not for few."""
    trimmed: list[str] = []
    heap = Heap(lambda: trimmed.append("trim"))
    for size, times in ((20_000, 0), (19_000, 0), (2_000, 1), (1_900, 1), (900, 2), (10, 2)):
        heap.hold(size)
        heap.trim_if_shrunk(size)
        assert len(trimmed) == times, size
