"""What entries have of a question: words, values, sorts and names, which raise them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus import vocabulary
from opdbus.glossary import gloss
from opdbus.index import forms, lexical, literal
from opdbus.index.catalogue import Catalogue
from opdbus.index.evidence import NOTHING_MISSING, Missing
from opdbus.index.forms import Form
from opdbus.index.literal import Literal
from opdbus.index.questions import Compared
from opdbus.index.scoring import Scored, scored
from opdbus.index.search import (
    ALONE_WEIGHT,
    NAME_WEIGHT,
    Raised,
    ceiling,
    named_kinds,
    named_values,
)
from opdbus.index.store import Store
from opdbus.index.view import View
from opdbus.index.word_index import Lookup

# A word that more objects have tells little.
_TELLING: Final = 500
# An identifier that more entries than this have, such as a common port, names none of them.
_FEW: Final = 5
# A host of no more objects has few of the words that are about it.
_FEW_OBJECTS: Final = 100
# Things that lose so much where nobody asks for their sort are not raised by their names.
_LEAST_NAMED: Final = -0.05


@dataclass(frozen=True, slots=True)
class Matches:
    """What has words of a question: shares of them (entries,) by place, and values.

    `question` is the part in which words were looked for, `terms` how many it has. A share is the
    mean of that of the highest BM25 score and that of the telling words.
    """

    question: str
    terms: int = 0
    shares: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    literals: Sequence[Literal] = ()
    missing: Missing = NOTHING_MISSING

    def shares_of(self, entries: int, within: NDArray[np.intp] | None) -> NDArray[np.float32]:
        """Return the shares of so many entries, or of those at some places."""
        # others may have come since the words were looked up
        known = len(self.shares)
        if within is None:
            return np.append(self.shares, np.zeros(entries - known, np.float32))
        shares = np.zeros(len(within), np.float32)
        shares[within < known] = self.shares[within[within < known]]
        return shares


NONE: Final = Matches("")


def raise_by(
    matches: Matches,
    compared: Sequence[Compared],
    catalogue: Catalogue,
    within: NDArray[np.intp] | None = None,
) -> Raised:
    """Raise what has the values, is of the sorts, or has the very name that words of it say.

    Of all entries, or of those at the places `within` some.
    """
    view = catalogue.view
    entries = slice(len(view.entries)) if within is None else within
    question, kinds = matches.question, view.kinds[entries]
    values = named_values(list(_having(matches, compared, catalogue)), entries)
    form = forms.of(question)
    asked, less, values = form.asked, view.less[entries], _damped(form, kinds, values)
    for sorts, amount in form.less:
        less = np.where(kinds & sorts != 0, np.float32(amount), less)
    more = named_kinds(asked, kinds, less, values)
    # a word that is a value is no name besides
    for name in set(lexical.names(question)).difference(one.word for one in matches.literals):
        # packages, accounts, groups and the like have names of ordinary words
        named = [at for at in _among(within, catalogue.named(name)) if more[at] > _LEAST_NAMED]
        if asked.subject:
            # `processes of alice` are not the account
            named = [at for at in named if kinds[at] & asked.subject]
        more[named] += NAME_WEIGHT * lexical.certainty(name, matches.terms)
    # a question that is nothing but a name asks for what has it
    more[_among(within, catalogue.named(question.strip()))] += ALONE_WEIGHT
    return Raised(values, more)


def _among(within: NDArray[np.intp] | None, places: Sequence[int]) -> Sequence[int]:
    """Return where some places are among others, which are in order, or among all."""
    if within is None:
        return places
    found: list[int] = np.flatnonzero(np.isin(within, places)).tolist()
    return found


def _damped(
    form: Form, kinds: NDArray[np.int64], values: NDArray[np.float32] | None
) -> NDArray[np.float32] | None:
    """Return what values count (entries,) in a question of a form."""
    if values is None or not form.damped:
        return values
    if form.damped == forms.EVERY:
        return values * np.float32(forms.DAMPED)
    return np.where(kinds & form.damped != 0, values * np.float32(forms.DAMPED), values)


def _having(
    matches: Matches, compared: Sequence[Compared], catalogue: Catalogue
) -> Iterator[NDArray[np.bool_]]:
    """Yield which entries (entries,) have each value that a question names."""
    view = catalogue.view
    traits = view.traits[: len(view.entries)]
    for bits in vocabulary.asked(matches.question):
        meant = np.frombuffer(vocabulary.as_bytes(bits), np.uint64)
        words = np.flatnonzero(meant)
        yield reduce(or_, (traits[:, word] & meant[word] != 0 for word in words))
    # entries may have gone since the words were looked up
    found = [view.found(one.entries).places for one in matches.literals]
    found += [view.there(one.entries) for one in compared]
    for places in found:
        mask = np.zeros(len(traits), np.bool_)
        mask[places] = True
        yield mask


def read(store: Store, lookup: Lookup | None, question: str, view: View) -> Matches:
    """Return what has words of a question; takes a millisecond where the words are in memory."""
    terms = lexical.terms(question)
    if not terms:
        return Matches(question)
    found = scored(store, lookup, terms, view)
    scores, objects = found.scores(), len(view.places)
    scores = np.minimum(scores / np.float32(ceiling([*found.counts.values()], objects)), 1)
    telling = [term for term in terms if found.counts[term] <= _TELLING]
    shares = scores
    if telling:
        shares = np.where(scores > 0, (scores + _covers(found, telling, view)) / 2, 0)
    shares[_named(found, terms)] = 1.0
    literals = literal.read(store, question, found.counts)
    missing = _missing(question, found.counts, objects)
    return Matches(question, len(terms), shares, literals, missing)


def _missing(question: str, counts: Mapping[str, int], objects: int) -> Missing:
    """Return how much of a question no object has; words that name values are known.

    It tells nothing on a host of a hundred objects, which has few words, and twice as much on one
    of ten thousand as on one of a thousand.
    """
    said = {term for phrase in vocabulary.asked(question).values() for term in phrase.split()}
    unknown = [term for term, count in counts.items() if not count and term not in said]
    names = [term for term in unknown if gloss(term)]
    telling = max(0.0, math.log10(max(1, objects) / _FEW_OBJECTS)) / len(counts)
    return Missing(len(unknown) * telling, len(names) * telling)


def _covers(found: Scored, telling: Sequence[str], view: View) -> NDArray[np.float32]:
    """Return how much each entry has of words that few have, a rare one counting most, at most 1.

    BM25 counts what is said often or in a short text; this counts which words are there at all.
    """
    having = [found.having(term) for term in telling]
    weights = [ceiling([len(places)], len(view.places)) for places in having]
    covers = np.zeros(len(view.entries), np.float32)
    for weight, places in zip(weights, having, strict=True):
        covers[places[places < len(covers)]] += weight / sum(weights)
    return covers


def _named(found: Scored, terms: Sequence[str]) -> NDArray[np.int32]:
    """Find the few entries that have every identifier of a question: they are meant literally."""
    exact = [term for term in terms if lexical.is_exact(term, len(terms))]
    having = [found.having(term) for term in exact]
    every = reduce(np.intersect1d, having) if having else np.empty(0, np.int32)
    return every if len(every) <= _FEW else every[:0]
