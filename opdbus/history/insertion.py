"""Rows are inserted many with each statement.

With one for each row, the full-text index writes its words down after each of them, which takes as
long as all the rest. And SQLite gives Python's lock back for as long as a statement runs: a thread
that computes meanwhile keeps it waiting after each.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from opdbus.platform.slices import batches

# Some milliseconds' work; SQLite takes 32,766 values with a statement.
_AT_A_TIME: Final = 128


def insert(
    database: sqlite3.Connection, into: str, rows: Iterable[Sequence[Any]], after: str = ""
) -> None:
    """Insert rows `into` a table, such as `INSERT INTO it (a, b)`, and what comes `after`.

    Bytes are better given as a bytearray, and bool as int: the driver asks each time whether
    something adapts other types, which takes as long as three values.
    """
    for part in batches(rows, _AT_A_TIME):
        values = _values(len(part), len(part[0]))
        database.execute(f"{into} VALUES {values} {after}", [*chain.from_iterable(part)])


@lru_cache(maxsize=_AT_A_TIME)
def _values(rows: int, columns: int) -> str:
    one = f"({', '.join('?' * columns)})"
    return ", ".join([one] * rows)
