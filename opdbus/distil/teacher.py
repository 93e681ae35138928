"""Teacher's vectors, stored so that an interrupted run continues, and a table's initial state."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tokenizers
from numpy.typing import NDArray

from opdbus.api import Embedder
from opdbus.distil.host_texts import frequent_words
from opdbus.errors import ModelError
from opdbus.models import folder, level_table
from opdbus.models.level_table import LEVELS
from opdbus.models.static_table import WordPieces

if TYPE_CHECKING:
    from opdbus.bench.measures import Notify
    from opdbus.config import Config
    from opdbus.models.folder import Model

PART: Final = 4096


def read_teacher(path: Path) -> Model:
    """Read a teacher's folder; raises ModelError if op-dbus cannot run the model."""
    named = (level for level in LEVELS.values() if level.folder == path.absolute().name)
    return folder.read_model(path.absolute(), next(named, LEVELS["medium"]))


def make_engine(level: str, path: Path, given: Config) -> Embedder:
    """Return an engine for a model's folder, not yet open; on the given provider, in fp32."""
    return Embedder(
        level,
        str(given.execution_provider),
        model=path,
        precision="fp32",
        threads=given.threads,
        gpu_device=",".join(given.gpu_device),
        state_dir=given.state_dir,
    )


def vectors(
    engine: Embedder, texts: Sequence[str], work: Path, notify: Notify
) -> NDArray[np.float32]:
    """Return vectors (texts, dimension); each finished part is stored in `work`."""

    def part(first: int, some: Sequence[str]) -> NDArray[np.float16]:
        began = time.monotonic()
        # float16 halves the size; its error is a thousandth of a student's
        found = engine.embed(some).astype(np.float16)
        rate = len(some) / (time.monotonic() - began)
        notify(f"teacher: {first + len(some)} of {len(texts)} texts, {rate:.0f} texts/s")
        return found

    model, found = engine.engine.model.weights_sha256, []
    for first in range(0, len(texts), PART):
        some = texts[first : first + PART]
        found.append(load_or_make(work / f"{key(model, some)}.npy", partial(part, first, some)))
    return np.concatenate(found)


def load_or_make(path: Path, make: Callable[[], NDArray[Any]]) -> NDArray[np.float32]:
    """Return the array of a file; make and store it atomically if there is none."""
    if not path.exists():
        part = path.with_suffix(".part.npy")
        np.save(part, make())
        part.rename(path)
    found: NDArray[np.float32] = np.load(path).astype(np.float32, copy=False)
    return found


def key(model: str, texts: Sequence[str]) -> str:
    """Return the file name for the vectors of texts by a model."""
    return hashlib.sha256("\0".join([model, *texts]).encode()).hexdigest()[:24]


# Initial rows are weighted by a / (a + frequency): Arora et al., "A Simple but Tough-to-Beat
# Baseline for Sentence Embeddings".
_RARE: Final = 1e-3
# Initial length of a row whose piece the teacher has not embedded alone.
_UNSEEN: Final = 0.3
_SPECIAL: Final = ("[CLS]", "[SEP]", "[UNK]")


def make_tokenizer(model: Model, texts: Sequence[str]) -> dict[str, Any]:
    """Return the tokenizer of a table: the teacher's, with frequent words of the texts added.

    If a table cannot split words as the teacher does (case matters, or no WordPiece), the tokenizer
    of op-dbus' own table is used. Raises ModelError.
    """
    try:
        words: dict[str, Any] = json.loads(model.tokenizer.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read the tokenizer {model.tokenizer}: {error}") from None
    if not _is_plain(words):
        words = json.loads((folder.OURS / level_table.TOKENIZER).read_bytes())
    vocabulary = words["model"]["vocab"]
    for word in frequent_words(texts, vocabulary):
        vocabulary.setdefault(word, len(vocabulary))
    # a table has a limit of its own
    words["truncation"] = words["padding"] = None
    return words


def _is_plain(words: dict[str, Any]) -> bool:
    """Return true if a table can split words as this tokenizer does."""
    try:
        WordPieces.parse(words)
        return all(token in words["model"]["vocab"] for token in _SPECIAL)
    except (ValueError, LookupError, TypeError):
        return False


def main_directions(vectors: NDArray[np.float32], dimension: int) -> NDArray[np.float32]:
    """Return the main directions (teacher's, dimension) of vectors, uncentred to keep cosines."""
    _, found = np.linalg.eigh(vectors.T @ vectors)
    main: NDArray[np.float32] = found[:, ::-1][:, :dimension].astype(np.float32)
    return main


def project(vectors: NDArray[np.float32], main: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors (texts, dimension) in main directions, again of length 1."""
    found = vectors @ main
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def first_rows(
    words: dict[str, Any], texts: Sequence[str], targets: NDArray[np.float32], seed: int
) -> NDArray[np.float32]:
    """Return initial rows: the teacher's vector of the word, shorter if it is frequent."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(words))
    ids = [found.ids for found in tokenizer.encode_batch_fast([*texts])]
    pieces = len(words["model"]["vocab"])
    counts = np.bincount([*chain.from_iterable(ids)], minlength=pieces)
    rows = np.random.default_rng(seed).standard_normal((pieces, targets.shape[1]))
    rows *= _UNSEEN / np.linalg.norm(rows, axis=1, keepdims=True)
    for number, row in enumerate(ids):
        # a text of one piece, between [CLS] and [SEP]
        if len(row) == len(_SPECIAL):
            rows[row[1]] = targets[number]
    rows *= (_RARE / (_RARE + counts / counts.sum()))[:, None]
    return rows.astype(np.float32)
