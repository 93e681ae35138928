"""Synonyms: the words of hosts for everyday phrases, from everyday.tsv."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Final, NamedTuple

from opdbus.language import tables
from opdbus.language.vocabulary import stem

WORD: Final = re.compile(r"[a-z0-9]+")
# Words of a question that are read; a longer one is a document with its own vocabulary.
_MOST_WORDS: Final = 64
# Cached questions: a search looks up its question twice.
_QUESTIONS: Final = 16


class EverydayTerms(NamedTuple):
    """A phrase of a question and the words that hosts have for it."""

    phrase: Sequence[str]
    words: Sequence[str]


@lru_cache(maxsize=_QUESTIONS)
def said(question: str) -> Sequence[EverydayTerms]:
    """Return the phrases of a question with synonyms that it does not have itself."""
    asked = WORD.findall(question.lower())[:_MOST_WORDS]
    found = []
    for at, length, rows in _phrases().find(asked, lambda _at: True):
        words = (word for n, row in enumerate(_meanings()) if rows >> n & 1 for word in row)
        others = tuple(word for word in dict.fromkeys(words) if word not in asked)
        found.append(EverydayTerms(asked[at : at + length], others))
    return found


@cache
def _meanings() -> Sequence[Sequence[str]]:
    return [words.split() for _, words in tables.rows("everyday")]


@cache
def _phrases() -> tables.Phrases:
    rows = enumerate(tables.rows("everyday"))
    return tables.Phrases(((phrases, 1 << number) for number, (phrases, _) in rows), stem)
