"""Why values are missing: only a later row of the chain may say that they were erased."""

import json
import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Iterator

from opdbus.history.change import ERASED
from opdbus.state.object import Identity


class Erasures:
    """What a database says of erased values."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        # first and last numbers of rows that a row `forgot` names, read when they are needed
        self._ranges: tuple[array[int], array[int]] | None = None

    def explain(self, seq: int, identity: Identity) -> bool:
        """Return whether a later row says that the values of a row were erased."""
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
        """Yield the ranges that rows `forgot` name; what one names, no other one does."""
        rows = "SELECT seq, fields FROM history WHERE what = 'forgot' AND salt IS NOT NULL"
        for seq, fields in self._database.execute(rows):
            try:
                yield from (
                    (first, min(last, seq - 1))
                    for path, _, after in json.loads(fields)
                    for first, last in (after[0] if path == ["rows"] else ())
                )
            except (TypeError, ValueError, LookupError):
                continue  # a damaged row, which is found as such

    def _is_withdrawn(self, seq: int, identity: Identity) -> bool:
        withdrawal = (
            "SELECT 1 FROM history WHERE plugin = ? AND kind = ? AND name = ? AND source = ?"
            " AND what = 'gone' AND fields = ? AND salt IS NOT NULL AND seq > ?"
        )
        values = (*identity[1:], identity.source, ERASED, seq)
        return self._database.execute(withdrawal, values).fetchone() is not None
