"""Which objects have changed or gone since the database began to note that."""

import sqlite3
from typing import Final

# Noted while there is a file for which it is; what is new has a higher id than all before it.
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS changed (number INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS objects_changed AFTER UPDATE ON objects
WHEN EXISTS (SELECT 1 FROM facts WHERE name = 'sealed') BEGIN
    INSERT INTO changed (id) VALUES (new.id);
END;
CREATE TRIGGER IF NOT EXISTS objects_left AFTER DELETE ON objects
WHEN EXISTS (SELECT 1 FROM facts WHERE name = 'sealed') BEGIN
    INSERT INTO changed (id) VALUES (old.id);
END;
"""
_COUNT: Final = "SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'changed'"


class ChangeLog:
    """The notes through one connection."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def count(self) -> int:
        """Return how many changes there ever were."""
        return int(self._database.execute(_COUNT).fetchone()[0])

    def since(self, count: int) -> list[int]:
        """Return the ids of what has changed or gone after so many changes, each once."""
        query = "SELECT DISTINCT id FROM changed WHERE number > ?"
        return [number for (number,) in self._database.execute(query, (count,))]

    def forget(self, count: int) -> None:
        """Forget the first so many changes; call inside a transaction."""
        self._database.execute("DELETE FROM changed WHERE number <= ?", (count,))
