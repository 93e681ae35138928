"""Fields are found by name, in time that depends on how many there are and on little else."""

import time

from opdbus.state.fields import Names
from opdbus.state.object import Identity


def _seconds(names: int) -> float:
    """Give how long it takes to find fields by so many names in an object of many keys."""
    wanted = Names(f"load of part{n}" for n in range(names))
    properties = {f"key{n} of unit{n}": n for n in range(3000)}
    began = time.thread_time()
    wanted.values(Identity("file", "p", "k", "n"), properties)
    return time.thread_time() - began


def test_many_names_take_little_longer_than_one() -> None:
    """Look at no name that shares no word with a key: files bring any number of keys."""
    assert _seconds(500) < 20 * _seconds(1)
