"""How many of the ten most similar texts are found by the signs of vectors, among real texts.

The texts are the descriptions of the distribution's packages; 300 of them are asked for, and are
not among the others. Writes JSON to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from insight import packages

from opdbus.bench.machine import describe
from opdbus.config import load
from opdbus.index.vectors.quantized_rows import SignQuantizedVectors
from opdbus.serving.serving import Serving

if TYPE_CHECKING:
    from numpy.typing import NDArray

ASKED: Final = 300
BEST: Final = 10
CANDIDATES: Final = (100, 400, 1000)
_AT_A_TIME: Final = 1024


async def embedded(texts: list[str], level: str) -> NDArray[np.float32]:
    """Give the vectors of texts."""
    async with Serving(load({"OP_DBUS_VECTOR_LEVEL": level})) as serving:
        await serving.start()
        parts = [texts[n : n + _AT_A_TIME] for n in range(0, len(texts), _AT_A_TIME)]
        return np.concatenate([(await serving.embed(part, level)).vectors for part in parts])


def recall(vectors: NDArray[np.float32], path: Path) -> dict[str, Any]:
    """Give the share of the best that are among so many candidates, and milliseconds."""
    queries, held = vectors[:ASKED], vectors[ASKED:]
    rows = SignQuantizedVectors(path, held.shape[1])
    digests = [number.to_bytes(16, "big") for number in range(1, len(held) + 1)]
    rows.append(digests, held)
    found = dict.fromkeys(map(str, CANDIDATES), 0.0)
    seconds = 0.0
    for query in queries:
        best = set(np.argpartition(-(held @ query), BEST)[:BEST].tolist())
        began = time.process_time()
        estimates = rows.products()(query)
        seconds += time.process_time() - began
        for most in CANDIDATES:
            likely = np.argpartition(-estimates, most)[:most]
            exact = rows.take(likely) @ query
            kept = likely[np.argpartition(-exact, BEST)[:BEST]]
            found[str(most)] += len(best.intersection(kept.tolist())) / BEST / len(queries)
    return {
        "texts": len(held),
        "recall@10 by candidates": {most: round(share, 4) for most, share in found.items()},
        "scan ms": round(1000 * seconds / len(queries), 2),
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="static")
    parser.add_argument("--texts", type=int, default=100_000, help="at most so many")
    given = parser.parse_args()
    texts = list(dict.fromkeys(one["Description"] for one in packages()))[: given.texts]
    vectors = asyncio.run(embedded(texts, given.level))
    with tempfile.TemporaryDirectory() as scratch:
        figures = recall(vectors, Path(scratch) / "e.rows")
    where = {"date": f"{datetime.now(UTC):%F}", "machine": describe().line}
    print(json.dumps({**where, "level": given.level, **figures}, indent=1))


if __name__ == "__main__":
    main()
