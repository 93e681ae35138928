"""The child of test_pretended.py: what ONNX Runtime's CUDA provider makes of a model."""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

from opdbus.api import Embedder
from opdbus.engine.provider import Placement
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.sessions import OnnxSession

CUDA = PROVIDERS["cuda"]


def placed(graph: str, precision: str) -> dict[str, object]:
    """Run a graph, and tell where its nodes ran and what was copied for the last run."""
    hardware = CUDA.require(("0",))
    session = OnnxSession(Path(graph), CUDA, Placement(precision=precision))
    counts = (ctypes.c_int * 3).in_dll(ctypes.CDLL("libcudart.so.13"), "pretend_counts")
    ids = np.ones((3, 9), np.int64)
    for _ in range(3):
        before = list(counts)
        vectors = session.run(ids)
    copies = [after - b for after, b in zip(counts, before, strict=True)]
    ran = session.finish_profile()
    shape = vectors.shape
    return {
        "hardware": hardware[0],
        "nodes": ran.nodes,
        "products": ran.products,
        "shape": shape,
        "copies": copies,
    }


def chosen(model: str, home: str) -> dict[str, object]:
    """Open an embedder on cuda or else the CPU, and tell which it is, and why not the first."""
    with Embedder(
        provider="cuda,cpu:onnxruntime", model=model, state_dir=home, precision="fp32"
    ) as e:
        return {"provider": e.provider, "reasons": [fallback.reason for fallback in e.fallbacks]}


if __name__ == "__main__":
    work = {"placed": placed, "chosen": chosen}[sys.argv[1]]
    print(json.dumps(work(*sys.argv[2:])))
