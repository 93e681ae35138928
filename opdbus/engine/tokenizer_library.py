"""Tokenizing of any text by the Hugging Face tokenizers library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import tokenizers

from opdbus.engine.tokens import Tokens
from opdbus.errors import ModelError

# A tokenizer reads a whole text before it truncates, so long texts are first cut to this many
# characters for each token of the limit and, if that gives too few tokens, to `_GROWTH` times more.
CHARACTERS_PER_TOKEN: Final = 10
_GROWTH: Final = 8
# That cut may split a word and change its tokens. WordPiece makes at most 100 tokens of a word, so
# with this many to spare none of the changed tokens is kept.
SPARE: Final = 128
# Characters that are counted at a time. No tokenizer continues a word across one of these signs,
# and no special token's name contains them.
_COUNTED: Final = 1 << 16
_CUT: Final = re.compile(r"""[\s!"#$%&'()*+,\-.:;=?@^`{}~]""")
# Words that are in every vocabulary and in none.
_TRIAL: Final = "systemd sshd.service 10.0.0.1/24 é \N{SNOWMAN} \N{LINEAR B SYLLABLE B008 A}"


class LibraryTokenizer:
    """A Hugging Face tokenizer with this model's limit; safe to call from any thread."""

    def __init__(self, path: Path, max_tokens: int) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
            # some damage shows only when it is used
            self._tokenizer.encode_batch_fast(["", *_TRIAL.split(), _TRIAL])
        except BaseException as error:  # noqa: BLE001 -- bare Exception, and panics, which are none
            raise ModelError(f"cannot read the tokenizer {path}: {error}") from None
        # The files contain a limit and padding of their own (128 for the medium model).
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)
        self.path = path
        self.max_tokens = max_tokens
        self._specials = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if not self._specials:
            # without them an empty text would have no tokens and no vector
            raise ModelError(f"the tokenizer {path} adds no [CLS] and [SEP], which BERT needs")
        if max_tokens <= self._specials:
            raise ModelError(f"a limit of {max_tokens} tokens leaves a text no room; see {path}")

    @property
    def most(self) -> int:
        """The largest id."""
        return max(self._tokenizer.get_vocab().values(), default=0)

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenize texts; blocks for about 100 us a text."""
        look = self.max_tokens * CHARACTERS_PER_TOKEN
        found = self._tokenizer.encode_batch_fast([text[:look] for text in texts])
        encodings = [
            encoding if self._is_settled(encoding, text, look) else self._look_further(text, look)
            for text, encoding in zip(texts, found, strict=True)
        ]
        ids = [encoding.ids for encoding in encodings]
        lengths = np.array([len(each) for each in ids], np.intp)
        return Tokens(
            np.array([number for each in ids for number in each], np.int64),
            lengths.cumsum() - lengths,
            lengths,
            np.array([bool(encoding.overflowing) for encoding in encodings], np.bool_),
        )

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts, special ones included; about 1 us a character."""
        return [self._count(text) for text in texts]

    def _count(self, text: str) -> int:
        """Count a text's tokens in parts: listing all of a long text blocks other threads."""
        counted = self._specials
        while text:
            cut = _CUT.search(text, _COUNTED)
            part, text = (text[: cut.start()], text[cut.start() :]) if cut else (text, "")
            counted += self._size(self._tokenizer.encode_batch_fast([part])[0]) - self._specials
        return counted

    def _look_further(self, text: str, look: int) -> tokenizers.Encoding:
        """Tokenize a text whose beginning has few tokens, such as many spaces."""
        while True:
            look *= _GROWTH
            (encoding,) = self._tokenizer.encode_batch_fast([text[:look]])
            if self._is_settled(encoding, text, look):
                return encoding

    def _is_settled(self, encoding: tokenizers.Encoding, text: str, look: int) -> bool:
        """Return true if the rest of the text cannot change the tokens that are kept."""
        return len(text) <= look or self._size(encoding) >= self.max_tokens + SPARE

    def _size(self, encoding: tokenizers.Encoding) -> int:
        """Count the tokens before truncation, special ones included."""
        cut = sum(len(part.ids) - self._specials for part in encoding.overflowing)
        return len(encoding.ids) + cut
