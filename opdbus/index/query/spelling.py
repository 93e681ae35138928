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
from typing import Final, Protocol

from opdbus.index.database.store import Store
from opdbus.index.query import query_terms
from opdbus.language.glossary import gloss

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


def find_compounds(question: str, named: Callable[[str], Sequence[int]]) -> list[Correction]:
    """Return each two adjacent words that joined are the name of an object: `on call`.

    `named` returns the places of the entries with a name.
    """
    pairs = pairwise(_WORD.findall(question.lower())[:_MOST_PAIRED])
    return [
        Correction(f"{first} {second}", first + second)
        for first, second in dict.fromkeys(pairs)
        if min(len(first), len(second)) > 1
        and len(first + second) >= _SHORTEST_JOINED
        and named(first + second)
    ]


def without_known_phrases(store: Store, found: Sequence[Correction]) -> list[Correction]:
    """Return the corrections whose words no object has next to each other."""
    return [each for each in found if not store.words.having(each.asked, 1)]


class WordLookup(Protocol):
    """A dictionary of the words of all objects."""

    def begun(self, beginnings: Sequence[str]) -> list[str]:
        """Return those of the beginnings that a word of some object, all of letters, continues."""


def corrections(
    store: Store,
    question: str,
    missing: Sequence[str],
    wrong: Sequence[str],
    lookup: WordLookup | None = None,
) -> list[Correction]:
    """Return replacements for words that no object has.

    Any of the `missing` words may be part of a compound; the `wrong` ones may be typing errors.
    Without a `lookup` the database is asked, which takes about a second among millions of objects.
    """
    found: list[Correction] = []
    left = list(wrong)
    for first, second in pairwise(_WORD.findall(question.lower())):
        if (first in missing or second in missing) and store.words.having(first + second, 1):
            found.append(Correction(f"{first} {second}", first + second))
            left = [word for word in left if word not in {first, second}]
    meant = {
        word: _meant(store, word, lookup or store.words) for word in left if len(word) >= _SHORTEST
    }
    return found + [Correction(word, form) for word, form in meant.items() if form]


def corrected(question: str, found: Sequence[Correction]) -> str:
    """Return a question with the corrections made."""
    for each in found:
        asked = r"[\W_]+".join(map(re.escape, each.asked.split()))
        question = re.sub(rf"\b{asked}\b", each.meant, question, flags=re.IGNORECASE)
    return question


def _meant(store: Store, word: str, there: WordLookup) -> str:
    # a name in the glossary is not a typing error: `sshd` is not `ssh`
    mistyped = "" if gloss(word) else _mistyped(store, word, there)
    return _begun(store, word) or mistyped or _joined(store, word)


def _begun(store: Store, word: str) -> str:
    """Return the most frequent longer word that begins with this one, "" if there is none."""
    forms = _forms(store, word, "[a-z]+")
    return max(forms, key=lambda form: forms[form], default="")


def _mistyped(store: Store, word: str, there: WordLookup) -> str:
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
    begun = there.begun(sorted(edit for edit in edits if len(edit) >= _LONG))[:_MOST]
    whole = (_begun(store, beginning) for beginning in begun)
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


def _joined(store: Store, word: str) -> str:
    """Return the two words that this one joins, if some object has them next to each other."""
    for at in range(_SHORTEST_PART, len(word) - _SHORTEST_PART + 1):
        phrase = f"{word[:at]} {word[at:]}"
        if store.words.having(phrase, 1):
            return phrase
    return ""
