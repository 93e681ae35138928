"""Ranking of changes: what a question is about, what it says to have happened, which sort it names.

Nothing is tuned to a day: see benchmarks/host/day.py.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from opdbus.history import event_questions
from opdbus.history.sentence_table import SentenceHit, Sentences
from opdbus.index.changes import change_relations
from opdbus.index.database.store import Store
from opdbus.index.query import query_terms
from opdbus.index.ranking.boosts import KIND_WEIGHT, NAME_WEIGHT
from opdbus.index.ranking.scores import LEXICAL_WEIGHT, CosineBaseline, ceiling
from opdbus.language import kinds

# What it counts that what a question says happened.
HAPPENED_WEIGHT: Final = 0.3
# Where a question says only what happened, to which sort of things: what it counts to be of it.
SORT_WEIGHT: Final = 0.5
# Of what is equally good the newest comes first.
NEWEST_WEIGHT: Final = 0.02
# Where no change has a word of a question, one has to have such a cosine with it. With each level,
# no question about the recorded days loses its answer so, and 31 to 33 of 34 about other things do.
_LEAST_COSINE: Final = 0.28
# A sentence is close to a question if its cosine is by so many standard deviations above those that
# the question has with any objects. No question about the recorded days loses its answer.
_CLOSE: Final = 2
# Of the sentences that are closest, that have words, and in which the same happened.
_CANDIDATES: Final = 256
# What asks for changes, and says nothing of what they are about.
_ASKING = re.compile(
    r"\b(?:what|which|who|when|where|why|how|did|does|do|has|have|had|was|were|is|are|been|be|"
    r"changed|changes|change|happened|happens|happen|became|become|becomes|anything|something|somebody|someone|"
    r"that|to|with|of|in|on|the|a|an|there|any|new|about|related|concerning|regarding|"
    r"touched|affected|ever|lately|recently|today|now)\b",
    re.IGNORECASE,
)
# `de-installed` is two words that say what happened
_PART = re.compile(r"[a-z0-9]+")
# The newest row that is meant of each sentence by its number, and how many are; None: all are.
Meant: TypeAlias = Mapping[int, tuple[int, int]] | None


class Near(NamedTuple):
    """The cosines of sentences with a question by their numbers, and what they are compared with.

    None are there where there is no engine.
    """

    cosines: Mapping[int, float]
    background: CosineBaseline | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sentence that may answer, its cosine with the question, and its share of the words."""

    said: SentenceHit
    cosine: float
    share: float


def subject(asked: str) -> str:
    """Return what a question is about, without the words that ask; all of it if nothing is left."""
    return _besides_asking(asked) or asked


def _besides_asking(asked: str) -> str:
    return " ".join(_ASKING.sub(" ", asked).split()).strip("?!., ")


def names(asked: str) -> list[str]:
    """Return the words of a question that neither ask, nor say what happened, nor name a sort."""
    saying = query_terms.STOP_WORDS | event_questions.saying(asked) | kinds.words(asked)
    words = (word.lower() for word in query_terms.names(asked) if not _ASKING.fullmatch(word))
    return [word for word in words if not saying.issuperset(_PART.findall(word))]


def about(asked: str, near: Near, found: Sequence[Candidate]) -> set[int]:
    """Return the rows that have to do with a question: by its words, what happened, or meaning.

    All have to do with a question for whatever changed, and where there is no engine.
    """
    happened = event_questions.asked(asked)
    if not near.background or not _besides_asking(asked):
        return {each.said.seq for each in found}
    if not happened and _is_foreign(found):
        return set()
    least = near.background.mean + _CLOSE * near.background.spread
    return {
        each.said.seq
        for each in found
        if each.share or each.cosine >= least or event_questions.share(happened, each.said.text)
    }


def _is_foreign(found: Sequence[Candidate]) -> bool:
    """Return whether no change has to do with a question: by no word of it, and by no meaning."""
    return not any(each.share or each.cosine >= _LEAST_COSINE for each in found)


def candidates(
    store: Store, asked: str, cosines: Mapping[int, float], meant: Meant
) -> list[Candidate]:
    """Return what may answer: the closest, those with words of it, those in which it happened."""
    sentences = store.sentences
    shares = _shares(sentences, asked)
    ids = set(sorted(cosines, key=cosines.__getitem__, reverse=True)[:_CANDIDATES])
    ids.update(shares)
    for word in event_questions.words(event_questions.asked(asked)):
        ids.update(sentences.words.having(word, _CANDIDATES))
    if meant is not None:
        ids &= meant.keys()
    return [
        Candidate(said, cosines.get(number, 0.0), shares.get(number, 0.0))
        for number, said in sentences.said(ids, meant)
        if said.seq
    ]


def rank(store: Store, asked: str, found: Sequence[Candidate]) -> list[tuple[SentenceHit, float]]:
    """Return what may answer with its scores, best first.

    Where a question says only that something happened, that must have happened, if it ever did.
    Of a sort that such a question names, it comes first. What the state file says is given only
    where a question is about that, or names the thing, and then counts less than the host's own.
    """
    names = {name.lower() for name in query_terms.names(asked)}
    object_ids = store.sentences.object_ids([each.said.seq for each in found])
    is_of_host = not event_questions.asks_for_declarations(asked)
    if is_of_host:
        found = [
            each
            for each in found
            if names & change_relations.called(object_ids[each.said.seq])
            or not event_questions.is_of_declaration(each.said.text)
        ] or found
    happened = event_questions.asked(asked)
    sorts = kinds.requested(asked, query_terms.STOP_WORDS | event_questions.saying(asked))
    if is_of_happenings := _is_of_happenings(asked):
        found = [each for each in found if event_questions.share(happened, each.said.text)] or found
    numbers = [each.said.seq for each in found]
    oldest, newest = min(numbers, default=0), max(numbers, default=0)
    scored = []
    for each in found:
        object_id = object_ids[each.said.seq]
        sort, less = kinds.of_object(object_id)
        score = each.cosine + LEXICAL_WEIGHT * each.share
        score += HAPPENED_WEIGHT * event_questions.share(happened, each.said.text)
        score += NEWEST_WEIGHT * (each.said.seq - oldest) / max(1, newest - oldest)
        score += NAME_WEIGHT * bool(names & change_relations.called(object_id))
        score += KIND_WEIGHT * bool(sort & sorts.subject) - less * (not sort & sorts.named)
        score += is_of_happenings * SORT_WEIGHT * bool(sort & sorts.named)
        scored.append((each, score))
    if is_of_host:
        scored = _host_first(scored)
    return sorted(
        ((each.said, score) for each, score in scored), key=lambda pair: (-pair[1], -pair[0].seq)
    )


def _host_first(scored: Sequence[tuple[Candidate, float]]) -> list[tuple[Candidate, float]]:
    """Take what the state file says below all of the host that has words of the question."""
    is_declared = [event_questions.is_of_declaration(each.said.text) for each, _ in scored]
    both = list(zip(scored, is_declared, strict=True))
    least = min((score for (each, score), of in both if each.share and not of), default=math.inf)
    below = math.nextafter(least, -math.inf)
    return [(each, min(score, below) if of else score) for (each, score), of in both]


def _terms(asked: str) -> list[str]:
    terms = query_terms.terms(asked)
    return [term for term in terms if not _ASKING.fullmatch(term)] or terms


def _is_of_happenings(asked: str) -> bool:
    """Return whether a question names nothing but what happened, and to which sort of things."""
    rest = (word for word in event_questions.besides(asked) if not _ASKING.fullmatch(word))
    said = query_terms.terms(" ".join(rest))
    return bool(event_questions.asked(asked)) and all(
        kinds.requested(word, query_terms.STOP_WORDS).named for word in said
    )


def _shares(sentences: Sentences, asked: str) -> dict[int, float]:
    """Return the share of the highest possible BM25 score of the best matches, by number."""
    terms = _terms(asked)
    if not terms:
        return {}
    highest = ceiling([sentences.words.count_matches(term) for term in terms], sentences.count())
    found = sentences.words.match(terms, _CANDIDATES)
    return {number: min(1.0, score / highest) for number, score in found}
