"""Order and confidence of candidates that no index of this host holds, as of a host's own hits.

A fleet's database finds texts by words and vectors. Their scores, term overlap, features and
confidence are those of the host's search; what that takes from its catalogue, such as rarity, is
counted over the database by the caller (words, cosines) or over the candidates (values).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from opdbus.index.database.store import Content, Entry
from opdbus.index.query import query_terms, question_patterns
from opdbus.index.ranking import confidence
from opdbus.index.ranking.confidence import RatedHit, rate
from opdbus.index.ranking.scores import (
    NAME_BOOST,
    TYPICAL_BASELINE,
    WHOLE_QUERY_NAME_BOOST,
    CosineBaseline,
    Score,
    bm25_upper_bound,
    idf,
    value_shares,
)
from opdbus.index.search import hit_features
from opdbus.index.search.lexical_matches import LEAST_NAMED, TELLING, boost_kinds, find_missing
from opdbus.index.vectors.vector_index import small_host
from opdbus.language import kinds, vocabulary
from opdbus.state.object import Identity, Json, canonical

_WORD: Final = re.compile(r"[^\W_]+")
# The constants of FTS5's BM25.
_K1: Final = 1.2
_B: Final = 0.75
_MODE: Final = "hybrid"
_WORDS_ONLY: Final = "lexical"


class Candidate(NamedTuple):
    """An object's state and text; `level` is that of its cosine, empty without one."""

    identity: Identity
    properties: Mapping[str, Json]
    text: str
    cosine: float = 0.0
    level: str = ""
    mean: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Corpus:
    """In how many of all texts each word of a question is."""

    counts: Mapping[str, int]
    texts: int


class Rated(NamedTuple):
    """A candidate by its place among those given, with its score and rating."""

    place: int
    score: Score
    rating: RatedHit


def order(question: str, candidates: Sequence[Candidate], corpus: Corpus) -> list[Rated]:
    """Return the candidates, best first, with the confidence that a host's search gives.

    Those of several levels are merged by their rank, since cosines of two models do not compare.
    """
    if not candidates:
        return []
    rows: Sequence[tuple[Entry, Score]] = _scores(question, candidates, corpus)
    contents = {entry.id: _content(candidates[entry.id]) for entry, _ in rows}
    missing = find_missing(question, corpus.counts, corpus.texts)
    rows = hit_features.order_by_overlap(question, missing, rows, contents)
    rows = _merge_levels(rows)
    rows = _add_features(question, rows, contents)
    is_compared = any(score.level for _, score in rows)
    rating = rate([score for _, score in rows], _MODE if is_compared else _WORDS_ONLY)
    found = [
        Rated(entry.id, score, _weaken(question, contents[entry.id], mark))
        for (entry, score), mark in zip(rows, rating, strict=True)
    ]
    return sorted(found, key=lambda each: each.rating.is_weak)


def _scores(
    question: str, candidates: Sequence[Candidate], corpus: Corpus
) -> list[tuple[Entry, Score]]:
    """Return the scores, best first, as `scores.rank` gives them."""
    form, reader = question_patterns.of(question), vocabulary.Reader()
    traits = [vocabulary.as_bytes(reader.traits(c.identity, c.properties)) for c in candidates]
    of_kinds = [kinds.of_object(each.identity.object_id) for each in candidates]
    masks = np.array([mask for mask, _ in of_kinds], np.int64)
    penalties = np.array([penalty for _, penalty in of_kinds], np.float32)
    own = [int.from_bytes(each, "little") for each in traits]
    having = [
        np.array([bool(each & bits) for each in own]) for bits in vocabulary.values_in(question)
    ]
    values = value_shares(having, max(corpus.texts, len(candidates) + 1))
    boosts = boost_kinds(form, masks, penalties, values)
    lexical = _lexical(candidates, corpus)
    is_left_out = hit_features.exclusion_rule(question)
    rows = []
    for place, each in enumerate(candidates):
        boost = float(boosts[place])
        if boost > LEAST_NAMED and (not form.asked.subject or masks[place] & form.asked.subject):
            boost += _name_boost(question, each.identity.name, len(corpus.counts))
        score = Score(
            0.0,
            each.cosine,
            lexical[place],
            0.0 if values is None else float(values[place]),
            boost,
        )
        # few texts lack most words, compared by vectors or not
        baseline = CosineBaseline(each.mean, each.spread) if each.level else TYPICAL_BASELINE
        baseline = baseline._replace(small_host=small_host(corpus.texts))
        score = score.with_cosine(each.cosine, each.level, baseline)
        if not is_left_out(each.identity.object_id, score):
            entry = Entry(place, each.identity, 0, "", b"", 0, False, 0, traits[place])  # noqa: FBT003
            rows.append((entry, score))
    return sorted(rows, key=lambda row: -row[1].total)


def _name_boost(question: str, name: str, terms: int) -> float:
    """Return the boost of an object whose name is a word of the question, or all of it."""
    own = query_terms.name_forms(name)
    found = sum(
        NAME_BOOST * query_terms.certainty(word, terms)
        for word in query_terms.names(question)
        if word.lower() in own
    )
    return found + (WHOLE_QUERY_NAME_BOOST if question.strip().lower() in own else 0.0)


def _lexical(candidates: Sequence[Candidate], corpus: Corpus) -> list[float]:
    """Return the lexical scores, 0 to 1, by BM25 and the presence of rare terms.

    As `lexical_matches.read_matches`; the mean length is that of the candidates.
    """
    counts, texts = corpus.counts, max(1, corpus.texts)
    stems = {term: term[: query_terms.BEGINNING] for term in counts}
    most = bm25_upper_bound([*counts.values()], texts)
    telling = {t: bm25_upper_bound([n], texts) for t, n in counts.items() if n <= TELLING}
    words = [_WORD.findall(each.text.lower()) for each in candidates]
    mean = max(1.0, sum(map(len, words)) / len(words))
    found = []
    for each, own in zip(candidates, words, strict=True):
        of_word = Counter(word[: query_terms.BEGINNING] for word in own)
        whole = each.text.lower()
        times = {
            term: of_word[stem] or (1 if query_terms.is_identifier(term) and term in whole else 0)
            for term, stem in stems.items()
        }
        length = _K1 * (1 - _B + _B * len(own) / mean)
        bm25 = sum(
            idf(counts[term], texts) * number * (_K1 + 1) / (number + length)
            for term, number in times.items()
            if number
        )
        share = min(1.0, bm25 / most) if most else 0.0
        if telling:
            rare = sum(weight for term, weight in telling.items() if times[term])
            share = share / 2 + rare / sum(telling.values()) / 2
        found.append(min(1.0, share))
    return found


def _content(candidate: Candidate) -> Content:
    return Content(canonical(dict(candidate.properties)), candidate.text, b"")


def _merge_levels(rows: Sequence[tuple[Entry, Score]]) -> list[tuple[Entry, Score]]:
    """Return rows of several levels by their rank in their level; rows of words alone are last."""
    seen: Counter[str] = Counter()
    ranked = []
    for number, row in enumerate(rows):
        ranked.append((seen[row[1].level], number, row))
        seen[row[1].level] += 1
    return [row for _, _, row in sorted(ranked, key=lambda each: each[:2])]


def _add_features(
    question: str, rows: Sequence[tuple[Entry, Score]], contents: Mapping[int, Content]
) -> list[tuple[Entry, Score]]:
    """Add word similarity and mismatches to the best rows."""
    masks = [kinds.of_object(entry.identity.object_id)[0] for entry, _ in rows]
    has_kind = hit_features.has_asked_kind(question, np.array(masks, np.int64))
    best = hit_features.add_features(
        hit_features.ours(), question, rows[: confidence.COMPARED], contents, has_kind=has_kind
    )
    return [*best, *rows[confidence.COMPARED :]]


def _weaken(question: str, content: Content, rating: RatedHit) -> RatedHit:
    is_other = hit_features.has_other_number(question, content)
    return rating._replace(is_weak=rating.is_weak or is_other)
