"""Static table: one vector for each word piece, summed to vectors of texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdbus.errors import ModelError
from opdbus.models import arrays
from opdbus.models.formats import ROWS, TOKENIZER
from opdbus.models.word_pieces import WordPieces
from opdbus.platform.regular_files import read_regular


@dataclass(frozen=True)
class StaticTable:
    """The rows of a table and the word pieces they belong to.

    A row is `scale` times 8-bit integers; its length is the piece's weight. A text's vector is the
    sum of the rows of its pieces, including [CLS] and [SEP], normalized to length 1.
    """

    folder: Path
    scales: NDArray[np.float32]
    rows: NDArray[np.int8]
    words: WordPieces
    max_tokens: int

    @classmethod
    def read(cls, folder: Path, max_tokens: int) -> StaticTable:
        """Read a folder's table; raises ModelError if it is invalid."""
        path = folder / ROWS
        try:
            # not memory-mapped: overwriting a mapped file would crash the process
            table = arrays.load(path)
            words = WordPieces.of(json.loads(read_regular(folder / TOKENIZER, follow=True)))
            made = cls(folder, table["scale"], table["row"], words, max_tokens)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ModelError(f"cannot read the static table {folder}: {error}") from None
        if max(words.pieces.values(), default=0) >= len(table):
            raise ModelError(f"{path} has {len(table)} rows, and {TOKENIZER} names more pieces")
        return made

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        dimension: int = self.rows.shape[1]
        return dimension

    def sums(self, ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return sums of rows (..., dimension) over the last axis of ids, in double precision."""
        rows = self.rows[ids] * self.scales[ids][..., None].astype(np.float64)
        found: NDArray[np.float64] = rows.sum(axis=-2)
        return found


def shape(folder: Path) -> tuple[int, int]:
    """Return the number of rows of a folder's table, and their length; raises ModelError."""
    try:
        table = arrays.mapped(folder / ROWS)
        return len(table), table["row"].shape[1]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"cannot read the static table {folder}: {error}") from None


def write(folder: Path, vectors: NDArray[np.float64], words: dict[str, Any]) -> None:
    """Write vectors (pieces, dimension) as a table, with the tokenizer's JSON."""
    scales = np.abs(vectors).max(axis=1) / 127
    # a row of zeros may have any scale
    scales[scales == 0] = 1
    kind = np.dtype([("scale", "<f4"), ("row", "i1", (vectors.shape[1],))])
    table = np.empty(len(vectors), kind)
    table["scale"] = scales
    table["row"] = np.rint(vectors / table["scale"][:, None].astype(np.float64)).clip(-127, 127)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / ROWS, table)
    (folder / TOKENIZER).write_text(json.dumps(words, ensure_ascii=False), "utf-8")
