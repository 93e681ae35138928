"""Build of a model's graph and proof in a child process, once for each model and dialect."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opdbus.errors import ModelError
from opdbus.models import child, files
from opdbus.models.dialects import DIALECTS, FLOAT, Dialect
from opdbus.models.folder import hash_files, make_record, read_record, write_record
from opdbus.models.shape import BUCKETS, FAMILIES, Shape

if TYPE_CHECKING:
    from opdbus.models.folder import Model
    from opdbus.models.weights import Weights

    Fill = Callable[[Path, Path, Shape], None]

GRAPH: Final = "model.onnx"
DATA: Final = "model.onnx.data"
PROOF: Final = "proof.npz"
PROOFS: Final = Path(__file__).parent / "proofs"
FILES: Final = (GRAPH, DATA, PROOF)
LOCK: Final = ".lock"
_PART: Final = ".building-"
# Part of the cache's key: increment it with every change to a graph's results or storage.
GRAPH_VERSION: Final = 8
# Lengths in tokens of the rows that prove an engine: shortest, odd, typical, longest. Rows of one
# length also run as a batch.
PROBE_LENGTHS: Final = (2, 2, 7, 16, 16, 16, 56, 56, 120, 256)
# Advice for common errors of the system.
_ADVICE: Final = {
    errno.ENOSPC: "; make room on its file system",
    errno.EDQUOT: "; make room on its file system",
    errno.EACCES: "; let the user that op-dbus runs as write it",
    errno.EROFS: "; let it be written, or set OP_DBUS_STATE_DIR to a folder that can be",
}


@dataclass(frozen=True, slots=True)
class Built:
    """A folder with the graph, its weights, and the rows and vectors of the proof."""

    folder: Path

    @property
    def graph(self) -> Path:
        """The ONNX file; its weights lie beside it and are memory-mapped."""
        return self.folder / GRAPH

    @property
    def data(self) -> Path:
        """The weights' file."""
        return self.folder / DATA

    @property
    def proof(self) -> Path:
        """The file with the rows of token ids and their vectors by the numpy reference."""
        return self.folder / PROOF


def place(model: Model, cache: Path, dialect: str) -> Built:
    """Return the place of a model's graph, which may not exist yet.

    Its name depends on the graph's inputs: weights, shape, dialect, this code.
    """
    return Built(cache / f"{identify(model)}-{dialect}-g{GRAPH_VERSION}")


def identify(model: Model) -> str:
    """Hash what a model's vectors depend on: weights and shape."""
    content = f"{model.weights_sha256} {model.shape!r}".encode()
    return hashlib.sha256(content).hexdigest()[:32]


def shipped_proof(identity: str) -> Path:
    """Return the place of the proof that is part of op-dbus, which the medium model has.

    Computing it takes half of the first start. `tests/scripts/make_proof.py` makes it.
    """
    return PROOFS / f"{identity}.npz"


def remove(built: Built) -> None:
    """Remove a graph; sessions that have it open keep it, and `ensure` builds it again."""
    shutil.rmtree(built.folder, ignore_errors=True)


async def ensure(model: Model, cache: Path, dialect: str = FLOAT.name) -> Built:
    """Return the graph of a model; build it if it is missing or its files are damaged.

    A child process builds it, because that needs memory for copies of the weights; it is killed if
    the caller is cancelled. Raises ModelError.
    """
    built = place(model, cache, dialect)
    if await asyncio.to_thread(_is_whole, built.folder):
        return built
    try:
        await child.run(
            "opdbus.models.build",
            weights=str(model.weights),
            folder=str(built.folder),
            shape=asdict(model.shape),
            dialect=dialect,
        )
    except child.ChildFailed as fault:
        raise ModelError(f"cannot build the graph of {model.name} in {cache}: {fault}") from None
    return built


def _is_whole(folder: Path) -> bool:
    """Return true if every file is as it was built; only changed files are hashed again.

    Return false also for a folder that cannot be read.
    """
    try:
        stats = [(folder / name).stat() for name in FILES]
        return _is_as_recorded(folder, tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in stats))
    except (OSError, ModelError):
        return False


@lru_cache(maxsize=64)
def _is_as_recorded(folder: Path, _state: tuple[tuple[int, int, int], ...]) -> bool:
    recorded = read_record(folder)
    return recorded is not None and not recorded.differing(hash_files(folder, FILES))


def fill(
    weights_path: Path,
    folder: Path,
    shape: Shape,
    dialect: Dialect = FLOAT,
    proof: Path | None = None,
) -> None:
    """Write graph, weights and proof into a folder; raises ModelError, OSError.

    `proof` is a file with the same rows and vectors as would be computed, if it exists.
    """
    # imported here, because only the child process needs copies of the weights
    from opdbus.models import graph, weights

    arrays = weights.read_weights(weights_path)
    try:
        _require_fit(weights_path, shape, arrays)
        graph.build_graph(shape, arrays, dialect).save(folder / GRAPH, folder / DATA)
    except KeyError as error:
        raise ModelError(f"the weights {weights_path} lack the tensor {error}") from None
    if proof and proof.exists():
        shutil.copyfile(proof, folder / PROOF)
    else:
        write_proof(folder / PROOF, shape, arrays)


def write_graph(weights_path: Path, folder: Path, shape: Shape, fill: Fill = fill) -> None:
    """Build graph and proof into `folder`, which appears whole or not at all.

    Raises ModelError, OSError. Tests pass a `fill` that fails midway.
    """
    files.make_folder(folder.parent)
    with files.locked(folder.parent / LOCK):
        for left in folder.parent.glob(_PART + "*"):
            # its process has ended, otherwise it would hold the lock
            shutil.rmtree(left, ignore_errors=True)
        if _is_whole(folder):
            return
        part = Path(tempfile.mkdtemp(prefix=_PART, dir=folder.parent))
        try:
            fill(weights_path, part, shape)
            made = make_record(str(weights_path), "", hash_files(part, FILES))
            write_record(part, made)
            files.settle(part)
            _take_place(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _take_place(part: Path, folder: Path) -> None:
    """Rename a new folder to its final name, and move a damaged folder of that name aside.

    The damaged folder's files may belong to another user and cannot be removed then.
    """
    aside = part.with_name(f"{part.name}-replaced")
    if os.path.lexists(folder):
        folder.rename(aside)
        with suppress(PermissionError):
            aside.chmod(0o700)  # its mode may be the reason why it could not be used
    part.rename(folder)
    shutil.rmtree(aside, ignore_errors=True)


def _require_fit(path: Path, shape: Shape, weights: Weights) -> None:
    from opdbus.models.weights import RELATIVE

    family = FAMILIES[shape.family]
    hidden = weights["embeddings.word_embeddings.weight"].shape[-1]
    rows = len(weights["embeddings.position_embeddings.weight"]) - family.first_position
    if hidden != shape.hidden or rows < shape.max_tokens:
        raise ModelError(
            f"the weights {path} are {hidden} wide with {rows} positions, which is not what"
            f" the folder's config.json says ({shape.hidden}, {shape.max_tokens} used)"
        )
    if family.relative and weights[RELATIVE].shape != (BUCKETS, shape.heads):
        found = " x ".join(map(str, weights[RELATIVE].shape))
        raise ModelError(
            f"the weights {path} hold a relative position bias of {found}, which is not {BUCKETS}"
            f" buckets x {shape.heads} attention heads, as the folder's config.json says"
        )


def write_proof(path: Path, shape: Shape, weights: Weights) -> None:
    """Write rows of token ids and their vectors by the numpy reference; raises OSError."""
    import numpy as np

    from opdbus.models import reference

    words = len(weights["embeddings.word_embeddings.weight"])
    random = np.random.default_rng(0)
    rows = [random.integers(0, words, min(size, shape.max_tokens)) for size in PROBE_LENGTHS]
    vectors = reference.forward(shape, weights, [row.tolist() for row in rows])
    numbered = {f"row{number}": row.astype(np.int64) for number, row in enumerate(rows)}
    arrays: dict[str, Any] = {"vectors": vectors, **numbered}
    np.savez(path, **arrays)


def _build(request: dict[str, Any]) -> str:
    """Build the graph that `ensure` requests, in the child; raises ModelError, ValueError."""
    child.go_second()
    folder = Path(request["folder"])
    proof = shipped_proof(folder.name.split("-")[0])
    fill_in = partial(fill, dialect=DIALECTS[request["dialect"]], proof=proof)
    try:
        write_graph(Path(request["weights"]), folder, Shape(**request["shape"]), fill_in)
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "")
        raise ModelError(f"{error.strerror or error}{advice}") from None
    return ""


if __name__ == "__main__":
    child.answer(_build)
