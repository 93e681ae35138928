"""Databases as earlier commits left them, made of dumps: see benchmarks/migrate.py."""

import sqlite3
from contextlib import closing
from pathlib import Path

_DUMPS = Path(__file__).parents[1] / "data" / "old"
COMMITS = sorted(path.stem for path in _DUMPS.glob("*.sql"))
# Each object of a dump is there so many times.
_TIMES = 44
OBJECTS = 45 * _TIMES
_COPY = """
WITH RECURSIVE numbers (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
INSERT INTO objects SELECT NULL, source, plugin, kind, name || '-' || n, owner, properties,
    text || ' copy ' || n, words, fingerprint, text_digest, updated_at, passing{traits}
FROM objects, numbers
"""


def old(folder: Path, commit: str, times: int = _TIMES, written: str = "") -> Path:
    """Make a database as a commit left it, with each object some times."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "memory.db"
    with closing(sqlite3.connect(path)) as made:
        made.executescript((_DUMPS / f"{commit}.sql").read_text())
        with made:
            columns = [row[1] for row in made.execute("PRAGMA table_info(objects)")]
            traits = ", traits" if "traits" in columns else ""
            made.execute(_COPY.format(traits=traits), (times,))
            (by,) = made.execute("SELECT value FROM facts WHERE name = 'written by'").fetchone()
            # also what this version would write is to be as if another had
            value = written or by.replace("text ", "text 0")
            made.execute("UPDATE facts SET value = ? WHERE name = 'written by'", (value,))
    return path
