"""Texts to token ids, cut at the model's limit, with what was cut made visible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import tokenizers

from opdbus.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

# WordPiece turns even the longest words into few tokens, so a text is cut by characters before
# it is tokenized whole; only where that leaves too few tokens is the full text looked at.
_CHARACTERS_PER_TOKEN: Final = 24


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text as the model sees it."""

    ids: NDArray[np.int64]
    truncated: bool

    def __len__(self) -> int:
        """Count the tokens, special ones included."""
        return len(self.ids)


class Tokenizer:
    """A Hugging Face tokenizer with this model's limit; safe to call from any thread."""

    def __init__(self, path: Path, max_tokens: int) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 -- tokenizers raises bare Exception
            raise ModelError(f"cannot read the tokenizer {path}: {error}") from None
        # The files bake in a limit and padding of their own (128 for the medium model).
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)
        self.max_tokens = max_tokens
        self._specials = self._tokenizer.num_special_tokens_to_add(is_pair=False)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenize texts; blocks for about 50 us a text."""
        keep = self.max_tokens * _CHARACTERS_PER_TOKEN
        encodings = self._tokenizer.encode_batch_fast([text[:keep] for text in texts])
        return [
            self._tokens(text, encoding, cut=len(text) > keep)
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts, special ones included; blocks as `encode` does."""
        return [
            len(encoding.ids) + sum(len(part.ids) - self._specials for part in encoding.overflowing)
            for encoding in self._tokenizer.encode_batch(list(texts))
        ]

    def _tokens(self, text: str, encoding: tokenizers.Encoding, *, cut: bool) -> Tokens:
        if cut and len(encoding.ids) < self.max_tokens:
            # the kept characters were mostly spaces or control characters
            encoding = self._tokenizer.encode(text)
            cut = False
        ids = np.array(encoding.ids, np.int64)
        return Tokens(ids, truncated=cut or len(encoding.overflowing) > 0)
