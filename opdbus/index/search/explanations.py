"""Explanations of hits: the fields that have words of the question, and the boosts."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

from opdbus.history.full_text import TOKENIZED, FullText
from opdbus.index.database.store import Entry
from opdbus.index.query import query_terms
from opdbus.index.query.requested_fields import BY_PHRASE, RequestedFields
from opdbus.index.ranking.scores import SAID_WEIGHT, Score
from opdbus.index.search.hits import Field, Query, Why
from opdbus.language import object_text, vocabulary
from opdbus.state.conditions import Condition
from opdbus.state.fields import IDENTITY, dotted_values, split
from opdbus.state.object import Json, StateObject

# Fields shown of an object, and characters of each.
_MOST_FIELDS: Final = 16
_MOST_CHARACTERS: Final = 200
# Fields searched: an object may have any number.
_MOST_SEARCHED: Final = 2000


def explain(
    entry: Entry,
    properties: dict[str, Json],
    score: Score,
    query: Query,
    where: Sequence[Condition],
) -> Why:
    """Return the explanation of a hit; blocks for about a millisecond."""
    item = StateObject(entry.identity, properties)
    fields, glosses, missing = _words(item, query.question)
    return Why(
        score.total,
        score.kinds + SAID_WEIGHT * score.said,
        tuple(fields),
        tuple(missing),
        tuple(glosses),
        tuple(_values(entry, query)),
        tuple(f"{each.field}{each.operator}{each.value}" for each in where),
        query.corrected,
    )


def _values(entry: Entry, query: Query) -> Iterator[str]:
    """Yield the words of a question that name a value of an object."""
    traits = int.from_bytes(entry.traits, "little")
    for bits, phrase in vocabulary.asked(query.question).items():
        if traits & bits:
            yield phrase
    for literal in query.matches.literals if query.matches else ():
        if literal.word and entry.id in literal.entries:
            yield literal.word
    for compared in query.compared:
        if entry.id in compared.entries.ids:
            yield compared.words


def _words(item: StateObject, question: str) -> tuple[list[Field], list[str], list[str]]:
    """Return an object's matching fields, its matching glosses, and the terms that neither has.

    Fields that the question asks for by name come first. Terms match in any form, as in lexical
    search.
    """
    terms = query_terms.terms(question)
    named = list(_fields(item))[:_MOST_SEARCHED]
    meanings = object_text.meanings(item)
    searched = [f"{' '.join(split(name))} {value} {more}" for name, value, more in named]
    found = having([*searched, *meanings], terms)
    asked, fields = RequestedFields(question, terms), []
    for at, (name, value, _) in enumerate(named):
        share, by = asked.asking(name) if name not in IDENTITY else (0.0, [])
        words = tuple(sorted({*found.get(at, ()), *by}, key=question.lower().find))
        if words:
            order = -share if share >= BY_PHRASE else 0.0, -share - len(words)
            fields.append((order, Field(name, value[:_MOST_CHARACTERS], words)))
    fields.sort(key=lambda field: field[0])
    glosses = [each for at, each in enumerate(meanings, len(named)) if at in found]
    there = {term for words in found.values() for term in words}
    missing = [term for term in terms if term not in there]
    return [field for _, field in fields[:_MOST_FIELDS]], glosses, missing


def _fields(item: StateObject) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value, further searched text) of each field."""
    yield "name", item.name, " ".join(split(item.name))
    yield "kind", item.kind, object_text.head(item)
    yield "plugin", item.plugin, ""
    for name, value in dotted_values(item.properties):
        if value not in (None, "", []):
            yield name, _plain(value), ""


def _plain(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)


def having(texts: Sequence[str], terms: Sequence[str]) -> Mapping[int, list[str]]:
    """Return the terms that each text has, by the text's place."""
    found: dict[int, list[str]] = {}
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"CREATE VIRTUAL TABLE here USING fts5 (text, {TOKENIZED})")
        database.executemany("INSERT INTO here (rowid, text) VALUES (?, ?)", enumerate(texts))
        words = FullText(database, "here")
        for term in terms:
            for place in words.having(term, len(texts)):
                found.setdefault(place, []).append(term)
    return found
