"""Tables as Markdown writes them, and where the committed results lie."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table."""
    lines = [list(heads), *map(list, rows)]
    written = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([written[0], "|" + "---|" * len(lines[0]), *written[1:]])


def newest(kind: str = "", results: Path = RESULTS) -> tuple[str, Any] | None:
    """Read the newest committed report of a kind: its file's name, and what it holds."""
    day = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]"
    path = max(results.glob(f"{day}{kind and '-'}{kind}.json"), default=None)
    return (path.name, json.loads(path.read_text(encoding="utf-8"))) if path else None
