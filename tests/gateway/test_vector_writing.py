"""Vectors as JSON numbers: exact, and in turns with other requests."""

import asyncio
import json
from array import array

import numpy as np
import pytest

from opdbus.client.embedding import Embedded
from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.embedding_call import EmbeddingCalls


def embedded(rows: int, dimension: int) -> Embedded:
    """Make vectors of all sizes that a float32 may have."""
    chance = np.random.default_rng(7)
    sizes = 10.0 ** chance.integers(-37, 37, rows * dimension)
    numbers = (chance.normal(size=rows * dimension) * sizes).astype("<f4")
    return Embedded(dimension, numbers.tobytes(), [1] * rows, {"max_tokens": 512})


@pytest.mark.parametrize(("rows", "dimension"), [(1, 1), (1, 1024), (300, 4), (65, 256), (9, 9000)])
def test_numbers_are_exact(rows: int, dimension: int) -> None:
    """Give every float32 as it is, in order, whether written in one turn or in many."""
    found = embedded(rows, dimension)
    calls = EmbeddingCalls(DaemonLink("none"))
    texts = asyncio.run(calls.write_vectors(found))
    numbers = [array("f", json.loads(text)) for text in texts]
    assert b"".join(row.tobytes() for row in numbers) == found.data


def test_other_requests_have_turns() -> None:
    """Write large answers in short turns, one turn of one answer between two of all others."""
    found, small = embedded(2048, 256), embedded(32, 256)

    async def work() -> tuple[int, int]:
        calls = EmbeddingCalls(DaemonLink("none"))
        large = [asyncio.create_task(calls.write_vectors(found)) for _ in range(2)]
        turns = 0
        while not large[0].done():
            await asyncio.sleep(0)
            # is not behind the large ones
            assert len(await calls.write_vectors(small)) == 32
            turns += 1
        first = turns
        while not large[1].done():
            await asyncio.sleep(0)
            turns += 1
        return first, turns - first

    first, second = asyncio.run(work())
    # 2,048 vectors of 256 numbers in turns of 8,192
    assert first == pytest.approx(64, abs=3)
    assert second == pytest.approx(64, abs=3)
