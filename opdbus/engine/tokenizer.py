"""Tokenizer: texts to token ids in one array, cut at the model's limit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.word_cache import MOST_WORDS, WordCache
from opdbus.errors import ModelError
from opdbus.models.static_table import WordPieces
from opdbus.platform.regular_files import read_regular

if TYPE_CHECKING:
    import tokenizers

    from opdbus.models.folder import Model

Numbers: TypeAlias = Sequence[int] | NDArray[np.intp]
# A token's id, its sign or the text that it stands for, whether the tokenizer added it, and the
# characters of the text from which to which it stands; both are 0 of one that was added.
Token: TypeAlias = tuple[int, str, bool, int, int]
Encode: TypeAlias = "Callable[[list[str]], list[tokenizers.Encoding]]"


class Rows(Protocol):
    """Tokenized texts as an engine passes them; an engine accepts only its own rows."""

    @property
    def lengths(self) -> NDArray[np.intp]:
        """Number of tokens of each text, special ones included."""

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """True for each text that was cut."""

    def __len__(self) -> int:
        """Count the texts."""

    def take(self, wanted: Numbers) -> Self:
        """Return the rows with these indexes."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, at least one, in order."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokenized texts: text `t` has `lengths[t]` ids from `first[t]` on.

    `texts` has the whole texts, for servers that tokenize themselves; empty if they are not kept.
    """

    ids: NDArray[np.int64]
    first: NDArray[np.intp]
    lengths: NDArray[np.intp]
    truncated: NDArray[np.bool_]
    texts: Sequence[str] = ()

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        """Yield the ids of each text."""
        for first, length in zip(self.first.tolist(), self.lengths.tolist(), strict=True):
            yield self.ids[first : first + length]

    def take(self, wanted: Numbers) -> Self:
        """Return the rows with these indexes, which share the ids."""
        at = np.asarray(wanted, np.intp)
        texts = [self.texts[number] for number in at.tolist()] if self.texts else ()
        return type(self)(
            self.ids, self.first.take(at), self.lengths.take(at), self.truncated.take(at), texts
        )

    def stacked(self, wanted: Numbers) -> NDArray[np.int64]:
        """Return the ids (texts, length) of texts of one length."""
        first = self.first.take(np.asarray(wanted, np.intp))
        return self.ids.take(first[:, None] + np.arange(self.lengths[wanted[0]]))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the texts of all parts in order."""
        if len(parts) == 1:
            return parts[0]
        before = np.cumsum([0, *(len(part.ids) for part in parts)])
        first = [part.first + offset for part, offset in zip(parts, before, strict=False)]
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate(first),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.truncated for part in parts]),
            [text for part in parts for text in part.texts],
        )


def split_by_size(texts: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """Split texts into parts of about `most` characters, at least one text each; one if none."""
    if sum(map(len, texts)) <= most:
        yield texts
        return
    first = size = 0
    for number, length in enumerate(map(len, texts)):
        if size and size + length > most:
            yield texts[first:number]
            first, size = number, 0
        size += length
    yield texts[first:]


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
        # 3.6 MiB that plain texts do not need
        import tokenizers

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
        return _join(self._encode(texts, self._tokenizer.encode_batch_fast), texts)

    def cut(self, text: str) -> str:
        """Return the beginning of a text that has the tokens that are kept of it.

        If no beginning has just these, return the whole text.
        """
        # only the slower method counts the characters of tokens
        (encoding,) = self._encode([text], self._tokenizer.encode_batch)
        shown = text[: max((end for _, end in encoding.offsets), default=0)]
        (again,) = self._encode([shown], self._tokenizer.encode_batch_fast)
        return shown if again.ids == encoding.ids else text

    def _encode(self, texts: Sequence[str], encode: Encode) -> list[tokenizers.Encoding]:
        look = self.max_tokens * CHARACTERS_PER_TOKEN
        encodings = encode([text[:look] for text in texts])
        for number, text in enumerate(texts):
            shown = look
            # The rest of a text can change the tokens that are kept if its beginning has few, such
            # as many spaces.
            while len(text) > shown and self._size(encodings[number]) < self.max_tokens + SPARE:
                shown *= _GROWTH
                (encodings[number],) = encode([text[:shown]])
        return encodings

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts, special ones included; about 1 us a character."""
        counts = []
        for text in texts:
            rest, counted = text, self._specials
            # in parts, since listing all tokens of a long text blocks other threads
            while rest:
                cut = _CUT.search(rest, _COUNTED)
                part, rest = (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "")
                counted += self._size(self._tokenizer.encode_batch_fast([part])[0]) - self._specials
            counts.append(counted)
        return counts

    def list_tokens(self, texts: Sequence[str]) -> list[list[Token]]:
        """Return all tokens of whole texts; a copy of the tokenizer, since this one cuts them."""
        whole = type(self._tokenizer).from_str(self._tokenizer.to_str())
        whole.no_truncation()
        return [
            [
                (number, sign if is_special else text[start:end], bool(is_special), start, end)
                for number, sign, is_special, (start, end) in zip(
                    found.ids, found.tokens, found.special_tokens_mask, found.offsets, strict=True
                )
            ]
            for text, found in zip(texts, whole.encode_batch(list(texts)), strict=True)
        ]

    def _size(self, encoding: tokenizers.Encoding) -> int:
        """Count the tokens before truncation, special ones included."""
        cut = sum(len(part.ids) - self._specials for part in encoding.overflowing)
        return len(encoding.ids) + cut


def _join(encodings: Sequence[tokenizers.Encoding], texts: Sequence[str]) -> Tokens:
    ids = [encoding.ids for encoding in encodings]
    lengths = np.array([len(each) for each in ids], np.intp)
    return Tokens(
        np.array([number for each in ids for number in each], np.int64),
        lengths.cumsum() - lengths,
        lengths,
        np.array([bool(encoding.overflowing) for encoding in encodings], np.bool_),
        texts,
    )


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
        words = words or _read_word_pieces(self.library)
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
        if made._cache:
            # 10 MiB; plain texts do not need it
            made._library = None
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
        parts = split_by_size(texts, AT_ONCE)
        return Tokens.joined([self._encode(part, self._cache) for part in parts])

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts, special ones included; about 1 us a character."""
        if not self._cache or sum(map(len, texts)) > AT_ONCE:
            return self.library.count(texts)
        found = self._cache.look_up(texts)
        counts: list[int] = found.lengths.tolist()
        odd = sorted(set(found.odd))
        others = self.library.count([texts[number] for number in odd]) if odd else []
        for number, count in zip(odd, others, strict=True):
            counts[number] = count
        return counts

    def list_tokens(self, texts: Sequence[str]) -> list[list[Token]]:
        """Return all tokens of whole texts."""
        return self.library.list_tokens(texts)

    def cut(self, text: str) -> str:
        """Return the beginning of a text that has the tokens that are kept of it."""
        return self.library.cut(text)

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
        tokens = Tokens(found.ids, found.first, lengths, truncated, texts)
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


def _read_word_pieces(library: LibraryTokenizer) -> WordPieces | None:
    """Read the vocabulary of a WordPiece tokenizer; None for any other kind."""
    try:
        return WordPieces.parse(json.loads(read_regular(library.path, follow=True)))
    except (OSError, ValueError, LookupError, TypeError):
        return None
