"""The reasons for missing values: a later row of the chain must record their erasure."""

import json
import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Iterator

from opdbus.history.change import ERASED
from opdbus.state.object import Identity


class Erasures:
    """Erasures that the rows of a database record."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        # ascending first and last numbers of the ranges in rows `forgot`, read on first use
        self._ranges: tuple[array[int], array[int]] | None = None

    def explain(self, seq: int, identity: Identity) -> bool:
        """Return whether a later row records that the values of a row were erased."""
        return self._is_forgotten(seq) or self._is_withdrawn(seq, identity)

    def _is_forgotten(self, seq: int) -> bool:
        if self._ranges is None:
            self._ranges = array("q"), array("q")
            for first, last in sorted(self._forgotten()):
                self._ranges[0].append(first)
                self._ranges[1].append(last)
        place = bisect_right(self._ranges[0], seq) - 1
        return place >= 0 and seq <= self._ranges[1][place]

    def _forgotten(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of rows `forgot`; ranges do not overlap."""
        rows = "SELECT seq, fields FROM history WHERE what = 'forgot' AND salt IS NOT NULL"
        for seq, fields in self._database.execute(rows):
            try:
                yield from (
                    (first, min(last, seq - 1))
                    for path, _, after in json.loads(fields)
                    for first, last in (after[0] if path == ["rows"] else ())
                )
            except (TypeError, ValueError, LookupError):
                continue  # verification reports the damaged row

    def _is_withdrawn(self, seq: int, identity: Identity) -> bool:
        withdrawal = (
            "SELECT 1 FROM history WHERE plugin = ? AND kind = ? AND name = ? AND source = ?"
            " AND what = 'gone' AND fields = ? AND salt IS NOT NULL AND seq > ?"
        )
        values = (*identity[1:], identity.source, ERASED, seq)
        return self._database.execute(withdrawal, values).fetchone() is not None
