"""Garbage is searched for among new objects only; others are freed all the same."""

import ctypes
import gc
import itertools
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping

import pytest

from opdbus.platform import gc_tuning
from opdbus.platform.gc_tuning import Heap, keep_searches_short


class Thing:
    """What may be in a cycle, and watched."""

    def __init__(self) -> None:
        self.other: Thing | None = None


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each collection count as a long one, however fast this machine is."""
    monkeypatch.setattr(gc_tuning.time, "thread_time", itertools.count().__next__)


@pytest.fixture
def tuned() -> Iterator[None]:
    """Tune the collector, and undo that."""
    callbacks, threshold = gc.callbacks[:], gc.get_threshold()
    gc.unfreeze()
    keep_searches_short()
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*threshold)
    gc.unfreeze()


@pytest.mark.usefixtures("slow_clock", "tuned")
def test_no_search_looks_through_what_was_there_before() -> None:
    """Look at each of many objects once, however many there are in the end."""
    searched: list[int] = []

    def note(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            searched.append(len(gc.get_objects()))

    gc.collect()
    gc.callbacks.append(note)
    made = [[n] for n in range(500_000)]
    assert max(searched, default=0) < 100_000
    gc.collect()
    assert not any(each is made for each in gc.get_objects())


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
def test_what_is_frozen_is_freed_all_the_same() -> None:
    """Free what nobody holds at once, although no search looks at it."""
    object_id, many = Thing(), [[n] for n in range(500_000)]
    gc.collect()
    assert not any(each is many for each in gc.get_objects())
    gone = weakref.ref(object_id)
    del object_id
    assert gone() is None


def test_memory_is_given_back_when_most_objects_are_gone() -> None:
    """Trim once after many objects have gone, and not for few."""
    trimmed: list[str] = []
    heap = Heap(lambda: trimmed.append("trim"))
    for size, times in ((20_000, 0), (19_000, 0), (2_000, 1), (1_900, 1), (900, 2), (10, 2)):
        heap.hold(size)
        heap.trim_if_shrunk(size)
        assert len(trimmed) == times, size


# Prints how many blocks of its own an array has with few objects, and with very many.
MAPPED = """
import ctypes
import numpy as np
from opdbus.platform.gc_tuning import Heap, limit_fragmentation

NAMES = "arena free small blocks mapped used_small free_small used unused kept".split()

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
limit_fragmentation()
heap = Heap()
for objects in (1000, 100_000):
    heap.hold(objects)
    before = mallinfo().blocks
    array = np.empty(1_000_000, np.float32)
    print(mallinfo().blocks - before)
    del array
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="there is no glibc 2.33 or newer",
)
def test_room_for_arrays_is_kept_where_very_many_objects_are() -> None:
    """Map each large array by itself, until searches among very many objects make many."""
    done = subprocess.run(
        [sys.executable, "-c", MAPPED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "0"]
