"""CUDA graphs for single texts: a run recorded once for each length, and started as a whole.

The engine does not use them yet: a recording must not run beside anything else that takes memory of
the device, a session with recordings runs one thing at a time and for its own thread only, and
their gain is unknown. This measures it, and checks that the vectors are the same.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from kit import least_cosine

from opdbus.bench.figures import percentiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit import Run

    from opdbus.models.shape import Shape

LENGTHS = (8, 16, 24, 32, 48, 64)


class Recorded:
    """One text of one length, recorded by its first run."""

    def __init__(self, session: Any, length: int, dimension: int) -> None:  # noqa: ANN401 -- untyped
        self._session = session
        ids = np.ones((1, length), np.int64)
        self._given = onnxruntime.OrtValue.ortvalue_from_numpy(ids, "cuda", 0)
        self._found = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            [1, dimension], np.float32, "cuda", 0
        )
        self._binding = session.io_binding()
        self._binding.bind_ortvalue_input(session.get_inputs()[0].name, self._given)
        self._binding.bind_ortvalue_output(session.get_outputs()[0].name, self._found)
        self._options = onnxruntime.RunOptions()
        self._options.add_run_config_entry("gpu_graph_id", str(length))

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Embed ids of this shape."""
        self._given.update_inplace(ids)
        self._session.run_with_iobinding(self._binding, self._options)
        found: np.ndarray = self._found.numpy()
        return found


def measure(
    graph: Path, settings: dict[str, Any], plain: Run, shape: Shape, rounds: int
) -> Iterator[tuple[str, Any]]:
    """Time single texts with and without recordings, and compare their vectors."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    named = [("CUDAExecutionProvider", {**settings, "enable_cuda_graph": "1"})]
    session = onnxruntime.InferenceSession(graph, options, providers=named, enable_fallback=0)
    random = np.random.default_rng(0)
    for length in (length for length in LENGTHS if length <= shape.max_tokens):
        began = time.perf_counter()
        recorded = Recorded(session, length, shape.hidden)
        recorded.run(np.ones((1, length), np.int64))
        seconds = time.perf_counter() - began
        rows = [random.integers(0, 1000, (1, length)) for _ in range(rounds)]
        times: dict[str, list[float]] = {"plain": [], "recorded": []}
        cosines = []
        for ids in rows:
            found = {}
            for name, run in (("plain", plain), ("recorded", recorded.run)):
                start = time.perf_counter()
                found[name] = run(ids)
                times[name].append(time.perf_counter() - start)
            cosines.append(least_cosine(found["recorded"], found["plain"]))
        figures = {name: percentiles(taken) for name, taken in times.items()}
        yield (
            f"{length} tokens",
            {
                **figures,
                "record_seconds": round(seconds, 3),
                "min_cosine": min(cosines),
            },
        )
