"""What lives long is looked at once, and what is freed is free."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from opdbus.gc_tuning import Kept


class Thing:
    """What may be in a cycle, and watched."""

    def __init__(self) -> None:
        self.other: Thing | None = None


def is_searched(thing: Thing) -> bool:
    """Tell whether the search for garbage looks at an object."""
    return any(each is thing for each in gc.get_objects())


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Give a keeper, and undo what it does to this process."""
    gc.unfreeze()
    yield Kept()
    gc.unfreeze()


def test_what_is_kept_is_searched_no_more(kept: Kept) -> None:
    """Set apart all there is at first, and when it has grown by a quarter."""
    early = Thing()
    kept.grown_to(4000)
    late = Thing()
    kept.grown_to(4999)
    assert (is_searched(early), is_searched(late)) == (False, True)
    kept.grown_to(5000)
    assert not is_searched(late)


def test_what_is_kept_is_freed_all_the_same(kept: Kept) -> None:
    """Free what nobody holds at once, and what comes later also where it is a cycle."""
    thing = Thing()
    kept.grown_to(1)
    gone = weakref.ref(thing)
    del thing
    assert gone() is None
    one, other = Thing(), Thing()
    one.other, other.other = other, one
    cycle = weakref.ref(one)
    del one, other
    gc.collect()
    assert cycle() is None
