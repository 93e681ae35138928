"""Spelling correction: typing errors, truncated, joined and split words.

Corrects only words that no object has; for typing errors, only those that the model does not have
as one token either: `bread` does not mean `break`.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from opdbus.index.database.store import Store
from opdbus.index.fulltext.word_index import Lookup
from opdbus.index.query import query_terms
from opdbus.language.synonyms import gloss

# Minimum length for correction: shorter words have too many neighbours.
_SHORTEST: Final = 4
_SHORTEST_PART: Final = 3
# Minimum length of a compound, and words searched for pairs: two short words often make another
# word.
_SHORTEST_JOINED: Final = 5
_MOST_PAIRED: Final = 32
# Minimum length of a corrected word that is only the beginning of a known one.
_LONG: Final = 6
# Longer strings are not words; a question with more unknown words is not about this host.
_LONGEST: Final = 24
_MOST: Final = 8
# Objects searched for the completions of a word.
_LOOKED_AT: Final = 20

_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class Correction:
    """Words of a question and their replacement."""

    asked: str
    meant: str


def unknown_words(store: Store, question: str) -> list[str]:
    """Return the ASCII words of a question that no object has; [] if more than `_MOST`."""
    words = [
        word for word in query_terms.terms(question) if _SHORTEST_PART <= len(word) <= _LONGEST
    ]
    found = [w for w in words if w.isalpha() and w.isascii() and not store.words.having(w, 1)]
    return found if len(found) <= _MOST else []


def find_compounds(
    store: Store, question: str, named: Callable[[str], Sequence[int]]
) -> list[Correction]:
    """Return each two adjacent words that joined are the name of an object: `on call`.

    `named` returns the places of the entries with a name. Words that an object has next to each
    other are left out.
    """
    pairs = pairwise(_WORD.findall(question.lower())[:_MOST_PAIRED])
    return [
        Correction(f"{first} {second}", first + second)
        for first, second in dict.fromkeys(pairs)
        if min(len(first), len(second)) > 1
        and len(first + second) >= _SHORTEST_JOINED
        and named(first + second)
        and not store.words.having(f"{first} {second}", 1)
    ]


def corrections(
    store: Store,
    question: str,
    missing: Sequence[str],
    wrong: Sequence[str],
    lookup: Lookup | None = None,
) -> list[Correction]:
    """Return replacements for words that no object has.

    Any of the `missing` words may be part of a compound; the `wrong` ones may be typing errors.
    Without a `lookup` the database is asked, which is slower.
    """
    found: list[Correction] = []
    left = list(wrong)
    for first, second in pairwise(_WORD.findall(question.lower())):
        if (first in missing or second in missing) and store.words.having(first + second, 1):
            found.append(Correction(f"{first} {second}", first + second))
            left = [word for word in left if word not in {first, second}]
    for word in dict.fromkeys(word for word in left if len(word) >= _SHORTEST):
        # a name in the glossary is not a typing error: `sshd` is not `ssh`
        mistyped = "" if gloss(word) else _mistyped(store, word, lookup)
        if form := _longer(store, word) or mistyped or _two_words(store, word):
            found.append(Correction(word, form))
    return found


def apply_corrections(question: str, found: Sequence[Correction]) -> str:
    """Return a question with the corrections made."""
    for each in found:
        asked = r"[\W_]+".join(map(re.escape, each.asked.split()))
        question = re.sub(rf"\b{asked}\b", each.meant, question, flags=re.IGNORECASE)
    return question


def _longer(store: Store, word: str) -> str:
    """Return the most frequent longer word that begins with this one, "" if there is none."""
    return next((form for form, _ in _forms(store, word, "[a-z]+").most_common(1)), "")


def _mistyped(store: Store, word: str, lookup: Lookup | None) -> str:
    """Return a word one edit away.

    Prefers the one in most objects, then a word that one edit begins, then a stop word; "" if there
    is none.
    """
    edits = set(_edits(word))
    forms = store.words.existing_words(sorted(edits - query_terms.STOP_WORDS))
    counts = {form: store.words.count_matches(form) for form in forms}
    most = max(counts.values(), default=0)
    # forms of one stem have equal counts
    likely = [form for form, count in counts.items() if count == most][:_MOST]
    if found := next((form for form in likely if _forms(store, form, "")), ""):
        return found
    beginnings = sorted(edit for edit in edits if len(edit) >= _LONG)
    whole = (
        _longer(store, each) for each in (lookup or store.words).find_prefixes(beginnings)[:_MOST]
    )
    return next(filter(None, (*whole, *sorted(edits & query_terms.STOP_WORDS))), "")


def _forms(store: Store, word: str, ending: str) -> Counter[str]:
    """Count the words of some objects that are this one with an ending (a regular expression)."""
    texts = store.words.beginning(word, _LOOKED_AT)
    return Counter(form for text in texts for form in re.findall(rf"\b{word}{ending}\b", text))


def _edits(word: str) -> Iterator[str]:
    """Yield the words one edit away: a deletion, transposition, insertion or substitution.

    Nothing is inserted or substituted at the first letter.
    """
    for at in range(len(word)):
        before, after = word[:at], word[at:]
        yield before + after[1:]
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
        if at:
            for letter in string.ascii_lowercase:
                yield before + letter + after
                yield before + letter + after[1:]
    yield from (word + letter for letter in string.ascii_lowercase)


def _two_words(store: Store, word: str) -> str:
    """Return the two words that this one joins, if some object has them next to each other."""
    places = range(_SHORTEST_PART, len(word) - _SHORTEST_PART + 1)
    phrases = (f"{word[:at]} {word[at:]}" for at in places)
    return next((phrase for phrase in phrases if store.words.having(phrase, 1)), "")
