"""A static table: one vector for each word piece, from which vectors of texts are summed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.tokenizer import Tokenizer
from opdbus.errors import ModelError
from opdbus.models.record import sha256

TABLE: Final = "table.npy"
TOKENIZER: Final = "tokenizer.json"
_PREFIX: Final = "##"


@dataclass(frozen=True)
class StaticTable:
    """The rows of a table, mapped into memory, and the words that they are for.

    A row is `scale` times 8-bit integers. Its length says how much the piece counts: a text's
    vector is the sum of the rows of its pieces, [CLS] and [SEP] among them, made 1 long.
    """

    folder: Path
    scales: NDArray[np.float32]
    rows: NDArray[np.int8]
    pieces: dict[str, int]
    # texts that contain one of these are not split into words like all others
    specials: tuple[str, ...]
    around: tuple[int, int]
    unknown: int
    max_tokens: int
    longest_word: int
    sha256: str

    @classmethod
    def read(cls, folder: Path, max_tokens: int) -> StaticTable:
        """Map a folder's table; raises ModelError for anything that is none."""
        path = folder / TABLE
        try:
            table = np.load(path, mmap_mode="r", allow_pickle=False)
            words = json.loads((folder / TOKENIZER).read_bytes())
            made = cls._made(folder, table, words, max_tokens)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ModelError(f"cannot read the static table {folder}: {error}") from None
        if max(made.pieces.values(), default=0) >= len(table):
            raise ModelError(f"{path} has {len(table)} rows, and {TOKENIZER} names more pieces")
        return made

    @classmethod
    def _made(
        cls, folder: Path, table: NDArray[Any], words: dict[str, Any], max_tokens: int
    ) -> StaticTable:
        model, pieces = words["model"], words["model"]["vocab"]
        _require_plain(words)
        return cls(
            folder,
            table["scale"],
            table["row"],
            pieces,
            tuple(token["content"] for token in words["added_tokens"]),
            (pieces["[CLS]"], pieces["[SEP]"]),
            pieces[model["unk_token"]],
            max_tokens,
            model["max_input_chars_per_word"],
            sha256(folder / TABLE),
        )

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        dimension: int = self.rows.shape[1]
        return dimension

    @cached_property
    def longest_piece(self) -> int:
        """The most characters of a piece."""
        return max(map(len, self.pieces))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The real tokenizer, which is slow to open: for texts that are not plain."""
        return Tokenizer(self.folder / TOKENIZER, self.max_tokens)

    def split(self, word: str) -> list[int]:
        """Return the pieces of a word of lower-case ASCII, each as long as can be: WordPiece's."""
        found: list[int] = []
        start, prefix = 0, ""
        while start < len(word):
            ends = range(min(len(word), start + self.longest_piece), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self.pieces), None)
            if end is None:
                return [self.unknown]
            found.append(self.pieces[prefix + word[start:end]])
            start, prefix = end, _PREFIX
        return found

    def sums(self, ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return sums of rows (..., dimension) over the last axis of ids, in double precision."""
        rows = self.rows[ids] * self.scales[ids][..., None].astype(np.float64)
        found: NDArray[np.float64] = rows.sum(axis=-2)
        return found

    def reference(self, texts: list[str]) -> NDArray[np.float64]:
        """Return vectors (texts, dimension) by the real tokenizer, in double precision."""
        sums = np.array([self.sums(tokens.ids) for tokens in self.tokenizer.encode(texts)])
        sums /= np.linalg.norm(sums, axis=1, keepdims=True)
        return sums


def _require_plain(words: dict[str, Any]) -> None:
    """Raise ValueError unless words are split and lowered as the word cache does it."""
    normalizer, model = words["normalizer"], words["model"]
    is_bert = normalizer["type"] == "BertNormalizer" and words["pre_tokenizer"]["type"] == (
        "BertPreTokenizer"
    )
    if not is_bert or model["type"] != "WordPiece" or model["continuing_subword_prefix"] != _PREFIX:
        raise ValueError(f"{TOKENIZER} is no lower-case WordPiece tokenizer")
    if not (normalizer["lowercase"] and normalizer["clean_text"]):
        raise ValueError(f"{TOKENIZER} keeps capitals or control characters")
    if not all(token["content"].startswith("[") for token in words["added_tokens"]):
        raise ValueError(f"{TOKENIZER} has special tokens that do not begin with [")


def write(folder: Path, vectors: NDArray[np.float64], words: dict[str, Any]) -> None:
    """Write vectors (pieces, dimension) as a table, with the tokenizer's words."""
    scales = np.abs(vectors).max(axis=1) / 127
    # a row of nothing but zeros is nothing at any scale
    scales[scales == 0] = 1
    kind = np.dtype([("scale", "<f4"), ("row", "i1", (vectors.shape[1],))])
    table = np.empty(len(vectors), kind)
    table["scale"] = scales
    table["row"] = np.rint(vectors / table["scale"][:, None].astype(np.float64)).clip(-127, 127)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / TABLE, table)
    (folder / TOKENIZER).write_text(json.dumps(words, ensure_ascii=False), "utf-8")
