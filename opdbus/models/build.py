"""Builds a model's graph and its proof in a child process, once per weights, atomically."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opdbus.errors import ModelError

if TYPE_CHECKING:
    from opdbus.models.folder import Model, Shape

GRAPH: Final = "model.onnx"
DATA: Final = "model.onnx.data"
PROOF: Final = "proof.npz"
# Part of the cache's key: raise it with every change to what a graph computes or how it is stored.
GRAPH_VERSION: Final = 1
# Lengths in tokens of the rows that prove an engine: shortest, odd, typical, long.
PROBE_LENGTHS: Final = (2, 7, 16, 56, 56, 120)


@dataclass(frozen=True, slots=True)
class Built:
    """A folder with the graph, its weights, and the proof's rows and reference vectors."""

    folder: Path

    @property
    def graph(self) -> Path:
        """The ONNX file; its weights lie beside it and are mapped, not copied."""
        return self.folder / GRAPH

    @property
    def proof(self) -> Path:
        """The rows of token ids and the vectors that plain numpy gives for them."""
        return self.folder / PROOF


async def ensure(model: Model, cache: Path) -> Built:
    """Give the built graph of a model, building it if this is the first time.

    A child process holds the copies of the weights, so that this one never does; it is killed
    if the caller is cancelled. Raises ModelError.
    """
    built = Built(cache / _key(model))
    if built.proof.is_file():
        return built
    arguments = [str(model.weights), str(built.folder)]
    arguments += [repr(value) for value in asdict(model.shape).values()]
    fault = await _run_child(arguments)
    if fault:
        raise ModelError(f"cannot build the graph of {model.name} in {cache}: {fault}")
    return built


async def _run_child(arguments: list[str]) -> str:
    """Run `main` in a child process and give the last line of what it complains of."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "opdbus.models.build", *arguments, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, stderr = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode == 0:
        return ""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"the building process ended with code {child.returncode}"


def _key(model: Model) -> str:
    return f"{model.weights_sha256[:32]}-t{model.shape.max_tokens}-g{GRAPH_VERSION}"


def write(weights_path: Path, folder: Path, shape: Shape) -> None:
    """Build graph and proof into `folder`, which appears whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        _fill(weights_path, part, shape)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _fill(weights_path: Path, folder: Path, shape: Shape) -> None:
    # onnx and the weights' copies are this child's alone
    import numpy as np
    import onnx
    from safetensors.numpy import load_file

    from opdbus.models import graph, reference

    weights = {name: value.astype(np.float32) for name, value in load_file(weights_path).items()}
    onnx.save(
        graph.build(shape, weights),
        folder / GRAPH,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=DATA,
        size_threshold=1024,
    )
    words = len(weights["embeddings.word_embeddings.weight"])
    random = np.random.default_rng(0)
    lengths = [min(length, shape.max_tokens) for length in PROBE_LENGTHS]
    rows = [random.integers(0, words, length) for length in lengths]
    vectors = reference.forward(shape, weights, [row.tolist() for row in rows])
    numbered = {f"row{number}": row.astype(np.int64) for number, row in enumerate(rows)}
    arrays: dict[str, Any] = {"vectors": vectors, **numbered}
    np.savez(folder / PROOF, **arrays)


def main(arguments: list[str]) -> None:
    """Run as the child: weights, folder, and the shape's numbers in order."""
    from opdbus.models.folder import Shape

    layers, hidden, heads, epsilon, max_tokens = arguments[2:]
    shape = Shape(int(layers), int(hidden), int(heads), float(epsilon), int(max_tokens))
    os.nice(5)
    try:
        write(Path(arguments[0]), Path(arguments[1]), shape)
    except (OSError, KeyError, ValueError) as error:
        what = f"the weights lack {error}" if isinstance(error, KeyError) else str(error)
        sys.exit(f"{arguments[0]}: {what}")


if __name__ == "__main__":
    main(sys.argv[1:])
