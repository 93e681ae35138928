"""Bulk insertion: many rows with each SQL statement.

With one statement a row, FTS5 flushes its index after each, which doubles the time. SQLite also
releases the GIL for each statement, and has to wait for it while another thread computes.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from opdbus.platform.slices import batches

# Some milliseconds of work; SQLite takes at most 32,766 values in a statement.
_AT_A_TIME: Final = 128


def insert(
    database: sqlite3.Connection, into: str, rows: Iterable[Sequence[Any]], after: str = ""
) -> None:
    """Insert rows; `into` is as `INSERT INTO it (a, b)`, `after` the rest of the statement.

    Pass bytes as bytearray and bool as int: for other types, the driver looks for an adapter each
    time, which takes as long as three values.
    """
    for part in batches(rows, _AT_A_TIME):
        values = _values(len(part), len(part[0]))
        database.execute(f"{into} VALUES {values} {after}", [*chain.from_iterable(part)])


@lru_cache(maxsize=_AT_A_TIME)
def _values(rows: int, columns: int) -> str:
    one = f"({', '.join('?' * columns)})"
    return ", ".join([one] * rows)
