"""Words that no object has, as this host writes them: typing errors, beginnings, joined and split.

Only words that the host does not know are looked for, and of those none that the model knows: a
question about bread does not mean a break.
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

# Shorter words are too much like others.
_SHORTEST: Final = 4
_SHORTEST_PART: Final = 3
# Two shorter ones may well make another word; a longer question is not looked through for any.
_SHORTEST_JOINED: Final = 5
_MOST_PAIRED: Final = 32
# Of a word with a typing error, so much is enough as the beginning of one.
_LONG: Final = 6
# Longer ones are no words, and questions of more unknown ones are no questions to this host.
_LONGEST: Final = 24
_MOST: Final = 8
# Objects in which the whole word is looked for that begins so.
_LOOKED_AT: Final = 20

_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class Correction:
    """Words of a question, and what is looked for instead."""

    asked: str
    meant: str


def unknown_words(store: Store, question: str) -> list[str]:
    """Return the words of a question that no object has."""
    words = [
        word for word in query_terms.terms(question) if _SHORTEST_PART <= len(word) <= _LONGEST
    ]
    found = [w for w in words if w.isalpha() and w.isascii() and not store.words.having(w, 1)]
    return found if len(found) <= _MOST else []


def find_compounds(question: str, named: Callable[[str], Sequence[int]]) -> list[Correction]:
    """Return what two words of a question are that make the name of a thing: `on call`.

    `named` gives the places of what has a name.
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
    """Return the corrections of words that no object has one after the other."""
    return [each for each in found if not store.words.having(each.asked, 1)]


class WordLookup(Protocol):
    """Tells which words there are."""

    def begun(self, beginnings: Sequence[str]) -> list[str]:
        """Return those with which words of objects begin, and go on, of some of letters only."""


def corrections(
    store: Store,
    question: str,
    missing: Sequence[str],
    wrong: Sequence[str],
    lookup: WordLookup | None = None,
) -> list[Correction]:
    """Return what is meant by words that no object has, where that is found.

    Any of the `missing` may be a part of a word; the `wrong` ones are no words of any language.
    Without a `lookup` the database is asked which words there are, for a second among millions.
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
    """Return a question as it is meant."""
    for each in found:
        asked = r"[\W_]+".join(map(re.escape, each.asked.split()))
        question = re.sub(rf"\b{asked}\b", each.meant, question, flags=re.IGNORECASE)
    return question


def _meant(store: Store, word: str, there: WordLookup) -> str:
    # a name that the glossary knows is no other one: `sshd` is not `ssh`
    mistyped = "" if gloss(word) else _mistyped(store, word, there)
    return _begun(store, word) or mistyped or _joined(store, word)


def _begun(store: Store, word: str) -> str:
    """Return the word that most objects have of those that begin so."""
    forms = _forms(store, word, "[a-z]+")
    return max(forms, key=lambda form: forms[form], default="")


def _mistyped(store: Store, word: str, there: WordLookup) -> str:
    """Return the word that most objects have of those one edit away, or of which that begins."""
    edits = set(_edits(word))
    forms = store.words.known(sorted(edits - query_terms.STOP_WORDS))
    counts = {form: store.words.count_matches(form) for form in forms}
    most = max(counts.values(), default=0)
    # several forms have one stem
    likely = [form for form, count in counts.items() if count == most][:_MOST]
    if found := next((form for form in likely if _forms(store, form, "")), ""):
        return found
    begun = there.begun(sorted(edit for edit in edits if len(edit) >= _LONG))[:_MOST]
    whole = (_begun(store, beginning) for beginning in begun)
    return next(filter(None, (*whole, *sorted(edits & query_terms.STOP_WORDS))), "")


def _forms(store: Store, word: str, ending: str) -> Counter[str]:
    """Count the words that begin so and have such an ending, in some objects."""
    texts = store.words.beginning(word, _LOOKED_AT)
    return Counter(form for text in texts for form in re.findall(rf"\b{word}{ending}\b", text))


def _edits(word: str) -> Iterator[str]:
    """Yield the words that differ by one letter, or by two that are swapped."""
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
    """Return two words of which this one was made, if some object has one after the other."""
    for at in range(_SHORTEST_PART, len(word) - _SHORTEST_PART + 1):
        phrase = f"{word[:at]} {word[at:]}"
        if store.words.having(phrase, 1):
            return phrase
    return ""
