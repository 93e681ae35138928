"""Log of changed and removed objects, by which a snapshot is brought up to date."""

import sqlite3
from typing import Final

# The triggers log only while there is a snapshot. Insertions need no log: new ids are higher.
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
    """Change log of one database connection."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def count(self) -> int:
        """Return the number of changes ever logged."""
        return int(self._database.execute(_COUNT).fetchone()[0])

    def since(self, count: int) -> list[int]:
        """Return the distinct ids of objects changed or removed after the first `count` changes."""
        query = "SELECT DISTINCT id FROM changed WHERE number > ?"
        return [number for (number,) in self._database.execute(query, (count,))]

    def forget(self, count: int) -> None:
        """Delete the first `count` changes; call inside a transaction."""
        self._database.execute("DELETE FROM changed WHERE number <= ?", (count,))
