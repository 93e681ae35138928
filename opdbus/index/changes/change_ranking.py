"""Ranking of changes by a question's subject, event and kind.

The constants are not tuned to the recorded day of tests/history/test_day.py.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from opdbus.history import event_questions
from opdbus.history.sentence_table import SentenceHit
from opdbus.index.changes import change_relations
from opdbus.index.database.store import Store
from opdbus.index.query import query_terms
from opdbus.index.ranking.scores import (
    KIND_BOOST,
    LEXICAL_WEIGHT,
    NAME_BOOST,
    CosineBaseline,
    bm25_upper_bound,
)
from opdbus.language import kinds

# Weight of the event that a question names.
HAPPENED_WEIGHT: Final = 0.3
# Weight of the kind, where a question names only an event and a kind.
KIND_ONLY_WEIGHT: Final = 0.5
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
    r"touched|affected|ever|lately|recently|today|now|often|many|times|before|previously|earlier|"
    r"originally|formerly|used?|previous|former)\b",
    re.IGNORECASE,
)
# Questions for who or what an event happened to, which have no answer without the event.
_WHO = re.compile(
    r"(?:who|whom|(?:was|were|did|has|have|had) (?:any|some)(?:thing|one|body)?)\b"
    r"|.*\b(?:no longer|any ?more)\b",
    re.IGNORECASE,
)
_ANY_CHANGE: Final = frozenset(("changed", "altered", "modified", "touched"))
# splits `de-installed` into two words
_PART = re.compile(r"[a-z0-9]+")
# (newest row, number of rows) by sentence number; None means all sentences.
SentenceCounts: TypeAlias = Mapping[int, tuple[int, int]] | None


class SentenceCosines(NamedTuple):
    """Cosines of sentences with a question by number, and the baseline to rate them by.

    Empty without an engine.
    """

    cosines: Mapping[int, float]
    baseline: CosineBaseline | None = None


class Candidate(NamedTuple):
    """A sentence that may answer, its cosine with the question, and its share of BM25, 0 to 1."""

    hit: SentenceHit
    cosine: float
    share: float


def subject(asked: str) -> str:
    """Return a question without the words that ask, "" if nothing else is left."""
    return " ".join(_ASKING.sub(" ", asked).split()).strip("?!., ")


def naming_words(asked: str) -> list[str]:
    """Return the words of a question that neither ask nor name an event or a kind."""
    saying = query_terms.STOP_WORDS | event_questions.saying(asked) | kinds.kind_words(asked)
    words = (word.lower() for word in query_terms.names(asked) if not _ASKING.fullmatch(word))
    return [word for word in words if not saying.issuperset(_PART.findall(word))]


def asks_for_any_change(asked: str) -> bool:
    """Return whether any change of an object answers a question: `who changed sshd_config`."""
    names = naming_words(asked)
    # the name of a file such as this one has a word for an edited file
    parts = {part for name in names for part in _PART.findall(name)}
    is_any = not _ANY_CHANGE.isdisjoint(_PART.findall(asked.lower()))
    return is_any and bool(names) and event_questions.saying(asked) <= _ANY_CHANGE | parts


def about(asked: str, cosines: SentenceCosines, found: Sequence[Candidate]) -> set[int]:
    """Return the rows related to a question: by a word, by an event, or by cosine.

    Without an engine, and for a question about any change, all candidates are.
    """
    happened = event_questions.find_events(asked)
    if asks_for_any_change(asked):
        happened = []
        # what came did not change, unless nothing else did
        is_new = ["added" in event_questions.happened(each.hit.text) for each in found]
        found = [each for each, new in zip(found, is_new, strict=True) if not new] or found
    if happened and _WHO.match(asked):
        # what else happened is no answer where nobody did that
        found = [each for each in found if event_questions.share(happened, each.hit.text)]
    if not cosines.baseline or not subject(asked):
        return {each.hit.seq for each in found}
    is_found = any(each.share or each.cosine >= _LEAST_COSINE for each in found)
    if not happened and not is_found:
        return set()
    least = cosines.baseline.mean + _CLOSE * cosines.baseline.spread
    return {
        each.hit.seq
        for each in found
        if each.share or each.cosine >= least or event_questions.share(happened, each.hit.text)
    }


def candidates(
    store: Store, asked: str, cosines: Mapping[int, float], meant: SentenceCounts
) -> list[Candidate]:
    """Return the sentences with the best cosines, with words, or with an event of a question."""
    sentences, every = store.sentences, query_terms.terms(asked)
    shares: dict[int, float] = {}
    if terms := [term for term in every if not _ASKING.fullmatch(term)] or every:
        # shares of the highest possible BM25 score
        counts = [sentences.words.count_matches(term) for term in terms]
        highest = bm25_upper_bound(counts, sentences.count())
        found = sentences.words.match(terms, _CANDIDATES)
        shares = {number: min(1.0, score / highest) for number, score in found}
    ids = set(sorted(cosines, key=cosines.__getitem__, reverse=True)[:_CANDIDATES])
    ids.update(shares)
    for word in (*event_questions.event_words(asked), *event_questions.wider_words(asked)):
        ids.update(sentences.words.having(word, _CANDIDATES))
    if meant is not None:
        ids &= meant.keys()
    return [
        Candidate(hit, cosines.get(number, 0.0), shares.get(number, 0.0))
        for number, hit in sentences.hits(ids, meant)
        if hit.seq
    ]


def rank(store: Store, asked: str, found: Sequence[Candidate]) -> list[tuple[SentenceHit, float]]:
    """Return candidates with their scores, best first.

    If a question names only an event, and perhaps a kind, changes without that event are dropped
    unless no change has it, and the kind weighs more. Unless a question asks for declarations,
    changes of the state file are dropped where it does not name the object, and rank below those of
    the host.
    """
    names = {name.lower() for name in query_terms.names(asked)}
    object_ids = store.sentences.object_ids([each.hit.seq for each in found])
    is_of_host = not event_questions.asks_for_declarations(asked)
    if is_of_host:
        found = [
            each
            for each in found
            if names & change_relations.called(object_ids[each.hit.seq])
            or not event_questions.is_of_declaration(each.hit.text)
        ] or found
    happened = event_questions.find_events(asked)
    wanted = kinds.requested(asked, query_terms.STOP_WORDS | event_questions.saying(asked))
    rest = (word for word in event_questions.besides(asked) if not _ASKING.fullmatch(word))
    # it names only an event and kinds
    is_of_events = bool(happened) and all(
        kinds.requested(word, query_terms.STOP_WORDS).named
        for word in query_terms.terms(" ".join(rest))
    )
    if is_of_events:
        found = [each for each in found if event_questions.share(happened, each.hit.text)] or found
    numbers = [each.hit.seq for each in found]
    oldest, newest = min(numbers, default=0), max(numbers, default=0)

    def score(each: Candidate) -> float:
        object_id = object_ids[each.hit.seq]
        kind, less = kinds.of_object(object_id)
        total = each.cosine + LEXICAL_WEIGHT * each.share
        total += HAPPENED_WEIGHT * event_questions.share(happened, each.hit.text)
        total += NEWEST_WEIGHT * (each.hit.seq - oldest) / max(1, newest - oldest)
        total += NAME_BOOST * bool(names & change_relations.called(object_id))
        total += KIND_BOOST * bool(kind & wanted.subject) - less * (not kind & wanted.named)
        return total + is_of_events * KIND_ONLY_WEIGHT * bool(kind & wanted.named)

    scored = [(each, score(each)) for each in found]
    if is_of_host:
        # changes of the state file come after those of the host that have words of the question
        is_declared = [event_questions.is_of_declaration(each.hit.text) for each in found]
        both = [*zip(scored, is_declared, strict=True)]
        of_host = (total for (each, total), is_declared in both if each.share and not is_declared)
        below = math.nextafter(min(of_host, default=math.inf), -math.inf)
        scored = [
            (each, min(total, below) if is_declared else total)
            for (each, total), is_declared in both
        ]
    rows = ((each.hit, total) for each, total in scored)
    return sorted(rows, key=lambda row: (-row[1], -row[0].seq))
