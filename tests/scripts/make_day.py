"""Writes tests/data/day.json from a recorded day: `tests/scripts/make_day.py FOLDER`.

The folder is what `benchmarks/host/day.py --save FOLDER` left. The file has what each thing that
changed on the day was before, and then each change: the act, the cause, and what it was then.
"""

import json
import sqlite3
import sys
from bisect import bisect_right
from contextlib import closing
from pathlib import Path
from typing import Any

from opdbus.history.change import FIRST, from_json, undone

DAY = Path(__file__).parents[1] / "data" / "day.json"
_ROWS = "SELECT * FROM history WHERE cause != ? AND source LIKE 'live:%' ORDER BY seq DESC"


def read(folder: Path) -> dict[str, Any]:
    """Undo the day from its end, row by row."""
    acts = json.loads((folder / "acts.json").read_text())
    states: dict[tuple[str, ...], dict[str, Any] | None] = {}
    changes = []
    with closing(sqlite3.connect(folder / "memory.db")) as database:
        database.row_factory = sqlite3.Row
        now = {
            tuple(row[:4]): json.loads(row[4])
            for row in database.execute(
                "SELECT source, plugin, kind, name, properties FROM objects"
            )
        }
        for row in database.execute(_ROWS, (FIRST,)):
            act = bisect_right([began for _, began in acts], row["at"]) - 1
            identity = tuple(row[key] for key in ("source", "plugin", "kind", "name"))
            after = states.setdefault(identity, now.get(identity))
            fields = from_json(json.loads(row["fields"]))
            states[identity] = None if row["what"] == "appeared" else undone(after or {}, fields)
            if act >= 0:
                changes.append([acts[act][0], row["what"], row["cause"], *identity, after])
    first = [[*identity, state] for identity, state in states.items() if state is not None]
    return {"first": first, "changes": changes[::-1]}


def write(day: dict[str, Any]) -> None:
    """Write one line for each object and change."""
    parts = (
        f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]"
        for name, rows in day.items()
    )
    DAY.write_text("{" + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    write(read(Path(sys.argv[1])))
