"""Explanations of hits: the fields that have words of the question, and the boosts.

A question may ask for fields by name: `user id` for uid, `how full` for used_percent.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from itertools import islice
from typing import Final

from opdbus.history.full_text import TOKENIZED, FullText
from opdbus.index.database.store import Entry
from opdbus.index.query import query_terms
from opdbus.index.query.query_terms import STOP_WORDS
from opdbus.index.ranking.scores import OVERLAP_WEIGHT, Score
from opdbus.index.search.hits import Explanation, Field, Query
from opdbus.language import object_text, vocabulary
from opdbus.state.conditions import Condition
from opdbus.state.fields import IDENTITY, dotted_values, split
from opdbus.state.flatten import singular
from opdbus.state.object import Json, StateObject

# Fields shown of an object, and characters of each.
_MOST_FIELDS: Final = 16
_MOST_CHARACTERS: Final = 200
# Fields searched: an object may have any number.
_MOST_SEARCHED: Final = 2000
# Abbreviations and compounds, by the words they stand for.
_SPELT: Final[Mapping[str, str]] = {
    "filesystem": "file system", "fstype": "file system type", "gid": "group id",
    "hostname": "host name", "pid": "process id", "timezone": "time zone", "uid": "user id",
}  # fmt: skip
# Words of questions, and words of the field names they ask for.
_MEANT: Final[dict[str, Sequence[str]]] = {
    "account": ("user",), "big": ("size",), "directory": ("home", "path"),
    "folder": ("home", "path"), "full": ("used",), "ip": ("address",), "large": ("size",),
    "manufacturer": ("vendor",), "often": ("schedule",), "permission": ("mode",),
    "release": ("version",), "space": ("used", "size"), "usage": ("used",),
    "when": ("schedule", "elapse", "since"), "who": ("members",),
}  # fmt: skip
# The same, where one field is to be shown.
_ASKED: Final[Mapping[str, Sequence[str]]] = _MEANT | {
    "boot": ("time",), "booted": ("boot", "time"), "long": ("since", "uptime"), "pid": ("main",),
    "rebooted": ("boot", "time"), "run": ("elapse", "trigger"), "space": ("free", "used", "size"),
    "up": ("uptime",), "when": ("schedule", "next", "elapse", "since"), "who": ("members", "user"),
}  # fmt: skip
_SINCE: Final = vocabulary.stem("since")
_UNITS: Final = frozenset("bytes gb kb mb percent seconds".split())
# Share of a field that a vocabulary phrase such as `at boot` asks for without naming it.
_BY_PHRASE: Final = 0.9
# Cache size: publishers may use any field names.
_MOST_NAMES: Final = 4096


def explain(
    entry: Entry,
    properties: dict[str, Json],
    score: Score,
    query: Query,
    where: Sequence[Condition],
) -> Explanation:
    """Return the explanation of a hit; blocks for about a millisecond."""
    fields, glosses, missing = _matches(StateObject(entry.identity, properties), query.question)
    # the words of the question that name a value of the object
    traits = int.from_bytes(entry.traits, "little")
    values = [
        phrase for bits, phrase in vocabulary.values_in(query.question).items() if traits & bits
    ]
    literals = query.matches.literals if query.matches else ()
    values += [one.word for one in literals if one.word and entry.id in one.entries]
    values += [one.words for one in query.compared if entry.id in one.entries.ids]
    return Explanation(
        score.total,
        score.boost + OVERLAP_WEIGHT * score.overlap,
        tuple(fields),
        tuple(missing),
        tuple(glosses),
        tuple(values),
        tuple(f"{each.field}{each.operator}{each.value}" for each in where),
        query.corrected,
    )


def find_asked(properties: Mapping[str, Json], question: str) -> str:
    """Return the field, with its value, that a question asks for by its whole name; else empty.

    A word of the name counts more than one that means it. Of `active_since`, the end suffices.
    """
    forms = {
        word: (_stems([plain]), _stems(_ASKED.get(plain, ())))
        for word in split(question)
        if (plain := singular(word)) in _ASKED or word not in STOP_WORDS
    }
    best, found = (0.0, 0), ""
    for name, value in islice(dotted_values(properties), _MOST_SEARCHED):
        if value in (None, "", []) or "." in name:
            continue
        own = _stems_of_name(name)
        said = [own & words for words, _ in forms.values()]
        meant = [own & words for _, words in forms.values()]
        share = len(frozenset().union(*said, *meant)) / max(1, len(own))
        rank = share, sum(map(bool, said))
        if rank > best and (share == 1 or any(_SINCE in words for words in (*said, *meant))):
            best, found = rank, f"{name} {_shown(value)[:_MOST_CHARACTERS]}"
    return found


def _matches(item: StateObject, question: str) -> tuple[list[Field], list[str], list[str]]:
    """Return an object's matching fields, its matching glosses, and the terms that neither has.

    Fields that the question asks for by name come first. Terms match in any form, as in lexical
    search.
    """
    terms = query_terms.terms(question)
    named = list(_fields(item))[:_MOST_SEARCHED]
    meanings = object_text.meanings(item)
    searched = [f"{' '.join(split(name))} {value} {more}" for name, value, more in named]
    found = having([*searched, *meanings], terms)
    asking = [*terms, *(w for w in split(question) if w in _MEANT and w not in terms)]
    plain = {word: singular(word) for word in asking}
    forms = {word: _stems([*split(one), *_MEANT.get(one, ())]) for word, one in plain.items()}
    # field -> vocabulary phrase whose conditions are on it
    about = {
        field: phrase
        for traits, phrase in vocabulary.values_in(question).items()
        for field in vocabulary.fields(traits)
    }
    fields = []
    for at, (name, value, _) in enumerate(named):
        share, by = (0.0, []) if name in IDENTITY else _requested(name, forms, about)
        both = {*found.get(at, ()), *by}
        words = tuple(sorted(both, key=lambda word: (question.lower().find(word), word)))
        if words:
            order = -share if share >= _BY_PHRASE else 0.0, -share - len(words)
            fields.append((order, Field(name, value[:_MOST_CHARACTERS], words)))
    fields.sort(key=lambda field: field[0])
    glosses = [each for at, each in enumerate(meanings, len(named)) if at in found]
    there = {term for words in found.values() for term in words}
    missing = [term for term in terms if term not in there]
    return [field for _, field in fields[:_MOST_FIELDS]], glosses, missing


def _requested(
    name: str, forms: Mapping[str, frozenset[str]], about: Mapping[str, str]
) -> tuple[float, list[str]]:
    """Return the share of a field's name that a question asks for, and the words that do.

    A full name counts 1; a vocabulary phrase adds `_BY_PHRASE`.
    """
    key = name.rpartition(".")[2]
    own = _stems_of_name(key)
    met = {word: both for word, asked in forms.items() if (both := asked & own)}
    share = len(frozenset().union(*met.values())) / max(1, len(own))
    return (share + _BY_PHRASE, [about[key]]) if key in about else (share, list(met))


@lru_cache(_MOST_NAMES)
def _stems_of_name(name: str) -> frozenset[str]:
    words = (word for word in split(name) if word not in _UNITS | STOP_WORDS)
    return _stems(map(singular, words))


def _stems(words: Iterable[str]) -> frozenset[str]:
    """Return the stems of words, with abbreviations and compounds expanded."""
    return frozenset(
        vocabulary.stem(part) for word in words for part in _SPELT.get(word, word).split()
    )


def _fields(item: StateObject) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value, further searched text) of each field."""
    yield "name", item.name, " ".join(split(item.name))
    yield "kind", item.kind, object_text.head(item)
    yield "plugin", item.plugin, ""
    for name, value in dotted_values(item.properties):
        if value not in (None, "", []):
            yield name, _shown(value), ""


def _shown(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(_shown, value)) if isinstance(value, list) else str(value)


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
