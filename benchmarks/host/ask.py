"""Asks questions about the host that it runs in: `ask.py FILE`.

Writes JSON to standard output: of each question the rank of the first right answer, none if it is
not among the first ten, how many objects would have been right, and the first three answers.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from opdbus.bus import paths
from opdbus.client import Client

_LIMIT = 10
# An object that is named so stands for all whose names begin so.
_ANY = "*"


async def main(questions: list[dict[str, Any]]) -> None:
    """Print how each question is answered."""
    async with Client("system") as client:
        there = await _there(client, {})
        json.dump([await _ask(client, question, there) for question in questions], sys.stdout)


async def _ask(client: Client, question: dict[str, Any], there: set[str]) -> dict[str, Any]:
    wanted = question.get("objects", [])
    right = {name for name in there if any(_is_meant(name, want) for want in wanted)}
    for condition in question.get("where", []):
        right |= await _there(client, {"where": condition})
    rows = await client.search(question["question"], _LIMIT, {})
    names = ["/".join(paths.parse(path)) for path, *_ in rows]
    ranks = [rank for rank, name in enumerate(names, 1) if name in right]
    return {"rank": next(iter(ranks), None), "right": len(right), "first": names[:3]}


def _is_meant(name: str, wanted: str) -> bool:
    if wanted.endswith(_ANY):
        return name.startswith(wanted.removesuffix(_ANY))
    return name == wanted


async def _there(client: Client, wanted: dict[str, str]) -> set[str]:
    _, rows = await client.pages(wanted, 0, None)
    return {"/".join(row[1:]) for row in rows}


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
