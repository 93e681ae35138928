"""Plain words for names such as `chronyd` (glossary.tsv), and host words for everyday phrases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Final, NamedTuple

from opdbus.language import tables
from opdbus.language.vocabulary import stem

_UNITS = frozenset(
    "service socket timer target mount automount path slice scope device swap".split()
)
# Prefix after which a version begins in a name such as linux-image-6.1.0-35-amd64.
_BEFORE_NUMBER = re.compile(r"(?:.*[^\w.+~-])?", re.DOTALL)
_NUMBER = re.compile(r"-\d")
# Words of a question that are read; a longer one is a document with its own vocabulary.
_MOST_WORDS: Final = 64
# Cached questions: a search looks up its question twice.
_QUESTIONS: Final = 16


@cache
def glossary() -> Mapping[str, str]:
    """Read the glossary: the meaning of each name."""
    return {name: meaning for names, meaning in tables.rows("glossary") for name in names.split()}


def gloss(name: str) -> str:
    """Return the meaning of a whole name, "" if it has none; parts of names mislead.

    `python3-openssl` is not a programming language, and the account `systemd-timesync` not a
    manager.
    """
    meanings = glossary()
    return next((meanings[form] for form in _forms(name.lower()) if form in meanings), "")


def _forms(name: str) -> Iterator[str]:
    """Yield a name, and the name without the suffix, instance or number of a unit."""
    yield name
    stem, dot, suffix = name.rpartition(".")
    bare = stem if dot and suffix in _UNITS else name
    yield bare
    if "@" in bare:
        bare = bare[: bare.index("@")]
        yield f"{bare}@"
        yield bare
    before = _BEFORE_NUMBER.match(bare)
    number = _NUMBER.search(bare, before.end() if before else 0)
    # wg0 and linux-image-6.1.0-35-amd64
    yield bare[: number.start()] if number else bare.rstrip("0123456789")


class EverydayTerms(NamedTuple):
    """A phrase of a question and the words that hosts have for it, from everyday.tsv."""

    phrase: Sequence[str]
    words: Sequence[str]


@lru_cache(maxsize=_QUESTIONS)
def find_synonyms(question: str) -> Sequence[EverydayTerms]:
    """Return the phrases of a question with synonyms that it does not have itself."""
    asked = tables.words_of(question)[:_MOST_WORDS]
    phrases, meanings = _everyday()
    found = []
    for at, length, rows in phrases.find(asked, lambda _at: True):
        words = (word for n, row in enumerate(meanings) if rows >> n & 1 for word in row)
        others = tuple(word for word in dict.fromkeys(words) if word not in asked)
        found.append(EverydayTerms(asked[at : at + length], others))
    return found


@cache
def _everyday() -> tuple[tables.Phrases, Sequence[Sequence[str]]]:
    """Return the phrases of the table, and the words of each of its rows."""
    rows = tables.rows("everyday")
    phrases = ((phrases, 1 << number) for number, (phrases, _) in enumerate(rows))
    return tables.Phrases(phrases, stem), [words.split() for _, words in rows]
