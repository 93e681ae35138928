"""What entries have of a question: words, values, sorts and names, which raise them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from operator import or_
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.catalogue.entry_view import EntryRefs, EntryView
from opdbus.index.database.store import Store
from opdbus.index.fulltext.bm25 import Bm25Scores, bm25_scores
from opdbus.index.fulltext.word_index import Lookup
from opdbus.index.query import literal_values, query_terms, question_patterns
from opdbus.index.query.literal_values import Literal
from opdbus.index.query.query_parser import ComparedValue
from opdbus.index.ranking.boosts import (
    ALONE_WEIGHT,
    EVERY,
    KIND_WEIGHT,
    NAME_WEIGHT,
    BoostPlan,
    Boosts,
    named_kinds,
    named_values,
)
from opdbus.index.ranking.confidence_features import NOTHING_MISSING, Missing
from opdbus.index.ranking.scores import ceiling, idf
from opdbus.language import everyday, vocabulary
from opdbus.language.glossary import gloss
from opdbus.language.kinds import Kinds, RequestedKinds
from opdbus.platform.slices import parts

# A word that more objects have tells little.
_TELLING: Final = 500
# An identifier that more entries than this have, such as a common port, names none of them.
_FEW: Final = 5
# A state that more of all have is one of many.
_USUAL_STATE: Final = 0.04
_ADJECTIVE_AND_NOUN: Final = 2
# A host of no more objects has few of the words that are about it.
_FEW_OBJECTS: Final = 30
# What a word of the same meaning counts beside one of the question, and if so few have it.
_EVERYDAY_WEIGHT: Final = 0.3
_RARE: Final = 5.0
# Words that more entries have are not looked at.
_MANY: Final = 20_000
# Things that lose so much where nobody asks for their sort are not raised by their names.
_LEAST_NAMED: Final = -0.05


@dataclass(frozen=True, slots=True)
class LexicalMatches:
    """What has words of a question: shares of them (entries,) by place, and values.

    `question` is the part in which words were looked for, `terms` how many it has. A share is the
    mean of that of the highest BM25 score and that of the telling words.
    """

    question: str
    terms: int
    shares: NDArray[np.float32]
    literals: Sequence[Literal] = ()
    missing: Missing = NOTHING_MISSING

    def at(self, places: NDArray[np.intp] | None) -> "LexicalMatches":
        """Return those of entries at some places, if any are given."""
        return self if places is None else replace(self, shares=self.shares[places])


def compute_boosts(
    matches: LexicalMatches,
    compared: Sequence[ComparedValue],
    catalogue: Catalogue,
    at: NDArray[np.intp] | None = None,
) -> BoostPlan:
    """Raise what has the values, is of the sorts, or has the very name that words of it say.

    Of all entries, or of those at some places.
    """
    view, question = catalogue.view, matches.question
    form = question_patterns.of(question)
    if compared and not form.asked.named:
        form = form._replace(asked=RequestedKinds(_sorts_of(compared, view), 0))
    having = _of_subject(list(_having(matches, compared, view)), form.asked.subject, view)
    # not the places: which of them are free depends on what has gone since the start
    values = named_values(having, len(view.places), EVERY if at is None else at)
    if values is not None and form.is_pure:
        # what has them all is the answer, however many have
        is_meant = reduce(np.logical_and, having)
        if form.asked.subject:
            is_meant = is_meant & (view.kinds[: len(is_meant)] & form.asked.subject != 0)
        values[is_meant[EVERY if at is None else at]] = 1.0
    entries = len(matches.shares) if at is None else len(at)

    def unnamed(some: NDArray[np.intp]) -> Boosts:
        there = some if at is None else at[some]
        sorts, less = view.kinds[there], view.less[there]
        for others, amount in form.less:
            less = np.where(sorts & others != 0, np.float32(amount), less)
        own = None if values is None else values[some]
        if own is not None and form.damped:
            is_damped = form.damped == question_patterns.EVERY or sorts & form.damped != 0
            own *= np.where(is_damped, np.float32(question_patterns.DAMPED), np.float32(1))
        return Boosts(own, named_kinds(form.asked, sorts, less, own))

    # a word that is a value is no name besides
    names = set(query_terms.names(question)).difference(one.word for one in matches.literals)
    places = {name: _among(at, entries, catalogue.named(name)) for name in names}
    # a question that is nothing but a name asks for what has it
    alone = _among(at, entries, catalogue.named(question.strip()))
    named = np.array(sorted({*alone, *chain.from_iterable(places.values())}), np.intp)
    more = unnamed(named).kinds
    for name, some in places.items():
        number = np.searchsorted(named, some)
        # packages, accounts, groups and the like have names of ordinary words
        number = number[more[number] > _LEAST_NAMED]
        if form.asked.subject:
            # `processes of alice` are not the account
            there = named[number] if at is None else at[named[number]]
            number = number[view.kinds[there] & form.asked.subject != 0]
        more[number] += NAME_WEIGHT * query_terms.certainty(name, matches.terms)
    more[np.searchsorted(named, alone)] += ALONE_WEIGHT

    def boost(some: NDArray[np.intp]) -> Boosts:
        found = unnamed(some)
        is_named = np.isin(some, named)
        found.kinds[is_named] = more[np.searchsorted(named, some[is_named])]
        return found

    most = max(KIND_WEIGHT if form.asked.named else 0.0, *(-amount for _, amount in form.less), 0.0)
    return BoostPlan(entries, boost, most, named, values)


def _among(at: NDArray[np.intp] | None, entries: int, places: Sequence[int]) -> list[int]:
    """Return where some places are among others, which are in order, or among all entries."""
    if at is None:
        # more may have come meanwhile
        return [place for place in places if place < entries]
    found: list[int] = np.flatnonzero(np.isin(at, places)).tolist()
    return found


def _sorts_of(compared: Sequence[ComparedValue], view: EntryView) -> Kinds:
    """Return the sorts that meet comparisons: what they are about."""
    met = [view.kinds[view.there(one.entries)] for one in compared]
    return int(np.bitwise_or.reduce(np.concatenate(met)))


def having_all(form: question_patterns.Form, view: EntryView) -> EntryRefs | None:
    """Return the entries that have all values of a question, and are of the sorts that it asks for.

    None where it has not several, or where nothing has them all, unless the question is strict.
    """
    if not form.values:
        return None
    masks = [_having_any(bits, view.traits[: view.end]) for bits in form.values]
    if form.holders:
        masks.append(view.kinds[: view.end] & form.holders != 0)
    places = np.flatnonzero(reduce(np.logical_and, masks) & (view.ids[: view.end] != 0))
    return EntryRefs(places, view.ids[places]) if len(places) or form.is_strict else None


def _of_subject(
    having: Sequence[NDArray[np.bool_]], subject: Kinds, view: EntryView
) -> Sequence[NDArray[np.bool_]]:
    """Return the values that something has that is asked for, or all: each says what has it.

    In `files that the administrator changed` no account is meant.
    """
    if not subject or len(having) <= 1:
        return having
    is_subject = [view.kinds[np.flatnonzero(mask)] & subject != 0 for mask in having]
    return [mask for mask, some in zip(having, is_subject, strict=True) if some.any()] or having


def _having(
    matches: LexicalMatches, compared: Sequence[ComparedValue], view: EntryView
) -> Iterator[NDArray[np.bool_]]:
    """Yield which entries (entries,) have each value that a question names."""
    entries = len(matches.shares)
    for bits in vocabulary.asked(matches.question):
        yield _having_any(bits, view.traits[:entries])
    # entries may have gone since the words were looked up
    found = [view.found(one.entries).places for one in matches.literals]
    found += [view.there(one.entries) for one in compared]
    for places in found:
        mask = np.zeros(entries, np.bool_)
        mask[places[places < entries]] = True
        yield mask


def _having_any(bits: vocabulary.Traits, traits: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which entries (entries,) have one of some values."""
    meant = np.frombuffer(vocabulary.as_bytes(bits), np.uint64)
    words = np.flatnonzero(meant).tolist()
    found = np.empty(len(traits), np.bool_)
    for part in parts(len(traits)):
        found[part] = reduce(or_, (traits[part, word] & meant[word] != 0 for word in words))
    return found


def read(store: Store, lookup: Lookup | None, question: str, view: EntryView) -> LexicalMatches:
    """Return what has words of a question; takes a millisecond where the words are in memory."""
    # what is not so is not looked for: `not enabled` would find `enabled`
    denied = vocabulary.denied(question)
    terms: Sequence[str] = [term for term in query_terms.terms(question) if term not in denied]
    if not terms:
        return LexicalMatches(question, 0, np.zeros(len(view.entries), np.float32))
    terms = _without_state(question, terms, view)
    if question_patterns.is_statement(question):
        # in `the web server is down` that would find what shuts the host down
        states = question_patterns.states(question)
        terms = [term for term in terms if term not in states] or terms
    found = bm25_scores(store, lookup, terms, view)
    shares, objects = found.scores(), len(view.places)
    shares /= np.float32(ceiling([*found.counts.values()], objects))
    np.minimum(shares, 1, out=shares)
    if telling := [term for term in terms if found.counts[term] <= _TELLING]:
        shares /= 2
        for places, share in _covers(found, telling, objects):
            there = places[places < len(shares)]
            shares[there[shares[there] > 0]] += share / 2
    if lookup:
        # the database would take as long for these words as for all others
        _add_everyday(shares, store, lookup, question, found, view)
    meant = _meant(found, terms)
    shares[meant[meant < len(shares)]] = 1.0
    literals = literal_values.read(store, question, found.counts)
    missing = _missing(question, found.counts, objects)
    return LexicalMatches(question, len(terms), shares, literals, missing)


def _add_everyday(
    shares: NDArray[np.float32],
    store: Store,
    lookup: Lookup,
    question: str,
    found: Bm25Scores,
    view: EntryView,
) -> None:
    """Add to the shares of what has other words for what a question says, and not its own.

    Of several words the best one counts: much, if few have it.
    """
    objects = len(view.places)
    rarity = {term: idf(count, objects) for term, count in found.counts.items()}
    for said in everyday.said(question):
        own = [term for term in said.phrase if term in rarity]
        weight = _EVERYDAY_WEIGHT * sum(map(rarity.__getitem__, own)) / sum(rarity.values())
        if not weight or not said.words:
            continue
        others = bm25_scores(store, lookup, said.words, view)
        more, having = np.zeros(len(shares), np.float32), [np.empty(0, np.int32)]
        # the rarest come last, and stay
        for word, count in sorted(others.counts.items(), key=lambda one: -one[1]):
            if 0 < count <= _MANY:
                places = others.having(word)
                having.append(places[places < len(shares)])
                more[having[-1]] = weight * min(1.0, idf(count, objects) / _RARE)
        for term in own:
            places = found.having(term)
            more[places[places < len(shares)]] = 0
        places = np.concatenate(having)
        # a place that is there twice gets the same
        shares[places] = np.minimum(shares[places] + more[places], 1)


def _without_state(question: str, terms: Sequence[str], view: EntryView) -> Sequence[str]:
    """Return the terms without a first one that is a state of many things: `stopped database`.

    What has the state is raised; the word would find what stops something.
    """
    said = vocabulary.asked(terms[0])
    if len(terms) < _ADJECTIVE_AND_NOUN or not said or not question.lower().startswith(terms[0]):
        return terms
    having = np.count_nonzero(_having_any(next(iter(said)), view.traits[: len(view.entries)]))
    return terms[1:] if having > _USUAL_STATE * len(view.places) else terms


def _missing(question: str, counts: Mapping[str, int], objects: int) -> Missing:
    """Return how much of a question no object has; words that name values are known.

    It tells nothing on a host of thirty objects, which has few words, and three times as much on
    one of a thousand as on one of a hundred.
    """
    said = {term for phrase in vocabulary.asked(question).values() for term in phrase.split()}
    unknown = [term for term, count in counts.items() if not count and term not in said]
    names = [term for term in unknown if gloss(term)]
    telling = max(0.0, math.log10(max(1, objects) / _FEW_OBJECTS)) / len(counts)
    return Missing(len(unknown) * telling, len(names) * telling)


def _covers(
    found: Bm25Scores, telling: Sequence[str], objects: int
) -> Iterator[tuple[NDArray[np.int32], float]]:
    """Yield what has each word that few have, and its share of all these, that of rare ones most.

    BM25 counts what is said often or in a short text; this counts which words are there at all.
    """
    having = [found.having(term) for term in telling]
    weights = [ceiling([len(places)], objects) for places in having]
    for weight, places in zip(weights, having, strict=True):
        yield places, weight / sum(weights)


def _meant(found: Bm25Scores, terms: Sequence[str]) -> NDArray[np.int32]:
    """Find the few entries that have every identifier of a question: they are meant literally."""
    exact = [term for term in terms if query_terms.is_exact(term, len(terms))]
    having = [found.having(term) for term in exact]
    every = reduce(np.intersect1d, having) if having else np.empty(0, np.int32)
    return every if len(every) <= _FEW else every[:0]
