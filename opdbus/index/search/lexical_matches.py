"""Lexical scores and boosts of entries for a query: words, values, kinds and names.

A literal value in a question, such as `uid 0` or `zsh as shell`, boosts the entries that have it. A
number counts only next to the name of its field. A word counts if the name of its field is anywhere
in the question: `main` alone does not mean a routing table. Technical words such as `auto-restart`,
`SIGABRT` or `noexec` count without a field name.
"""

import math
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial, reduce
from operator import or_
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.catalogue.entry_view import EntryView
from opdbus.index.database.store import Store
from opdbus.index.fulltext.bm25 import Bm25Scores, bm25_scores
from opdbus.index.fulltext.word_index import Lookup
from opdbus.index.query import query_terms, question_patterns
from opdbus.index.query.query_parser import ComparedValue
from opdbus.index.ranking.scores import (
    NAME_BOOST,
    WHOLE_QUERY_NAME_BOOST,
    Boosts,
    Missing,
    bm25_upper_bound,
    idf,
    kind_boosts,
    value_shares,
)
from opdbus.language import vocabulary
from opdbus.language.kinds import Kinds, RequestedKinds
from opdbus.language.synonyms import find_synonyms, gloss
from opdbus.language.tables import NUMBERS
from opdbus.platform.lean_imports import distinct
from opdbus.state.fields import leaves, split
from opdbus.state.flatten import singular
from opdbus.state.object import Json

# A word in more entries distinguishes little.
TELLING: Final = 500
# An identifier in more entries, such as a common port, means none of them.
_FEW: Final = 5
# A host with fewer objects lacks most words that are about it.
_FEW_OBJECTS: Final = 30
# Weight of an everyday word beside the question's own, and the idf at which it is full.
_EVERYDAY_WEIGHT: Final = 0.3
_RARE: Final = 5.0
# Everyday words in more entries are skipped.
_MANY: Final = 20_000
# Objects of kinds with a larger penalty get no boost for their name.
LEAST_NAMED: Final = -0.05
# A word in more objects distinguishes little; a field name with a number may be in more.
_MOST_WITH_VALUE: Final = 100
_MOST_WITH_NUMBER: Final = 1000
# Larger objects are not searched for values.
_MOST_READ: Final = 8192
# A question with more values is a document.
_MAX_VALUES: Final = 16

_in_both = partial(np.intersect1d, assume_unique=True)

_TOKEN = re.compile(r"[^\W\d_]+|(?<![\w.:/-])\d+(?![\w:/-]|\.\d)")
# 51820/udp
_PORT = re.compile(r"\b(\d{1,5})/(?:tcp|udp)\b")
# the exit status 203 of a line with "status=203/EXEC"
_STATUS = re.compile(r"\bstatus=(\d{1,3})\b")
# Words allowed between the name of a field and its number.
_BETWEEN: Final = query_terms.STOP_WORDS | frozenset("number nr value equal equals set".split())
# Numbers in words, without `one`, which rarely means 1.
_DIGITS: Final = {word: str(number) for word, number in NUMBERS.items() if number > 1}
# Fields whose values are all technical words, and fields where only words in capitals or with a
# hyphen are.
_TECHNICAL: Final = frozenset("fstype option".split())
_STATES: Final = frozenset("class mode restart result scope signal state status type".split())


class Literal(NamedTuple):
    """A value in a question and the ids of entries that have it; `word` is "" for a number."""

    word: str
    entries: Sequence[int]


class LexicalMatches(NamedTuple):
    """Lexical matches of a question: scores (entries,) by place, 0 to 1, and literal values.

    `terms` counts the search terms of `question`. A share, 0 to 1, is the mean of the share of the
    highest possible BM25 score and the share of the rare terms.
    """

    question: str
    terms: int
    scores: NDArray[np.float32]
    literals: Sequence[Literal] = ()
    missing: Missing = Missing()

    def at(self, places: NDArray[np.intp] | None) -> "LexicalMatches":
        """Return the matches of the entries at some places; all if None."""
        return self if places is None else self._replace(scores=self.scores[places])


def compute_boosts(
    matches: LexicalMatches, compared: Sequence[ComparedValue], catalogue: Catalogue
) -> Boosts:
    """Compute the boosts of all entries for values, kinds and exact names in a question."""
    view, question, entries = catalogue.view, matches.question, len(matches.scores)
    form, kinds = question_patterns.of(question), view.kind_masks[:entries]
    if compared and not form.asked.named:
        met = [view.kind_masks[view.existing(one.entries)] for one in compared]
        met_kinds = int(np.bitwise_or.reduce(np.concatenate(met)))
        form = form._replace(asked=RequestedKinds(met_kinds, 0))
    having = _having(matches, compared, view, form.asked.subject)
    # count all places: the number of free ones depends on what has gone since the start
    values = value_shares(having, len(view.places))
    if values is not None and form.is_pure:
        # an object with all values is the answer, however many there are
        is_meant = reduce(np.logical_and, having)
        if form.asked.subject:
            is_meant = is_meant & (kinds & form.asked.subject != 0)
        values[is_meant] = 1.0
    boosts = boost_kinds(form, kinds, view.penalties[:entries], values)
    _add_names(boosts, matches, catalogue, form.asked.subject)
    return Boosts(values, boosts)


def boost_kinds(
    form: question_patterns.Form,
    kinds: NDArray[np.int64],
    penalties: NDArray[np.float32],
    values: NDArray[np.float32] | None,
) -> NDArray[np.float32]:
    """Return the boosts (entries,) of kinds for a question's form; damps `values` in place."""
    for others, amount in form.less:
        penalties = np.where(kinds & others != 0, np.float32(amount), penalties)
    if values is not None and form.damped:
        is_damped = form.damped == question_patterns.EVERY or kinds & form.damped != 0
        values *= np.where(is_damped, np.float32(question_patterns.DAMPED), np.float32(1))
    return kind_boosts(form.asked, kinds, penalties, values)


def _add_names(
    boosts: NDArray[np.float32], matches: LexicalMatches, catalogue: Catalogue, subject: Kinds
) -> None:
    """Add to the boosts of entries whose name is a word of a question, or all of it."""
    # a word that is a value does not count as a name, too
    literals = {one.word for one in matches.literals}
    for name in query_terms.names(matches.question):
        # entries may have been added since
        named = catalogue.named(name) if name not in literals else ()
        places = np.array([place for place in named if place < len(boosts)], np.intp)
        # packages, accounts and groups often have ordinary words as names
        places = places[boosts[places] > LEAST_NAMED]
        if subject:
            # `processes of alice` does not ask for the account
            places = places[catalogue.view.kind_masks[places] & subject != 0]
        boosts[places] += NAME_BOOST * query_terms.certainty(name, matches.terms)
    # a question that consists of a name asks for the object of that name
    alone = catalogue.named(matches.question.strip())
    boosts[[place for place in alone if place < len(boosts)]] += WHOLE_QUERY_NAME_BOOST


def _having(
    matches: LexicalMatches, compared: Sequence[ComparedValue], view: EntryView, subject: Kinds
) -> Sequence[NDArray[np.bool_]]:
    """Return a mask (entries,) of the entries that have it, for each value that a question names.

    Of several values only those count that an object of the kinds `subject` has, if there are any:
    in `files that the administrator changed` no account is meant.
    """
    entries = len(matches.scores)
    asked = vocabulary.values_in(matches.question)
    masks = [entries_having(bits, view.traits[:entries]) for bits in asked]
    # entries may have been removed since the words were looked up
    found = [view.refs_of(one.entries).places for one in matches.literals]
    found += [view.existing(one.entries) for one in compared]
    for places in found:
        masks.append(np.zeros(entries, np.bool_))
        masks[-1][places[places < entries]] = True
    if not subject or len(masks) <= 1:
        return masks
    is_subject = view.kind_masks[:entries] & subject != 0
    return [mask for mask in masks if (mask & is_subject).any()] or masks


def entries_having(bits: vocabulary.Traits, traits: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask (entries,) of the entries that have one of some values."""
    meant = np.frombuffer(vocabulary.as_bytes(bits), np.uint64)
    words = np.flatnonzero(meant).tolist()
    return reduce(or_, (traits[:, word] & meant[word] != 0 for word in words))


def read_matches(
    store: Store, lookup: Lookup | None, question: str, view: EntryView
) -> LexicalMatches:
    """Return the lexical matches of a question; takes about a millisecond with words in memory."""
    # negated values are not searched: `not enabled` would find `enabled`
    denied = vocabulary.negated_words(question)
    terms = [term for term in query_terms.terms(question) if term not in denied]
    if not terms:
        return LexicalMatches(question, 0, np.zeros(view.end, np.float32))
    found = bm25_scores(store, lookup, terms, view)
    scores, objects = found.scores(), len(view.places)
    scores /= np.float32(bm25_upper_bound([*found.counts.values()], objects))
    np.minimum(scores, 1, out=scores)
    # BM25 also rates frequency and length of text; this rates only the presence of rare terms
    if telling := [found.having(term) for term in terms if found.counts[term] <= TELLING]:
        scores /= 2
        weights = [bm25_upper_bound([len(places)], objects) for places in telling]
        for weight, places in zip(weights, telling, strict=True):
            there = places[places < len(scores)]
            scores[there[scores[there] > 0]] += weight / sum(weights) / 2
    if lookup:
        # without words in memory this would double the time of a search
        _add_everyday(scores, store, lookup, question, found, view)
    exact = [term for term in terms if query_terms.is_exact(term, len(terms))]
    if exact:
        meant = reduce(_in_both, map(distinct, map(found.having, exact)))
        if len(meant) <= _FEW:
            scores[meant[meant < len(scores)]] = 1.0
    literals = read_literals(store, question, found.counts)
    missing = find_missing(question, found.counts, objects)
    return LexicalMatches(question, len(terms), scores, literals, missing)


def _add_everyday(
    scores: NDArray[np.float32],
    store: Store,
    lookup: Lookup,
    question: str,
    found: Bm25Scores,
    view: EntryView,
) -> None:
    """Add to the scores of entries with everyday synonyms that lack the question's own words.

    Of several synonyms the rarest counts.
    """
    objects = len(view.places)
    rarity = {term: idf(count, objects) for term, count in found.counts.items()}
    for phrase in find_synonyms(question):
        own = [term for term in phrase.phrase if term in rarity]
        weight = _EVERYDAY_WEIGHT * sum(map(rarity.__getitem__, own)) / sum(rarity.values())
        if not weight or not phrase.words:
            continue
        others = bm25_scores(store, lookup, phrase.words, view)
        extra, having = np.zeros(len(scores), np.float32), [np.empty(0, np.int32)]
        # assigned in order of rarity, so that the rarest is kept
        for word, count in sorted(others.counts.items(), key=lambda one: -one[1]):
            if 0 < count <= _MANY:
                places = others.having(word)
                having.append(places[places < len(scores)])
                extra[having[-1]] = weight * min(1.0, idf(count, objects) / _RARE)
        for term in own:
            places = found.having(term)
            extra[places[places < len(scores)]] = 0
        places = np.concatenate(having)
        # duplicate places get the same value
        scores[places] = np.minimum(scores[places] + extra[places], 1)


def find_missing(question: str, counts: Mapping[str, int], objects: int) -> Missing:
    """Return the share of a question that no object has; words that name values are not missing.

    Scales with the logarithm of the number of objects: small hosts lack most words.
    """
    said = {term for phrase in vocabulary.values_in(question).values() for term in phrase.split()}
    unknown = [term for term, count in counts.items() if not count and term not in said]
    names = [term for term in unknown if gloss(term)]
    telling = max(0.0, math.log10(max(1, objects) / _FEW_OBJECTS)) / len(counts)
    return Missing(len(unknown) * telling, len(names) * telling)


def read_literals(store: Store, question: str, matches: Mapping[str, int]) -> list[Literal]:
    """Return the values of a question that objects have; `matches` counts the objects by term."""
    found = [
        Literal("", store.words.having(phrase, _MOST_WITH_NUMBER)) for phrase in _numbered(question)
    ]
    # words of values that a question negates: `not run as root`
    phrases = map(str.split, vocabulary.values_in(question).values())
    denied = {word for first, *others in phrases if first == "not" for word in others}
    words = [
        word
        for word in query_terms.names(question)
        if matches.get(word.lower(), 0) <= _MOST_WITH_VALUE and word.lower() not in denied
    ]
    # words of the question that may name fields
    fields = {form for word in split(question) for form in (word, singular(word))}
    found += [Literal(word, _having_value(store, word, fields)) for word in words[:_MAX_VALUES]]
    return [literal for literal in found if literal.entries]


def _numbered(question: str) -> list[str]:
    """Return a phrase `name number` for each number and the word before or after it."""
    words = (_DIGITS.get(word, word) for word in _TOKEN.findall(question.lower()))
    tokens = [word for word in words if word not in _BETWEEN]
    found: dict[str, None] = {}
    for at, token in enumerate(tokens):
        if token.isdecimal():
            beside = (*tokens[max(0, at - 1) : at], *tokens[at + 1 : at + 2])
            found |= dict.fromkeys(f"{word} {token}" for word in beside)
    for name, pattern in (("port", _PORT), ("status", _STATUS)):
        found |= dict.fromkeys(f"{name} {number}" for number in pattern.findall(question.lower()))
    return list(found)[:_MAX_VALUES]


def _having_value(store: Store, word: str, fields: AbstractSet[str]) -> list[int]:
    """Return the ids of entries in which one of the fields has a word as its value."""
    value = word.lower()
    keys = (fields - {value}) | _TECHNICAL
    if "-" in word or word.isupper():
        keys |= _STATES

    def has(path: str, found: Json) -> bool:
        """Return whether a value equals the word, lists it, ends in it, or is its service."""
        if not isinstance(found, str):
            return False
        text, words = found.lower().removesuffix(".service"), split(path)
        is_value = text == value or text.endswith(f"/{value}") or value in text.split(",")
        return is_value and bool(words) and singular(words[-1]) in keys

    return [
        entry
        for entry, properties in store.words.properties_having(word, _MOST_WITH_VALUE, _MOST_READ)
        if any(has(path, found) for path, _, found in leaves(properties))
    ]
