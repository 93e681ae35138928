"""Static table: one vector for each piece of a WordPiece tokenizer, summed to texts' vectors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from opdbus.errors import ModelError
from opdbus.models import numpy_files
from opdbus.models.level_table import TABLE_ROWS, TOKENIZER
from opdbus.models.numpy_files import StoredRows
from opdbus.platform.regular_files import read_regular

_PREFIX: Final = "##"


@dataclass(frozen=True)
class WordPieces:
    """Word pieces of a tokenizer.json.

    A word is a run of letters and digits, in lower case; every other character is a word of its
    own.
    """

    pieces: dict[str, int]
    # special tokens; texts that contain one, in any case, are not split by these rules
    specials: tuple[str, ...]
    # ids before and after each text
    special_ids: tuple[int, int]
    unknown: int
    longest_word: int

    @classmethod
    def parse(cls, described: dict[str, Any]) -> Self:
        """Parse a tokenizer.json; raises ValueError, LookupError or TypeError for other kinds."""
        normalizer, model = described["normalizer"], described["model"]
        is_bert = normalizer["type"] == "BertNormalizer"
        is_bert &= described["pre_tokenizer"]["type"] == "BertPreTokenizer"
        prefix = model["continuing_subword_prefix"]
        if not is_bert or model["type"] != "WordPiece" or prefix != _PREFIX:
            raise ValueError("this is no WordPiece tokenizer")
        if not (normalizer["lowercase"] and normalizer["clean_text"]):
            raise ValueError("this tokenizer keeps capitals or control characters")
        return cls(
            model["vocab"],
            tuple(token["content"] for token in described["added_tokens"]),
            _read_special_ids(described["post_processor"]),
            model["vocab"][model["unk_token"]],
            model["max_input_chars_per_word"],
        )

    @cached_property
    def longest_piece(self) -> int:
        """Number of characters of the longest piece."""
        return max(map(len, self.pieces))

    def split(self, word: str) -> list[int]:
        """Return the pieces of a lower-case ASCII word, each the longest possible."""
        if word in self.pieces:
            return [self.pieces[word]]
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


def _read_special_ids(processor: dict[str, Any]) -> tuple[int, int]:
    """Return the ids before and after a text; raises as `parse` does unless it is one each."""
    if processor["type"] != "TemplateProcessing":
        return processor["cls"][1], processor["sep"][1]
    before, _, after = processor["single"]
    known = processor["special_tokens"]
    (first,), (last,) = (known[each["SpecialToken"]["id"]]["ids"] for each in (before, after))
    return first, last


@dataclass(frozen=True)
class StaticTable:
    """The rows of a table and the word pieces they belong to.

    A row is `scale` times 8-bit integers; its norm is the piece's weight. A text's vector is the
    sum of the rows of its pieces, including [CLS] and [SEP], normalized to length 1.
    """

    folder: Path
    stored: StoredRows
    words: WordPieces
    max_tokens: int

    @classmethod
    def read(cls, folder: Path, max_tokens: int) -> StaticTable:
        """Read a folder's table; raises ModelError if it is invalid."""
        with _translate_errors(folder):
            stats = [(folder / name).stat() for name in (TABLE_ROWS, TOKENIZER)]
            state = tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)
            table, words = _load(folder, state)
            made = cls(folder, table, words, max_tokens)
        if max(words.pieces.values(), default=0) >= len(table):
            path = folder / TABLE_ROWS
            raise ModelError(f"{path} has {len(table)} rows, and {TOKENIZER} names more pieces")
        return made

    @property
    def dimension(self) -> int:
        """Number of components of a vector."""
        dimension: int = self.stored.dtype["row"].shape[0]
        return dimension

    def sums(self, ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return sums of rows (..., dimension) over the last axis of ids, in double precision."""
        stored = self.stored.take(ids)
        rows = stored["row"] * stored["scale"][..., None].astype(np.float64)
        found: NDArray[np.float64] = rows.sum(axis=-2)
        return found

    def unpacked(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows of ids (rows, dimension) in single precision."""
        stored = self.stored.take(ids)
        rows: NDArray[np.float32] = stored["row"] * stored["scale"][:, None]
        return rows


# The level `static` and the confidence of hits read the same table.
@lru_cache(maxsize=1)
def _load(folder: Path, _state: tuple[tuple[int, int, int], ...]) -> tuple[Any, WordPieces]:
    table = numpy_files.open_rows(folder / TABLE_ROWS)
    return table, WordPieces.parse(json.loads(read_regular(folder / TOKENIZER, follow=True)))


def table_shape(folder: Path) -> tuple[int, int]:
    """Return the number of rows of a folder's table, and their length; raises ModelError."""
    with _translate_errors(folder):
        table = numpy_files.map_array(folder / TABLE_ROWS)
        return len(table), table["row"].shape[1]


@contextmanager
def _translate_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"cannot read the static table {folder}: {error}") from None


def write_table(folder: Path, vectors: NDArray[np.float64], tokenizer: dict[str, Any]) -> None:
    """Write vectors (pieces, dimension) as a table, with the tokenizer's JSON."""
    scales = np.abs(vectors).max(axis=1) / 127
    # a row of zeros may have any scale
    scales[scales == 0] = 1
    kind = np.dtype([("scale", "<f4"), ("row", "i1", (vectors.shape[1],))])
    table = np.empty(len(vectors), kind)
    table["scale"] = scales
    table["row"] = np.rint(vectors / table["scale"][:, None].astype(np.float64)).clip(-127, 127)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / TABLE_ROWS, table)
    (folder / TOKENIZER).write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
