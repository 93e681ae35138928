"""Removal of the oldest rows of history, in small steps, with the rest still verifiable."""

import sqlite3
from typing import Final, NamedTuple

from opdbus.history import chain
from opdbus.history.chain import Head
from opdbus.history.ledger import BLOCK, ROW_SIZE, Ledger, State

# Limits of a step: it takes some milliseconds, for which other writes wait.
MAX_ROWS: Final = 100
MAX_BYTES: Final = 1 << 20
_DAY: Final = 86_400 * 1_000_000
_OLDEST: Final = f"SELECT seq, at, hash, sentence, {ROW_SIZE} FROM history ORDER BY seq"  # noqa: S608 -- our own constant


class Limits(NamedTuple):
    """The most history that is kept."""

    days: int = 90
    rows: int = 1_000_000
    bytes: int = 512 << 20


def surplus(ledger: Ledger, limits: Limits, now: int) -> int:
    """Return the last row past the limits, 0 if there is none; `now` in microseconds since 1970."""
    state, last = ledger.state(), 0
    too_old, too_many = now - limits.days * _DAY, state.head.seq - limits.rows
    excess = state.bytes - limits.bytes
    for seq, at, _, _, size in ledger.database.execute(_OLDEST):
        if at >= too_old and seq > too_many and excess <= 0:
            break
        last, excess = seq, excess - size
    return last


def prune(ledger: Ledger, last: int) -> int:
    """Delete some of the oldest rows up to `last`; return their number.

    Call it inside a transaction. Verification keeps the number and hash of the last deleted row and
    the frontier of the tree.
    """
    rows = _some(ledger.database, last)
    if not rows:
        return 0
    cut = ledger.cut()
    frontier, seq = list(cut.frontier), cut.seq
    for number, row_hash, *_ in rows:
        chain.extend(frontier, seq, number, row_hash)
        seq = number
    size = sum(row[3] for row in rows)
    ledger.database.execute("DELETE FROM history WHERE seq <= ?", (seq,))
    kept = (seq + 1) // BLOCK
    ledger.database.execute("DELETE FROM history_times WHERE block < ?", (kept,))
    ledger.drop_sentences(row[2] for row in rows)
    ledger.set_state(State(Head(seq, rows[-1][1], frontier)), "history cut")
    state = ledger.state()
    ledger.set_state(State(state.head, max(0, state.bytes - size)))
    return len(rows)


def _some(database: sqlite3.Connection, last: int) -> list[tuple[int, bytes, int | None, int]]:
    found, size = [], 0
    for seq, _, row_hash, sentence, bytes_ in database.execute(f"{_OLDEST} LIMIT {MAX_ROWS}"):
        if seq > last or size > MAX_BYTES:
            break
        found.append((seq, row_hash, sentence, bytes_))
        size += bytes_
    return found
