"""Vectors of texts by a static table, with numpy alone, and the proof that they are right here."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.proof import Proof
from opdbus.engine.tokenizer import Token, Tokenizer
from opdbus.engine.word_cache import MOST_WORDS
from opdbus.errors import ModelError, ProofFailed
from opdbus.models import numpy_files
from opdbus.models.level_table import TABLE_PROOF, TOKENIZER
from opdbus.platform.lazy_pages import LazyRows

if TYPE_CHECKING:
    from opdbus.engine.tokenizer import Numbers, Tokens
    from opdbus.models.static_table import StaticTable

# Rows gathered at a time: many, to release the GIL for long; few enough to stay in the cache.
_ROWS: Final = 2048
# Longer sums use double precision, because rounding in single precision would add up.
_MANY: Final = 96


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """Vectors (texts, dimension) of length 1, and tokens and truncation of each text."""

    vectors: NDArray[np.float32]
    lengths: NDArray[np.intp]
    truncated: NDArray[np.bool_]

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.lengths)

    def take(self, wanted: Numbers) -> Self:
        """Return the texts with these indexes."""
        at = np.asarray(wanted, np.intp)
        return type(self)(
            self.vectors.take(at, axis=0), self.lengths.take(at), self.truncated.take(at)
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the texts of all parts in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.vectors for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.truncated for part in parts]),
        )


class StaticEncoder:
    """Encoder of texts by a table; safe to use from any thread."""

    def __init__(self, table: StaticTable, most_words: int = MOST_WORDS) -> None:
        self.table = table
        self.tokenizer = Tokenizer(
            table.folder / TOKENIZER, table.max_tokens, table.words, most_words
        )
        # behind the rows of pieces, one of zeros for where a text has ended
        self._nothing: Final = len(table.stored)
        self._unpacked = LazyRows((self._nothing + 1, table.dimension), table.unpacked)
        self._around = table.sums(np.array(table.words.special_ids)).astype(np.float32)
        self._memory = threading.local()

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """Return the vectors of texts; takes about 5 us a text."""
        tokens = self.tokenizer.encode(texts)
        self._unpacked.require(tokens.ids)
        order = np.argsort(tokens.lengths.astype(np.uint16), kind="stable")
        found = self._sums(tokens.take(order))
        found += self._around
        found /= np.sqrt(np.einsum("td,td->t", found, found))[:, None]
        vectors = np.empty_like(found)
        vectors[order] = found
        return EncodedTexts(vectors, tokens.lengths, tokens.truncated)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts, special ones included."""
        return self.tokenizer.count(texts)

    def list_tokens(self, texts: Sequence[str]) -> list[list[Token]]:
        """Return all tokens of whole texts."""
        return self.tokenizer.list_tokens(texts)

    def reference(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return vectors (texts, dimension) by the tokenizers library, in double precision."""
        sums = np.array([self.table.sums(ids) for ids in self.tokenizer.library.encode(texts)])
        sums /= np.linalg.norm(sums, axis=1, keepdims=True)
        return sums

    def _sums(self, tokens: Tokens) -> NDArray[np.float32]:
        """Return the sums of texts' rows without [CLS] and [SEP]; texts come shortest first."""
        sums = np.empty((len(tokens), self.table.dimension), np.float32)
        first, counts = tokens.first + 1, tokens.lengths - len(self.table.words.special_ids)
        end = len(tokens)
        while end:
            # texts of similar length are summed together
            most = int(counts[end - 1])
            start = max(0, end - max(1, _ROWS // max(1, most)))
            # the first tokens of all texts, then the second ones, so that whole cache lines are
            # added
            number = np.arange(most)[:, None]
            ids = tokens.ids.take(first[start:end] + number, mode="clip")
            if counts[start] < most:
                ids[number >= counts[start:end]] = self._nothing
            self._add(ids, sums[start:end])
            end = start
        return sums

    def _add(self, ids: NDArray[np.int64], into: NDArray[np.float32]) -> None:
        """Sum the rows of ids (tokens, texts) into `into` (texts, dimension)."""
        rows = self._buffer()[: ids.size]
        self._unpacked.values.take(ids.ravel(), axis=0, out=rows, mode="clip")
        kind = np.float64 if len(ids) > _MANY else np.float32
        rows.reshape(*ids.shape, into.shape[1]).sum(axis=0, dtype=kind, out=into)

    def _buffer(self) -> NDArray[np.float32]:
        """Return this thread's buffer for rows; allocating one costs more than the sums."""
        if not hasattr(self._memory, "rows"):
            most = max(_ROWS, self.table.max_tokens)
            self._memory.rows = np.empty((most, self.table.dimension), np.float32)
        rows: NDArray[np.float32] = self._memory.rows
        return rows


# Largest difference of any component from double precision; single precision stays near 1e-7.
STATIC_TOLERANCE: Final = 1e-6
PROOF_TEXTS: Final = (
    "",
    "sshd",
    "which service answers questions about host names?",
    "systemd service sshd: OpenBSD Secure Shell server",
    "network interface eth0; type ethernet, address 192.0.2.17/24, mtu 1500, up yes",
    "Backup of /srv/media to disk2 (weekly, 03:30), keeps 14 snapshots; last exit status 0",
    "UPPER lower MiXeD 0x7f 3.141592653589793 a_b-c.d,e;f:g!h?i @j #k $l %m ^n &o *p (q) {r}",
    "word " * 200,
)


def write_static_proof(encoder: StaticEncoder) -> None:
    """Store the reference vectors of the texts beside the table."""
    np.save(encoder.table.folder / TABLE_PROOF, encoder.reference(PROOF_TEXTS).astype(np.float32))


def prove_static(encoder: StaticEncoder) -> Proof:
    """Encode the texts, together and each alone, and compare; raises ProofFailed, ModelError."""
    path = encoder.table.folder / TABLE_PROOF
    shape = len(PROOF_TEXTS), encoder.table.dimension
    try:
        expected = np.asarray(numpy_files.load_array(path), np.float32)
    except (OSError, ValueError, EOFError) as error:
        raise ModelError(f"cannot read {path}: {error}") from None
    if expected.shape != shape:
        raise ModelError(f"{path} belongs to another table: it holds {expected.shape}, not {shape}")
    alone = [encoder.encode([text]).vectors[0] for text in PROOF_TEXTS]
    found = np.array([encoder.encode(PROOF_TEXTS).vectors, alone], np.float64)
    deviation = float(np.abs(found - expected).max())
    if not deviation <= STATIC_TOLERANCE:
        raise ProofFailed(
            f"the static table {encoder.table.folder} gives vectors that differ from the"
            f" reference's by {deviation:.1e} (at most {STATIC_TOLERANCE:.0e} is rounding): its"
            " results cannot be trusted"
        )
    cosine = float((found * expected).sum(axis=2).min())
    return Proof({"numpy": len(PROOF_TEXTS)}, {}, "fp32", deviation, cosine, time.time())
