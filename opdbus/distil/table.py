"""Initial state of a static table: tokenizer, the teacher's main directions, first rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tokenizers
from numpy.typing import NDArray

from opdbus.distil.host_texts import frequent_words
from opdbus.errors import ModelError
from opdbus.models import folder, formats
from opdbus.models.word_pieces import WordPieces

if TYPE_CHECKING:
    from opdbus.models.folder import Model

# Initial rows are weighted by a / (a + frequency): Arora et al., "A Simple but Tough-to-Beat
# Baseline for Sentence Embeddings".
_RARE: Final = 1e-3
# Initial length of a row whose piece the teacher has not embedded alone.
_UNSEEN: Final = 0.3
_SPECIAL: Final = ("[CLS]", "[SEP]", "[UNK]")


def words_of(model: Model, texts: Sequence[str]) -> dict[str, Any]:
    """Return the tokenizer of a table: the teacher's, with frequent words of the texts added.

    If a table cannot split words as the teacher does (case matters, or no WordPiece), the tokenizer
    of op-dbus' own table is used. Raises ModelError.
    """
    try:
        words: dict[str, Any] = json.loads(model.tokenizer.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read the tokenizer {model.tokenizer}: {error}") from None
    if not _is_plain(words):
        words = json.loads((folder.OURS / formats.TOKENIZER).read_bytes())
    vocabulary = words["model"]["vocab"]
    for word in frequent_words(texts, vocabulary):
        vocabulary.setdefault(word, len(vocabulary))
    # a table has a limit of its own
    words["truncation"] = words["padding"] = None
    return words


def _is_plain(words: dict[str, Any]) -> bool:
    """Return true if a table can split words as this tokenizer does."""
    try:
        WordPieces.of(words)
        return all(token in words["model"]["vocab"] for token in _SPECIAL)
    except (ValueError, LookupError, TypeError):
        return False


def directions(vectors: NDArray[np.float32], dimension: int) -> NDArray[np.float32]:
    """Return the main directions (teacher's, dimension) of vectors, uncentred to keep cosines."""
    _, found = np.linalg.eigh(vectors.T @ vectors)
    main: NDArray[np.float32] = found[:, ::-1][:, :dimension].astype(np.float32)
    return main


def along(vectors: NDArray[np.float32], main: NDArray[np.float32]) -> NDArray[np.float32]:
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
