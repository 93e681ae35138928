"""Tokenizer: texts to token ids, cut at the model's limit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.tokenizer_library import CHARACTERS_PER_TOKEN, SPARE, LibraryTokenizer
from opdbus.engine.tokens import Tokens, by_characters
from opdbus.engine.word_cache import MOST_WORDS, WordCache
from opdbus.errors import ModelError
from opdbus.models.word_pieces import WordPieces
from opdbus.platform.regular_files import read_regular

if TYPE_CHECKING:
    from opdbus.models.folder import Model

# Characters per step: enough for long numpy calls, few enough for the arrays to stay in the cache.
AT_ONCE: Final = 1 << 19
# Below this many characters the library, once it is open, is faster.
_LITTLE: Final = 256


class Tokenizer:
    """A model's tokenizer; safe to call from any thread.

    The ids equal those of the tokenizers library. Those of plain (ASCII) texts come from a word
    cache, which is many times as fast.
    """

    def __init__(
        self,
        path: Path,
        max_tokens: int,
        words: WordPieces | None = None,
        most_words: int = MOST_WORDS,
    ) -> None:
        """Read a tokenizer; raises ModelError.

        If `words` is given, the library is opened only for the first text that is not plain.
        """
        self.path = path
        self.max_tokens = max_tokens
        self._library: LibraryTokenizer | None = None
        words = words or _words(self.library)
        self._cache = WordCache(words, most_words) if words else None

    @classmethod
    def of(cls, model: Model) -> Self:
        """Read a model's tokenizer; raises ModelError, also if ids exceed the vocabulary."""
        made = cls(model.tokenizer, model.shape.max_tokens)
        if made.library.most >= model.words:
            raise ModelError(
                f"the tokenizer {model.tokenizer} numbers its tokens up to {made.library.most}, but"
                f" the model has {model.words} words: it is another model's; get both from one"
                " place"
            )
        return made

    @property
    def library(self) -> LibraryTokenizer:
        """The library's tokenizer, which handles every text; opened on first use."""
        if not self._library:
            self._library = LibraryTokenizer(self.path, self.max_tokens)
        return self._library

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenize texts; blocks for about 2 us a text, 100 us if it is not plain."""
        is_little = self._library and sum(map(len, texts)) < _LITTLE
        if not self._cache or is_little:
            return self.library.encode(texts)
        parts = by_characters(texts, AT_ONCE)
        return Tokens.joined([self._encode(part, self._cache) for part in parts])

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts, special ones included; about 1 us a character."""
        return self.library.count(texts)

    def _encode(self, texts: Sequence[str], cache: WordCache) -> Tokens:
        look = self.max_tokens * CHARACTERS_PER_TOKEN
        long = [number for number, text in enumerate(texts) if len(text) > look]
        shown = [text[:look] for text in texts] if long else texts
        found = cache.look_up(shown)
        truncated = found.lengths > self.max_tokens
        cut = np.flatnonzero(truncated)
        last = found.first.take(cut) + found.lengths.take(cut) - 1
        found.ids[found.first.take(cut) + self.max_tokens - 1] = found.ids.take(last)
        lengths = np.minimum(found.lengths, self.max_tokens)
        tokens = Tokens(found.ids, found.first, lengths, truncated)
        # the cut at `look` may have split a word
        unsettled = [n for n in long if found.lengths[n] < self.max_tokens + SPARE]
        odd = np.array(sorted({*found.odd, *unsettled}), np.intp)
        return self._with(tokens, odd, texts) if len(odd) else tokens

    def _with(self, tokens: Tokens, odd: NDArray[np.intp], texts: Sequence[str]) -> Tokens:
        """Return tokens in which the `odd` texts are tokenized by the library."""
        others = self.library.encode([texts[number] for number in odd.tolist()])
        order = np.arange(len(tokens))
        order[odd] = len(tokens) + np.arange(len(odd))
        return Tokens.joined([tokens, others]).take(order)


def _words(library: LibraryTokenizer) -> WordPieces | None:
    """Read the vocabulary of a WordPiece tokenizer; None for any other kind."""
    try:
        return WordPieces.of(json.loads(read_regular(library.path, follow=True)))
    except (OSError, ValueError, LookupError, TypeError):
        return None
