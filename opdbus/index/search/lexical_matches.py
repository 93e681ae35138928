"""Lexical scores and boosts of entries for a query: words, values, kinds and names."""

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

# A word in more entries distinguishes little.
_TELLING: Final = 500
# An identifier in more entries, such as a common port, means none of them.
_FEW: Final = 5
# A state of a larger share of entries is an ordinary one.
_USUAL_STATE: Final = 0.04
_ADJECTIVE_AND_NOUN: Final = 2
# A host with fewer objects lacks most words that are about it.
_FEW_OBJECTS: Final = 30
# Weight of an everyday word beside the question's own, and the idf at which it is full.
_EVERYDAY_WEIGHT: Final = 0.3
_RARE: Final = 5.0
# Everyday words in more entries are skipped.
_MANY: Final = 20_000
# Objects of kinds with a larger penalty get no boost for their name.
_LEAST_NAMED: Final = -0.05


@dataclass(frozen=True, slots=True)
class LexicalMatches:
    """Lexical matches of a question: shares (entries,) by place, and literal values.

    `terms` counts the search terms of `question`. A share, 0 to 1, is the mean of the share of the
    highest possible BM25 score and the share of the rare terms.
    """

    question: str
    terms: int
    shares: NDArray[np.float32]
    literals: Sequence[Literal] = ()
    missing: Missing = NOTHING_MISSING

    def at(self, places: NDArray[np.intp] | None) -> "LexicalMatches":
        """Return the matches of the entries at some places; all if None."""
        return self if places is None else replace(self, shares=self.shares[places])


def compute_boosts(
    matches: LexicalMatches,
    compared: Sequence[ComparedValue],
    catalogue: Catalogue,
    at: NDArray[np.intp] | None = None,
) -> BoostPlan:
    """Compute the boosts for values, kinds and exact names in a question.

    For all entries, or for those at the places `at`.
    """
    view, question = catalogue.view, matches.question
    form = question_patterns.of(question)
    if compared and not form.asked.named:
        form = form._replace(asked=RequestedKinds(_sorts_of(compared, view), 0))
    having = _of_subject(list(_having(matches, compared, view)), form.asked.subject, view)
    # count all places: the number of free ones depends on what has gone since the start
    values = named_values(having, len(view.places), EVERY if at is None else at)
    if values is not None and form.is_pure:
        # an object with all values is the answer, however many there are
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

    # a word that is a value does not count as a name, too
    names = set(query_terms.names(question)).difference(one.word for one in matches.literals)
    places = {name: _among(at, entries, catalogue.named(name)) for name in names}
    # a question that consists of a name asks for the object of that name
    alone = _among(at, entries, catalogue.named(question.strip()))
    named = np.array(sorted({*alone, *chain.from_iterable(places.values())}), np.intp)
    more = unnamed(named).kinds
    for name, some in places.items():
        number = np.searchsorted(named, some)
        # packages, accounts and groups often have ordinary words as names
        number = number[more[number] > _LEAST_NAMED]
        if form.asked.subject:
            # `processes of alice` does not ask for the account
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
    """Return the indices of places in `at`, which is sorted; without it, the places themselves."""
    if at is None:
        # entries may have been added since
        return [place for place in places if place < entries]
    found: list[int] = np.flatnonzero(np.isin(at, places)).tolist()
    return found


def _sorts_of(compared: Sequence[ComparedValue], view: EntryView) -> Kinds:
    """Return the kinds of the entries that meet comparisons."""
    met = [view.kinds[view.there(one.entries)] for one in compared]
    return int(np.bitwise_or.reduce(np.concatenate(met)))


def having_all(form: question_patterns.Form, view: EntryView) -> EntryRefs | None:
    """Return the entries with all values of a question, and of a kind it asks for.

    None if the question has fewer than two values, or if no entry has them all and it is not
    strict.
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
    """Return the masks of values that an object of the subject's kinds has; all if there are none.

    In `files that the administrator changed` no account is meant.
    """
    if not subject or len(having) <= 1:
        return having
    is_subject = [view.kinds[np.flatnonzero(mask)] & subject != 0 for mask in having]
    return [mask for mask, some in zip(having, is_subject, strict=True) if some.any()] or having


def _having(
    matches: LexicalMatches, compared: Sequence[ComparedValue], view: EntryView
) -> Iterator[NDArray[np.bool_]]:
    """Yield a mask (entries,) of the entries that have it, for each value that a question names."""
    entries = len(matches.shares)
    for bits in vocabulary.asked(matches.question):
        yield _having_any(bits, view.traits[:entries])
    # entries may have been removed since the words were looked up
    found = [view.found(one.entries).places for one in matches.literals]
    found += [view.there(one.entries) for one in compared]
    for places in found:
        mask = np.zeros(entries, np.bool_)
        mask[places[places < entries]] = True
        yield mask


def _having_any(bits: vocabulary.Traits, traits: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask (entries,) of the entries that have one of some values."""
    meant = np.frombuffer(vocabulary.as_bytes(bits), np.uint64)
    words = np.flatnonzero(meant).tolist()
    found = np.empty(len(traits), np.bool_)
    for part in parts(len(traits)):
        found[part] = reduce(or_, (traits[part, word] & meant[word] != 0 for word in words))
    return found


def read(store: Store, lookup: Lookup | None, question: str, view: EntryView) -> LexicalMatches:
    """Return the lexical matches of a question; takes about a millisecond with words in memory."""
    # negated values are not searched: `not enabled` would find `enabled`
    denied = vocabulary.denied(question)
    terms: Sequence[str] = [term for term in query_terms.terms(question) if term not in denied]
    if not terms:
        return LexicalMatches(question, 0, np.zeros(len(view.entries), np.float32))
    terms = _without_state(question, terms, view)
    if question_patterns.is_statement(question):
        # the state in `the web server is down` would find what shuts the host down
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
        # without words in memory this would double the time of a search
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
    """Add to the shares of entries with everyday synonyms that lack the question's own words.

    Of several synonyms the rarest counts.
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
        # assigned in order of rarity, so that the rarest is kept
        for word, count in sorted(others.counts.items(), key=lambda one: -one[1]):
            if 0 < count <= _MANY:
                places = others.having(word)
                having.append(places[places < len(shares)])
                more[having[-1]] = weight * min(1.0, idf(count, objects) / _RARE)
        for term in own:
            places = found.having(term)
            more[places[places < len(shares)]] = 0
        places = np.concatenate(having)
        # duplicate places get the same value
        shares[places] = np.minimum(shares[places] + more[places], 1)


def _without_state(question: str, terms: Sequence[str], view: EntryView) -> Sequence[str]:
    """Return the terms without a leading state of many entries: `stopped database`.

    Entries in the state are boosted instead; the word would find what stops something.
    """
    said = vocabulary.asked(terms[0])
    if len(terms) < _ADJECTIVE_AND_NOUN or not said or not question.lower().startswith(terms[0]):
        return terms
    having = np.count_nonzero(_having_any(next(iter(said)), view.traits[: len(view.entries)]))
    return terms[1:] if having > _USUAL_STATE * len(view.places) else terms


def _missing(question: str, counts: Mapping[str, int], objects: int) -> Missing:
    """Return the share of a question that no object has; words that name values are not missing.

    Scales with the logarithm of the number of objects: small hosts lack most words.
    """
    said = {term for phrase in vocabulary.asked(question).values() for term in phrase.split()}
    unknown = [term for term, count in counts.items() if not count and term not in said]
    names = [term for term in unknown if gloss(term)]
    telling = max(0.0, math.log10(max(1, objects) / _FEW_OBJECTS)) / len(counts)
    return Missing(len(unknown) * telling, len(names) * telling)


def _covers(
    found: Bm25Scores, telling: Sequence[str], objects: int
) -> Iterator[tuple[NDArray[np.int32], float]]:
    """Yield the places of entries with each rare term, and the term's share of their idf.

    BM25 also rates frequency and length of text; this rates only presence.
    """
    having = [found.having(term) for term in telling]
    weights = [ceiling([len(places)], objects) for places in having]
    for weight, places in zip(weights, having, strict=True):
        yield places, weight / sum(weights)


def _meant(found: Bm25Scores, terms: Sequence[str]) -> NDArray[np.int32]:
    """Return the entries with every identifier of a question, none if more than `_FEW` have."""
    exact = [term for term in terms if query_terms.is_exact(term, len(terms))]
    having = [found.having(term) for term in exact]
    every = reduce(np.intersect1d, having) if having else np.empty(0, np.int32)
    return every if len(every) <= _FEW else every[:0]
