"""A static table: one vector for each word piece, from which vectors of texts are summed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.errors import ModelError
from opdbus.models.table_files import TABLE, WORDS

_PREFIX: Final = "##"


@dataclass(frozen=True)
class StaticTable:
    """The rows of a table, and the words that they are for.

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

    @classmethod
    def read(cls, folder: Path, max_tokens: int) -> StaticTable:
        """Read a folder's table; raises ModelError for anything that is none."""
        path = folder / TABLE
        try:
            # not mapped: a process would die of a file that is written over
            table = np.load(path, allow_pickle=False)
            words = json.loads((folder / WORDS).read_bytes())
            made = cls._made(folder, table, words, max_tokens)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ModelError(f"cannot read the static table {folder}: {error}") from None
        if max(made.pieces.values(), default=0) >= len(table):
            raise ModelError(f"{path} has {len(table)} rows, and {WORDS} names more pieces")
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


def _require_plain(words: dict[str, Any]) -> None:
    """Raise ValueError unless words are split and lowered as the word cache does it."""
    normalizer, model = words["normalizer"], words["model"]
    is_bert = normalizer["type"] == "BertNormalizer" and words["pre_tokenizer"]["type"] == (
        "BertPreTokenizer"
    )
    if not is_bert or model["type"] != "WordPiece" or model["continuing_subword_prefix"] != _PREFIX:
        raise ValueError(f"{WORDS} is no lower-case WordPiece tokenizer")
    if not (normalizer["lowercase"] and normalizer["clean_text"]):
        raise ValueError(f"{WORDS} keeps capitals or control characters")
    if not all(token["content"].startswith("[") for token in words["added_tokens"]):
        raise ValueError(f"{WORDS} has special tokens that do not begin with [")


def shape(folder: Path) -> tuple[int, int]:
    """Return how many rows a folder's table has, and their length; raises ModelError."""
    try:
        table = np.load(folder / TABLE, mmap_mode="r", allow_pickle=False)
        return len(table), table["row"].shape[1]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"cannot read the static table {folder}: {error}") from None


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
    (folder / WORDS).write_text(json.dumps(words, ensure_ascii=False), "utf-8")
