"""Tables as Markdown writes them."""

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table."""
    lines = [list(heads), *map(list, rows)]
    written = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([written[0], "|" + "---|" * len(lines[0]), *written[1:]])
