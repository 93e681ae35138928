"""Texts of the fleet by the words of a question, with the share of its information in each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.fleet.questions.fleet_conditions import ON_HOSTS, TextFilter
from opdbus.index.query import query_terms

if TYPE_CHECKING:
    import asyncpg

# Words of a question beyond these are not looked up.
_MOST_TERMS: Final = 16
# Texts that are scored for a question.
_SCORED: Final = 3000
# A word in more texts than this is counted no further.
_MOST_COUNTED: Final = 5000
# Texts that the answer is chosen from.
POOL: Final = 200
# Names near a misspelt word that are compared with it, and the least share of equal trigrams: two
# letters in the wrong order leave few of them.
_NEAR: Final = 40
_LEAST_TRIGRAMS: Final = 0.15
_LONG_WORD: Final = 8
# Weight of a word that is the object's name, relative to all words.
_NAMED: Final = 0.25


class TextRank(NamedTuple):
    """A text by its digest; `share` is that of the question's information that it has."""

    digest: bytes
    share: float


class Corrected(NamedTuple):
    """A word of the question that no object has, and the name that was likely meant."""

    asked: str
    meant: str


@dataclass(frozen=True, slots=True)
class WordRanks:
    """The texts, the best first, and the corrected words."""

    texts: tuple[TextRank, ...] = ()
    corrected: tuple[Corrected, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightedTerms:
    """Words of a question, in how many of all texts each is, and how much each tells (its idf)."""

    words: tuple[str, ...]
    counts: tuple[int, ...]
    weights: tuple[float, ...]
    texts: int
    corrected: tuple[Corrected, ...] = ()


async def weigh_terms(connection: asyncpg.Connection, question: str) -> WeightedTerms:
    """Return the words of a question with their weights; misspelt names are corrected."""
    words = query_terms.terms(question)[:_MOST_TERMS]
    counts, texts = await _count(connection, words)
    unknown = [word for word in words if counts.get(word) == 0]
    spelt = [Corrected(word, await _spelt(connection, word)) for word in unknown]
    corrected = [each for each in spelt if each.meant]
    if corrected:
        meant_by = {each.asked: each.meant for each in corrected}
        words = list(dict.fromkeys(meant_by.get(word, word) for word in words))
        counts, texts = await _count(connection, words)
    known = [word for word in words if word in counts]
    return WeightedTerms(
        tuple(known),
        tuple(counts[word] for word in known),
        tuple(math.log((texts + 1) / (min(counts[word], texts) + 0.5)) for word in known),
        texts,
        tuple(corrected),
    )


async def _count(
    connection: asyncpg.Connection, words: Sequence[str]
) -> tuple[dict[str, int], int]:
    """Return in how many texts each word is, without stop words, and the number of texts.

    Frequencies of common words come from the database's statistics.
    """
    total = await connection.fetchval(
        "SELECT greatest(reltuples::bigint, (SELECT count(*) FROM (SELECT FROM opdbus.text"
        " LIMIT 1000) AS few)) FROM pg_class WHERE oid = 'opdbus.text'::regclass"
    )
    rows = await connection.fetch(
        """
        WITH common AS MATERIALIZED (
          SELECT lexeme, freq FROM pg_stats,
            unnest(most_common_elems::text::text[], most_common_elem_freqs) AS e (lexeme, freq)
          WHERE schemaname = 'opdbus' AND tablename = 'text' AND attname = 'words'
            AND lexeme IS NOT NULL)
        SELECT word, coalesce(
          (SELECT (min(freq) * $2)::bigint FROM common WHERE lexeme = ANY(lexemes)),
          (SELECT count(*) FROM (SELECT FROM opdbus.text
            WHERE words @@ plainto_tsquery('english', word) LIMIT $3) AS few)) AS count
        FROM unnest($1::text[]) AS word,
          LATERAL tsvector_to_array(to_tsvector('english', word)) AS lexemes
        WHERE cardinality(lexemes) > 0
        """,
        list(words),
        float(total),
        _MOST_COUNTED,
    )
    return {row["word"]: row["count"] for row in rows}, total


async def _spelt(connection: asyncpg.Connection, word: str) -> str:
    """Return the word of a name that is one edit away, two of a long word; "" if there is none."""
    if not word.isascii() or not word.isalpha() or len(word) < 4:
        return ""
    async with connection.transaction():
        await connection.execute(
            "SELECT set_config('pg_trgm.similarity_threshold', $1, true)", str(_LEAST_TRIGRAMS)
        )
        rows = await connection.fetch(
            "SELECT word FROM opdbus.name_word WHERE word OPERATOR(public.%) $1"
            " ORDER BY public.similarity(word, $1) DESC, word LIMIT $2",
            word,
            _NEAR,
        )
    near = [(edits(word, row["word"]), row["word"]) for row in rows]
    most = 2 if len(word) >= _LONG_WORD else 1
    return min((each for each in near if each[0] <= most), default=(0, ""))[1]


def share_in(text: str, weights: Mapping[str, float]) -> float:
    """Return the share of a question's information in a text, by the weights of its words.

    Forms of a word are equal.
    """
    have = {word[: query_terms.BEGINNING] for word in query_terms.terms(text)}
    whole = text.lower()
    met = sum(
        weight
        for word, weight in weights.items()
        if word[: query_terms.BEGINNING] in have or word in whole
    )
    return met / max(sum(weights.values()), 1e-9)


def edits(one: str, other: str) -> int:
    """Return the number of letters to add, remove, replace, or swap with the next one."""
    rows = [list(range(len(other) + 1))]
    for at, letter in enumerate(one, 1):
        row = [at]
        for to, wanted in enumerate(other, 1):
            best = min(row[-1] + 1, rows[-1][to] + 1, rows[-1][to - 1] + (letter != wanted))
            if at > 1 and to > 1 and letter == other[to - 2] and one[at - 2] == wanted:
                best = min(best, rows[-2][to - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


async def rank_by_words(
    connection: asyncpg.Connection, terms: WeightedTerms, only: TextFilter | None = None
) -> WordRanks:
    """Return the texts with most of the question's information, of those that count."""
    texts, hosts = only or TextFilter()
    known = [
        (count, word, weight)
        for word, count, weight in zip(terms.words, terms.counts, terms.weights, strict=True)
        if count
    ]
    total = sum(terms.weights)
    if not known or total <= 0:
        return WordRanks((), terms.corrected)
    rare = _telling(known)
    joined = " | " if rare else " & "
    rows = await connection.fetch(
        f"""
        WITH term AS (SELECT plainto_tsquery('english', word) AS query, weight
                      FROM unnest($1::text[], $2::float8[]) AS given (word, weight)),
        found AS (SELECT digest, words, length(text) AS size FROM opdbus.text
          WHERE words @@ (SELECT string_agg('(' || plainto_tsquery('english', word)::text || ')',
                                            '{joined}')::tsquery FROM unnest($3::text[]) AS word)
            AND ($4::bytea[] IS NULL OR digest = ANY($4)) LIMIT {_SCORED}),
        scored AS (SELECT digest, size,
            (SELECT sum(weight) FROM term WHERE words @@ query) AS weight FROM found)
        SELECT digest, weight, size, (SELECT name FROM opdbus.content
          WHERE content.text = best.digest LIMIT 1) AS name
        FROM (SELECT * FROM (SELECT * FROM scored ORDER BY weight DESC, size, digest) AS near
              WHERE {ON_HOSTS.replace("$", "$5")} LIMIT {POOL}) AS best
        """,  # noqa: S608 -- numbers and an operator of ours
        [word for _, word, _ in known],
        [weight for _, _, weight in known],
        rare or [word for _, word, _ in known],
        None if texts is None else list(texts),
        None if hosts is None else list(hosts),
    )
    asked = frozenset(terms.words)

    def rank(row: asyncpg.Record) -> tuple[float, int, bytes]:
        named = _NAMED if query_terms.name_forms(row["name"] or "") & asked else 0.0
        return -(row["weight"] / total + named), row["size"], row["digest"]

    found = sorted(rows, key=rank)
    return WordRanks(
        tuple(TextRank(row["digest"], row["weight"] / total) for row in found), terms.corrected
    )


def _telling(known: Sequence[tuple[int, str, float]]) -> list[str]:
    """Return the rarest words, at least one of which a text must have; none if all are common."""
    rare, texts = list[str](), 0
    for count, word, _ in sorted(known):
        texts += count
        if texts > _SCORED:
            break
        rare.append(word)
    return rare
