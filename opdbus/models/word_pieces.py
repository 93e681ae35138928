"""Vocabulary of a lower-case WordPiece tokenizer, which most models of the families use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

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
    around: tuple[int, int]
    unknown: int
    longest_word: int

    @classmethod
    def of(cls, described: dict[str, Any]) -> Self:
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
            _around(described["post_processor"]),
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


def _around(processor: dict[str, Any]) -> tuple[int, int]:
    """Return the ids before and after a text; raises as `of` does unless it is one each."""
    if processor["type"] != "TemplateProcessing":
        return processor["cls"][1], processor["sep"][1]
    before, _, after = processor["single"]
    known = processor["special_tokens"]
    (first,), (last,) = (known[each["SpecialToken"]["id"]]["ids"] for each in (before, after))
    return first, last
