"""Features of the best hits of a question: term overlap, mismatches and word similarity.

Term overlap reranks; the others are inputs of the confidence model. A mismatch is another kind, a
missing value or another name: `is docker installed` is not answered by the service that asks
docker, nor `which files were changed` by an unchanged file. Word similarity is that of the static
table, which is part of op-dbus, so that it exists at every level and without a model.
"""

import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.index.database.store import Content, Entry
from opdbus.index.query import query_terms, question_patterns
from opdbus.index.query.query_terms import BEGINNING, STOP_WORDS
from opdbus.index.ranking.scores import (
    OVERLAP_WEIGHT,
    Mismatch,
    Missing,
    Score,
    WordSimilarityFeatures,
)
from opdbus.index.vectors.first_stage import STATIC
from opdbus.index.vectors.second_stage import RankedHits
from opdbus.language import kinds, synonyms, vocabulary
from opdbus.language.synonyms import gloss
from opdbus.language.vocabulary import stem
from opdbus.models.folder import OURS
from opdbus.models.static_table import StaticTable
from opdbus.platform.lazy_pages import zeros_by_page
from opdbus.state.fields import split
from opdbus.state.object import UNIT, ObjectId

# Hits that are reranked by term overlap: those on one screen.
OVERLAPPED: Final = 24
OWN: Final = "op-dbus"
_NAMES_US: Final = re.compile(r"\bop[-_ ]?dbus", re.IGNORECASE)
# Fields with other names of an object, or the name of what it belongs to.
_ALIASES: Final = ("aliases unit exec provides image package program command class service").split()
# Mismatch of the kind if objects of the requested kind exist; otherwise it is 1.
_OTHER: Final = 0.5
# Minimum length of a prefix that counts as the same word.
_SHORTEST: Final = 3
# Words that negate, and the number of words after them that they apply to.
_NO: Final = frozenset("not no without lack lacks lost missing".split())
_NEAR: Final = 3
_BOOLEANS: Final = dict.fromkeys("yes on true ok".split(), True) | dict.fromkeys(
    "no off false none missing never".split(), False
)
# Weight of missing words that are not names of programs.
_COMMON_WEIGHT: Final = 0.5
# Characters read of a text, and of a word.
_CHARACTERS: Final = 1000
_LETTERS: Final = 24
# Characters of an object's properties: the fields of a larger object are not looked at, since those
# of all hits on a screen would hold the event loop for seconds.
_MOST_PROPERTIES: Final = 64 << 10
# Cached word vectors (16 MB); one search needs fewer.
_KEPT: Final = 1 << 14
_WORD: Final = re.compile(r"[^\W_]+")
# A number by itself: no part of an address, a version, a date or a share.
_NUMBER: Final = re.compile(r"(?<![\w.:/-])\d{2,}(?![\w:/%-]|\.\d)")
_MOST_NUMBERS: Final = 8
# A field and its whole number, neither a bound nor the first of several.
_NUMBERED: Final = re.compile(
    r"\b(?P<field>[A-Za-z]\w*)(?: number| is)? (?P<number>\d{1,12})(?![\w:/%.-]*\w)"
    r"(?!\W+(?:or|and|to|through|until|percent)\b|[,%])"
)
# Capitalized words are names, except at the start of a question.
_NAME: Final = re.compile(r"(?<=[\w,(] )[A-Z][^\W_]*|(?<![^\W_])[^\W_]+[A-Z][^\W_]*")
# Word pieces are sorted by frequency; the first ones are in most texts.
_COMMON: Final = 2000
_LEAST_LENGTH: Final = 1e-9


def exclusion_rule(question: str) -> Callable[[ObjectId, Score], bool]:
    """Return a predicate for units that only refer to other objects.

    These are the units of op-dbus, unless the question names op-dbus or only values that the unit
    has, and targets, if a yes-or-no question does not name them: `printer.target` is no printer.
    """
    form, names_us = question_patterns.of(question), bool(_NAMES_US.search(question))
    is_strict = question_patterns.is_yes_or_no(question) and not form.is_pure

    def is_left_out(object_id: ObjectId, score: Score) -> bool:
        if object_id[:2] != UNIT:
            return False
        if object_id.name.startswith(OWN):
            return not names_us and not (form.is_pure and score.values > 0)
        is_unasked = not form.asked.subject & kinds.of_object(object_id)[0]
        is_target = object_id.name.endswith(".target") and object_id.name not in question
        return is_strict and is_target and is_unasked

    return is_left_out


def order_by_overlap(
    question: str, missing: Missing, found: RankedHits, contents: Mapping[int, Content]
) -> RankedHits:
    """Rerank the best rows by their total with term overlap; drop those without content."""
    best = [row for row in found[:OVERLAPPED] if row[0].id in contents]
    overlaps = overlap_shares(question, [contents[entry.id].text for entry, _ in best])
    rows = []
    for (entry, score), share in zip(best, overlaps, strict=True):
        content = contents[entry.id]
        overlap = share + agreement(question, content) + membership(question, entry, content)
        total = score.total + OVERLAP_WEIGHT * overlap
        rows.append((entry, score._replace(total=total, overlap=overlap, missing=missing)))
    # rows without a vector of the level come after those with one: see `second_stage`
    has_stages = bool(rows) and rows[0][1].level != STATIC
    rows.sort(key=lambda row: (has_stages and row[1].level == STATIC, -row[1].total))
    return [*rows, *found[OVERLAPPED:]]


def overlap_shares(question: str, texts: Sequence[str]) -> list[float]:
    """Return the share, 0 to 1, of each text's words that a question or its synonyms have.

    Words are weighted by their rarity among the texts.
    """

    def beginnings(text: str) -> set[str]:
        return {word[:BEGINNING] for word in _lower_words(text) if word not in STOP_WORDS}

    asked, words = beginnings(question), [beginnings(text) for text in texts]
    asked.update(w[:BEGINNING] for phrase in synonyms.find_synonyms(question) for w in phrase.words)
    counts = Counter(word for own in words for word in own)
    weights = {word: math.log((len(words) + 1) / count) for word, count in counts.items()}

    def weight(own: set[str]) -> float:
        # fsum: the order of a set differs between processes, and rounded sums would order ties
        # differently
        return math.fsum(map(weights.__getitem__, own))

    return [weight(own & asked) / weight(own) if own else 0.0 for own in words]


def agreement(question: str, content: Content) -> int:
    """Return -1 if a boolean field that a question names has the opposite value.

    `which slide is not open` asks for False, `which amplifier is muted` for True. Return 1 if both
    are negative, otherwise 0.
    """
    if question_patterns.of(question).damped == question_patterns.EVERY:
        # the answer to `is the printer enabled` may be a printer that is not
        return 0
    words = list(vocabulary.plain(question))
    wanted = {
        stem(word): _NO.isdisjoint(words[max(0, at - _NEAR) : at]) for at, word in enumerate(words)
    }
    is_no = False
    for name, value in _fields(content).items():
        own = {stem(word) for word in split(name)}
        is_so = _BOOLEANS.get(value.lower()) if isinstance(value, str) else value
        if isinstance(is_so, bool) and own and wanted.keys() >= own:
            if is_so != all(wanted[word] for word in own):
                return -1
            is_no |= not is_so
    return int(is_no)


def membership(question: str, entry: Entry, content: Content) -> int:
    """Return 1 if a question names an object and one of its lists, or a member of one, else 0.

    `is petra in the group scanners` names the group and its member, `which groups is petra in` the
    account and its list of groups.
    """
    asked = {word.lower() for word in query_terms.names(question)}
    if entry.identity.name.lower() not in asked:
        return 0
    stems = {stem(word) for word in asked}
    for name, value in _fields(content).items():
        members = value if isinstance(value, list) else ()
        others = {one.lower() for one in members if isinstance(one, str)}
        if (others & asked) - {entry.identity.name.lower()} or (others and stem(name) in stems):
            return 1
    return 0


def has_asked_kind(question: str, masks: NDArray[np.int64]) -> bool:
    """Return whether one of some objects, by the masks of their kinds, is of a kind asked for.

    True also if the question asks for none, or for a kind that op-dbus observes.
    """
    subject = question_patterns.of(question).asked.subject
    is_published = bool(subject) and not subject & ~kinds.published()
    return not is_published or bool((masks & subject).any())


def has_asked_number(question: str, best: Iterable[tuple[Entry, Content]]) -> bool:
    """Return whether an entry has a number of the question, such as a port, in any field.

    True also if the question has none, or an entry is too large to be searched.
    """
    numbers = "|".join(_NUMBER.findall(question)[:_MOST_NUMBERS])
    if not numbers:
        return True
    pattern = re.compile(rf"(?<!\d)(?:{numbers})(?!\d)")
    return any(
        _is_large(content) or pattern.search(_whole_text(entry, content)) for entry, content in best
    )


def has_other_number(question: str, content: Content) -> bool:
    """Return whether a field that a question names with a number has another number."""
    asked = {match["field"].lower(): match["number"] for match in _NUMBERED.finditer(question)}
    if not asked:
        return False
    found = _fields(content)
    values = ((str(found[name]), number) for name, number in asked.items() if name in found)
    return any(value.isdecimal() and value != number for value, number in values)


def _is_large(content: Content) -> bool:
    return len(content.properties) > _MOST_PROPERTIES


def _fields(content: Content) -> dict[str, Any]:
    """Return an object's properties; none if they are too large to be looked at."""
    return {} if _is_large(content) else json.loads(content.properties)


def _whole_text(entry: Entry, content: Content) -> str:
    return f"{entry.identity.name} {content.text} {content.properties}"


def add_features(
    words: "WordSimilarity",
    question: str,
    best: RankedHits,
    contents: Mapping[int, Content],
    *,
    has_kind: bool,
) -> list[tuple[Entry, Score]]:
    """Return rows with word similarity and mismatches in their scores.

    `has_kind` is the result of `has_asked_kind`.
    """
    features = words.match_features(question, [contents[entry.id] for entry, _ in best])
    has_number = has_asked_number(question, [(entry, contents[entry.id]) for entry, _ in best])
    rows = []
    for (entry, score), known in zip(best, features, strict=True):
        other = find_mismatches(
            question, entry, contents[entry.id], has_kind=has_kind, has_number=has_number
        )
        rows.append((entry, score._replace(match_features=known, mismatch=other)))
    return rows


def find_mismatches(
    question: str, entry: Entry, content: Content, *, has_kind: bool, has_number: bool
) -> Mismatch:
    """Return the mismatches of an entry.

    `has_kind` and `has_number` are the results of `has_asked_kind` and `has_asked_number`.
    """
    form, object_id = question_patterns.of(question), entry.identity.object_id
    subject = form.asked.subject
    is_other = bool(subject) and not subject & kinds.of_object(object_id)[0]
    kind = (_OTHER if has_kind else 1.0) if is_other else 0.0
    if form.is_whether:
        # an object of a kind without states can only refer to the named one
        can_run = question_patterns.is_of_running(question)
        stateless = kinds.STATELESS | (kinds.NEVER_ON if can_run else frozenset())
        only_names = is_other and object_id[:2] in stateless
        is_other_name = only_names or not has_number
        return Mismatch(kind, 0.0, 1.0 if is_other_name else _other_name(question, entry, content))
    if is_other and not has_kind:
        # `kubernetes pods` is not answered by what only has to do with them
        return Mismatch(kind, 0.0, 1.0)
    asked, traits = [*vocabulary.values_in(question)], int.from_bytes(entry.traits, "little")
    value = sum(not traits & bits for bits in asked) / max(1, len(asked))
    lacks_program = bool(subject) and _lacks_program(question, entry, content)
    return Mismatch(kind, value, float(lacks_program or not has_number))


def _lacks_program(question: str, entry: Entry, content: Content) -> bool:
    """Return whether a question names only programs, and an entry has none of them anywhere.

    `which port does redis listen on` names redis, and a port that nobody says to be of redis is no
    answer.
    """
    asked = question_patterns.subject(question)
    if not asked or not all(map(gloss, asked)) or _is_large(content):
        return False
    text = _whole_text(entry, content).lower()
    return not any(word in text or gloss(word) in text for word in asked)


def _other_name(question: str, entry: Entry, content: Content) -> float:
    """Return the difference, 0 to 1, of an entry's name and aliases from the words asked for."""
    asked, name = question_patterns.subject(question), entry.identity.name
    if not asked:
        return 0.0
    # `vm.swappiness` is not what is on where swap is, but a firewall may have another name
    is_exact = question_patterns.is_switch(question)
    if is_exact:
        said = set(_lower_words(content.text))
        meant = {*asked, *(w for phrase in synonyms.find_synonyms(question) for w in phrase.words)}
        is_exact = said.isdisjoint(meant)
    texts = [name]
    if not _is_large(content) and any(f'"{alias}"' in content.properties for alias in _ALIASES):
        properties = _fields(content)
        for value in map(properties.get, _ALIASES):
            values = value if isinstance(value, list) else [value]
            texts += [one for one in values if isinstance(one, str)]
    own = {word for text in texts for word in split(text)}
    own |= {word.rstrip(string.digits) for word in own}

    def is_own(word: str) -> bool:
        return bool({word, stem(word)} & own) or (
            not is_exact
            and len(word) >= _SHORTEST
            and any(
                one.startswith(word) or word.startswith(one) for one in own if len(one) >= _SHORTEST
            )
        )

    missing = [word for word in asked if not is_own(word) and gloss(word) != gloss(name)]
    if len(missing) == len(asked) and (is_exact or any(map(gloss, missing))):
        return 1.0
    return _COMMON_WEIGHT * len(missing) / len(asked)


def _lower_words(text: str) -> list[str]:
    """Return the words of the first `_CHARACTERS` of a text, in order and in lower case."""
    return _WORD.findall(text[:_CHARACTERS].lower())


@cache
def ours() -> "WordSimilarity":
    """Read the static table, which takes about 50 ms; raises ModelError."""
    return WordSimilarity(StaticTable.read(OURS, max_tokens=512))


class WordSimilarity:
    """Cache of word vectors; for one thread at a time."""

    def __init__(self, table: StaticTable) -> None:
        self._table = table
        self._numbers: dict[str, int] = {}
        # unit vectors, and their lengths in the table, by which words are weighted in a text
        self._rows = zeros_by_page(_KEPT, table.dimension)
        self._lengths = np.empty(_KEPT, np.float32)
        # many names share a meaning
        meanings = dict.fromkeys(synonyms.glossary().values())
        vectors = np.stack([self._whole(*self._vectors(_lower_words(each))) for each in meanings])
        vectors -= vectors.mean(axis=0)
        # the covariance gives the spread of a text's cosines with the meanings
        self._spread = vectors.T @ vectors / len(vectors)

    def match_features(
        self, question: str, contents: Sequence[Content]
    ) -> list[WordSimilarityFeatures]:
        """Return the confidence features of each content for a question."""
        asked, texts = _lower_words(question), [_lower_words(content.text) for content in contents]
        whole = self._whole(*self._vectors(asked))
        domain = math.sqrt(max(0.0, float(whole @ self._spread @ whole)))
        telling = [word for word in dict.fromkeys(asked) if word not in STOP_WORDS]
        weights = self._weights(question, telling)
        rows, lengths = self._vectors([word for words in texts for word in words])
        similarity = self._vectors(telling)[0] @ rows.T
        ends = [*accumulate(map(len, texts), initial=0)]
        found = []
        for content, words, (start, end) in zip(contents, texts, pairwise(ends), strict=True):
            nearest = similarity[:, start:end].max(axis=1, initial=0.0)
            # words that the text or the properties have, in any form
            own = {word[:BEGINNING] for word in words}
            properties = content.properties[:_MOST_PROPERTIES].lower()
            nearest[[(w := word[:BEGINNING]) in own or w in properties for word in telling]] = 1.0
            worst_missing = float((weights * (1 - nearest)).max(initial=0.0))
            text_cosine = float(whole @ self._whole(rows[start:end], lengths[start:end]))
            found.append(WordSimilarityFeatures(text_cosine, worst_missing, domain))
        return found

    def _weights(self, question: str, words: Sequence[str]) -> NDArray[np.float32]:
        """Return the weight of each word, 0 to 1; rare words and names weigh most."""
        names = {name.lower() for name in _NAME.findall(question[:_CHARACTERS])}
        most = len(self._table.stored)

        def rarity(word: str) -> float:
            first, *rest = self._table.words.split(word[:_LETTERS])
            rank = most if rest else max(first, _COMMON)
            return math.log(rank / _COMMON) / math.log(most / _COMMON)

        return np.array([1.0 if w in names else rarity(w) for w in words], np.float32)

    @staticmethod
    def _whole(rows: NDArray[np.float32], lengths: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the unit vector (dimension,) of a text from its words'; zeros without words."""
        total = lengths @ rows
        return total / np.float32(max(math.sqrt(total @ total), _LEAST_LENGTH))

    def _vectors(self, words: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the unit vectors (words, dimension) of words and their lengths in the table."""
        if len(self._numbers) + len(words) > _KEPT:
            self._numbers.clear()
        for word in words:
            if word not in self._numbers:
                number = self._numbers[word] = len(self._numbers)
                total = self._table.sums(np.array(self._table.words.split(word[:_LETTERS])))
                self._lengths[number] = length = max(float(np.linalg.norm(total)), _LEAST_LENGTH)
                self._rows[number] = total / length
        numbers = np.array([self._numbers[word] for word in words], np.intp)
        return self._rows.take(numbers, axis=0), self._lengths.take(numbers)
