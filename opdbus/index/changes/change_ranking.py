"""Ranking of changes by a question's subject, event and kind.

The constants are not tuned to a recorded day: see benchmarks/host/day.py.
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

# Weight of the event that a question names.
HAPPENED_WEIGHT: Final = 0.3
# Weight of the kind, where a question names only an event and a kind.
SORT_WEIGHT: Final = 0.5
# Weight of recency: breaks ties.
NEWEST_WEIGHT: Final = 0.02
# Least cosine of a match where no change has a word of the question. Chosen on recorded days so
# that no question about them loses its answer.
_LEAST_COSINE: Final = 0.28
# Standard deviations above the mean of the question's cosines with objects at which a sentence
# counts as related. Chosen as above.
_CLOSE: Final = 2
# Candidates by cosine, by words and by each event.
_CANDIDATES: Final = 256
# Words that ask for changes and do not name their subject.
_ASKING = re.compile(
    r"\b(?:what|which|who|when|where|why|how|did|does|do|has|have|had|was|were|is|are|been|be|"
    r"changed|changes|change|happened|happens|happen|became|become|becomes|anything|something|somebody|someone|"
    r"that|to|with|of|in|on|the|a|an|there|any|new|about|related|concerning|regarding|"
    r"touched|affected|ever|lately|recently|today|now)\b",
    re.IGNORECASE,
)
# splits `de-installed` into two words
_PART = re.compile(r"[a-z0-9]+")
# (newest row, number of rows) by sentence number; None means all sentences.
Meant: TypeAlias = Mapping[int, tuple[int, int]] | None


class Near(NamedTuple):
    """Cosines of sentences with a question by number, and the baseline to rate them by.

    Empty without an engine.
    """

    cosines: Mapping[int, float]
    background: CosineBaseline | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sentence that may answer, its cosine with the question, and its share of BM25, 0 to 1."""

    said: SentenceHit
    cosine: float
    share: float


def subject(asked: str) -> str:
    """Return a question without the words that ask, all of it if nothing else is left."""
    return _besides_asking(asked) or asked


def _besides_asking(asked: str) -> str:
    return " ".join(_ASKING.sub(" ", asked).split()).strip("?!., ")


def names(asked: str) -> list[str]:
    """Return the words of a question that neither ask nor name an event or a kind."""
    saying = query_terms.STOP_WORDS | event_questions.saying(asked) | kinds.words(asked)
    words = (word.lower() for word in query_terms.names(asked) if not _ASKING.fullmatch(word))
    return [word for word in words if not saying.issuperset(_PART.findall(word))]


def about(asked: str, near: Near, found: Sequence[Candidate]) -> set[int]:
    """Return the rows related to a question: by a word, by an event, or by cosine.

    Without an engine, and for a question about any change, all candidates are.
    """
    happened = event_questions.find_events(asked)
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
    """Return whether no candidate has a word of a question or a cosine of `_LEAST_COSINE`."""
    return not any(each.share or each.cosine >= _LEAST_COSINE for each in found)


def candidates(
    store: Store, asked: str, cosines: Mapping[int, float], meant: Meant
) -> list[Candidate]:
    """Return the sentences with the best cosines, with words, or with an event of a question."""
    sentences = store.sentences
    shares = _shares(sentences, asked)
    ids = set(sorted(cosines, key=cosines.__getitem__, reverse=True)[:_CANDIDATES])
    ids.update(shares)
    for word in event_questions.event_words(asked):
        ids.update(sentences.words.having(word, _CANDIDATES))
    if meant is not None:
        ids &= meant.keys()
    return [
        Candidate(said, cosines.get(number, 0.0), shares.get(number, 0.0))
        for number, said in sentences.hits(ids, meant)
        if said.seq
    ]


def rank(store: Store, asked: str, found: Sequence[Candidate]) -> list[tuple[SentenceHit, float]]:
    """Return candidates with their scores, best first.

    If a question names only an event, and perhaps a kind, changes without that event are dropped
    unless no change has it, and the kind weighs more. Unless a question asks for declarations,
    changes of the state file are dropped where it does not name the object, and rank below those of
    the host.
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
    happened = event_questions.find_events(asked)
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
    """Lower the scores of state-file changes below every host change with words of the question."""
    is_declared = [event_questions.is_of_declaration(each.said.text) for each, _ in scored]
    both = list(zip(scored, is_declared, strict=True))
    least = min((score for (each, score), of in both if each.share and not of), default=math.inf)
    below = math.nextafter(least, -math.inf)
    return [(each, min(score, below) if of else score) for (each, score), of in both]


def _terms(asked: str) -> list[str]:
    terms = query_terms.terms(asked)
    return [term for term in terms if not _ASKING.fullmatch(term)] or terms


def _is_of_happenings(asked: str) -> bool:
    """Return whether a question names only an event and kinds."""
    rest = (word for word in event_questions.besides(asked) if not _ASKING.fullmatch(word))
    said = query_terms.terms(" ".join(rest))
    return bool(event_questions.find_events(asked)) and all(
        kinds.requested(word, query_terms.STOP_WORDS).named for word in said
    )


def _shares(sentences: Sentences, asked: str) -> dict[int, float]:
    """Return the best matches' share of the highest possible BM25 score, by sentence number."""
    terms = _terms(asked)
    if not terms:
        return {}
    highest = ceiling([sentences.words.count_matches(term) for term in terms], sentences.count())
    found = sentences.words.match(terms, _CANDIDATES)
    return {number: min(1.0, score / highest) for number, score in found}
