"""Changes of a database behind the daemon's back."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from opdbus.history import hash_chain
from opdbus.history.hash_chain import Head
from opdbus.history.ledger import Ledger, State


def alter(path: Path, *statements: str, **values: Any) -> None:
    """Change a database as any program could."""
    with closing(sqlite3.connect(path)) as other, other:
        for statement in statements:
            other.execute(statement, values)


def rewrite(path: Path, change: str, *, until: int = 1 << 40) -> None:
    """Change rows, and make the chain anew as op-dbus would, up to a row."""
    alter(path, change, f"DELETE FROM history WHERE seq > {until}")  # noqa: S608 -- our own
    keys = "seq, at, boot, source, plugin, kind, name, what, cause, folded, salt, digest, fields"
    with closing(sqlite3.connect(path)) as other, other:
        head = Head()
        for *row, salt, kept, fields in other.execute(
            f"SELECT {keys} FROM history ORDER BY seq"  # noqa: S608 -- our own
        ).fetchall():
            # of erased values the digest alone is left
            digest = hash_chain.values_digest(salt, fields) if salt else kept
            made = hash_chain.row_hash(head.hash, [*row, digest.hex()])
            values = (digest, made, row[0])
            other.execute("UPDATE history SET digest = ?, hash = ? WHERE seq = ?", values)
            head = Head(head.seq + 1, made)
        Ledger(other).set_state(State(head, 1))
