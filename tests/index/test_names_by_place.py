"""Names of entries by place."""

import sys
import threading
from collections.abc import Iterator

import pytest

from opdbus.index.catalogue.name_array import NameArray

STAYS = "a name that stays"


@pytest.fixture
def short_turns() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("short_turns")
def test_others_read_names_that_stay_while_one_puts_more() -> None:
    """What is gone is left out again and again, and no reader sees another name meanwhile."""
    names = NameArray()
    names.put(1, STAYS)
    ends = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not ends.is_set():
            wrong.extend(name for name in (names[1], *names.of([1])) if name != STAYS)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(2000):
            # of another length, so that what stays is moved when the long one has gone
            names.put(0, "x" * (number % 50))
            names.put(2, f"{number:0100000d}")
    finally:
        ends.set()
        reader.join()
    assert not wrong
