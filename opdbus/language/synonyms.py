"""Plain words for names such as `chronyd` (glossary.tsv), and host words for everyday phrases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.language import tables
from opdbus.language.vocabulary import stem
from opdbus.platform.regular_files import read_regular
from opdbus.state.object import digest

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


# Bytes of an administrator's file, and characters of one meaning in it.
_MOST_READ: Final = 1 << 20
_LONGEST: Final = 300
# Glosses of the administrator's file, which is read once, at start.
_ADDED: Final[dict[str, str]] = {}


@cache
def glossary() -> Mapping[str, str]:
    """Read the glossary: the meaning of each name."""
    rows = tables.rows("glossary")
    return {name: meaning for names, meaning in rows for name in names.split()} | _ADDED


def add_glosses(path: Path) -> list[str]:
    """Add the rows of an administrator's file, before any object is rendered.

    A name has the meaning of its last row, and that of the package's glossary nowhere. Return a
    sentence for each row that is left out, or for the file; a missing file is no fault.
    """
    try:
        data = read_regular(path, follow=True)
        if len(data) > _MOST_READ:
            return [f"{path} has more than {_MOST_READ:,} bytes"]
        text = data.decode()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        return [f"{path} cannot be read: {error}"]
    faults = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        names, *rest = (part.strip() for part in line.split("\t"))
        meaning = rest[0] if len(rest) == 1 else ""
        if not names or not 0 < len(meaning) <= _LONGEST:
            faults.append(
                f"{path}, line {number}: a row has names, one tab, and a meaning of at most"
                f" {_LONGEST} characters"
            )
            continue
        _ADDED.update(dict.fromkeys(names.lower().split(), meaning))
    glossary.cache_clear()
    return faults


def version() -> str:
    """Return a hash of the glossary; objects are rendered again when it changes."""
    added = digest(repr(sorted(_ADDED.items())).encode()).hex()[:8] if _ADDED else ""
    return tables.version("glossary") + added


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
