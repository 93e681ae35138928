"""What each rule of the grammar of questions contributes: all check sets, asked without it.

`python benchmarks/answers/ablation.py --json FILE [--scratch FOLDER] [--rules PART ...]` leaves out
one rule after another: a row of a table of the program, a section of the glossary or of the
everyday words, or a function that is replaced by one that does nothing. It counts, for each half,
the questions whose first answer becomes right or wrong, those that are refused or no longer, and
the change of the mean reciprocal rank. A rule is asked about the questions that the grammar reads
otherwise without it, and one that changes objects, such as a section of the glossary, about those
that have a right answer of another text, or a word that it explains. Rules that are functions are
asked about all.

The sets are those of `asking.py` without what is taken out, those of `strangers.py`, the routes of
questions, and the two days of tests/data. Held halves are only counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import pickle
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import structlog
from asking import (
    EXAMS,
    HALVES,
    HOSTS,
    OBSERVED,
    answer,
    contents,
    finding,
    load,
    questions,
    served,
)
from harness import days
from measure import is_refused
from strangers import finding as finding_of_few

from opdbus.bench import machine
from opdbus.engine.batching import Rank
from opdbus.engine.embedder import Embedding
from opdbus.errors import NotKept
from opdbus.history import event_questions
from opdbus.history.row_filter import Filter
from opdbus.index.database import records
from opdbus.index.query import (
    constraints,
    extremes,
    query_terms,
    question_patterns,
    spelling,
)
from opdbus.index.query.query_terms import STOP_WORDS
from opdbus.index.ranking import scores
from opdbus.index.search import hit_features, lexical_matches, related_answers
from opdbus.index.search.finder import Finder
from opdbus.language import kinds, routes, synonyms, tables, vocabulary
from opdbus.language.object_text import render
from opdbus.serving.serving import Serving
from opdbus.state.object import Identity, StateObject

_MODE: Final = "hybrid"
_OPEN, _HELD = "open", "held"
_HALVES: Final = {HALVES[0]: _OPEN, HALVES[1]: _HELD, "dev": _OPEN, _OPEN: _OPEN, _HELD: _HELD}
_NEVER: Final = re.compile(r"(?!)")
_ANSWERABLE: Final = "answerable"

# A module, the name of a value in it, and what stands for the value while a rule is left out.
Swap: TypeAlias = tuple[ModuleType, str, Any]


# asks what was opened of a host
Ask: TypeAlias = Callable[[Any], Awaitable["Outcome"]]


@dataclass(frozen=True)
class Rule:
    """A rule: the part of the grammar, its name, what replaces it, and a question that has it.

    `is_everywhere`: all questions are asked. `is_of_objects`: texts of objects change. Only a
    question with all words of one of the `phrases`, in any form, can be read otherwise; None: any.
    """

    part: str
    name: str
    example: str
    swaps: Sequence[Swap]
    is_everywhere: bool = False
    is_of_objects: bool = False
    phrases: Sequence[frozenset[str]] | None = None


class Outcome(NamedTuple):
    """The rank of the first right answer, 0 without any, and whether the question was refused."""

    rank: int
    is_refused: bool

    @property
    def reciprocal(self) -> float:
        """The reciprocal rank, 0 of a refused question."""
        return 0.0 if self.is_refused or not self.rank else 1 / self.rank


class Question(NamedTuple):
    """A question of a set, how it is asked once its host is open, and its right answers."""

    set: str
    half: str
    kind: str
    text: str
    ask: Ask
    right: AbstractSet[str] = frozenset()


@dataclass
class Host:
    """A host of a set: its objects, its questions, and how it is opened in a folder.

    It is opened, and a question is asked with all rules, when that is needed first.
    """

    name: str
    open: Callable[[AsyncExitStack, Path], Awaitable[Any]]
    questions: Sequence[Question]
    objects: Sequence[StateObject] = ()
    opened: Any = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)


# The rules


def every_rule() -> list[Rule]:
    """Return the rules of all parts."""
    return [
        *_rows("vocabulary"),
        *_rows("kinds"),
        *_rows("routes"),
        *_rows("happenings"),
        *_sections("everyday"),
        *_patterns(),
        *_sections("glossary"),
        *_functions(),
    ]


def _rows(table: str) -> Iterator[Rule]:
    """Yield a rule for each row of a table: its phrases, which no question has any more."""
    for number, row in enumerate(tables.rows(table)):
        if table == "routes":
            yield Rule(table, row[1], row[2], [_without(table, [number])])
            continue
        phrases = row[0].split("|")
        if table == "happenings":
            # the first phrase is written in history, whatever is asked
            left, at = phrases[0], 1
        else:
            left, at = "", 0
        rest = [left, *row[1:]]
        if phrases[at:]:
            swaps = [_without(table, [number], rest)]
            yield Rule(table, phrases[0], phrases[at], swaps, phrases=_stems(phrases[at:]))


def _stems(phrases: Sequence[str]) -> list[frozenset[str]]:
    """Return the stems of the words of each phrase, without words that some readers pass over."""
    passed = event_questions._FILLERS | {"not"}
    words = (set(tables.words_of(phrase)) - passed for phrase in phrases)
    return [frozenset(map(vocabulary.stem, each)) for each in words]


def _stems_of(text: str) -> frozenset[str]:
    return frozenset(map(vocabulary.stem, (*tables.words_of(text), *vocabulary.plain(text))))


def _sections(table: str) -> Iterator[Rule]:
    """Yield a rule for each section of a table, and one for all of it."""
    text = tables._file(table).read_text("utf-8")
    found, section, at = defaultdict[str, list[int]](list), "", 0
    for line in filter(None, text.splitlines()):
        if line.startswith("#"):
            section = line.strip("# ")
        else:
            found[section].append(at)
            at += 1
    rows, of_objects = tables.rows(table), table == "glossary"
    found["all"] = [*range(1, at)]
    for name, numbers in found.items():
        swaps = [_without(table, numbers)]
        if of_objects:
            swaps += [_written_by(f"without {name}")]
        example = rows[numbers[0]][0].partition("|")[0]
        said = [phrase for n in numbers for phrase in rows[n][0].split("|")]
        phrases = None if of_objects else _stems(said)
        yield Rule(table, name, example, swaps, is_of_objects=of_objects, phrases=phrases)


def _written_by(what: str) -> Swap:
    """Return the version of records, by which all objects are rendered again."""
    version = f"{records.written_by()}, {what}"
    return records, "written_by", lambda: version


def _without(table: str, left_out: Sequence[int], row: Sequence[str] | None = None) -> Swap:
    """Return what reads a table without some rows, or with another row in the place of each."""
    whole, gone = tables.rows, frozenset(left_out)

    def rows(name: str) -> list[list[str]]:
        found = whole(name)
        if name != table:
            return found
        return [
            each if n not in gone else [*(row or ())]
            for n, each in enumerate(found)
            if n not in gone or row is not None
        ]

    return tables, "rows", rows


def _patterns() -> Iterator[Rule]:
    """Yield a rule for each row of the tables of patterns in modules."""
    for part in ("comparisons", "times", "dates"):
        table = getattr(constraints, part.upper())
        for row in table:
            rest = tuple(other for other in table if other is not row)
            yield Rule(part, row.name, row.example, [(constraints, part.upper(), rest)])
    for read, example in question_patterns.PATTERNS[:-1]:
        rest = tuple(row for row in question_patterns.PATTERNS if row[0] is not read)
        name = read.__name__.removeprefix("_of_")
        yield Rule("patterns", name, example, [(question_patterns, "PATTERNS", rest)])
    for asked in related_answers.UNIT_QUESTIONS:
        rest = tuple(row for row in related_answers.UNIT_QUESTIONS if row is not asked)
        swaps = [(related_answers, "UNIT_QUESTIONS", rest)]
        yield Rule("related units", asked.example, asked.example, swaps)
    for row in (*extremes._ADJECTIVES, *extremes._TIMES):
        phrases = [phrase for way in row[1:] for phrase in way.split("|")]
        known = {key: value for key, value in extremes._ASKED.items() if key not in phrases}
        words = "|".join(sorted(known, key=len, reverse=True))
        pattern = re.compile(rf"(?<!\bat )\b(?:{words})\b", re.IGNORECASE)
        swaps = [(extremes, "_ASKED", known), (extremes, "_WORDS", pattern)]
        yield Rule("extremes", phrases[0], f"{phrases[0]} disk", swaps)
    for name, meant in lexical_matches._CALLED.items():
        left = {key: value for key, value in lexical_matches._CALLED.items() if key != name}
        swaps = [(lexical_matches, "_CALLED", left)]
        yield Rule("field names", name, f"{name}: {', '.join(meant)}", swaps, is_everywhere=False)


def _functions() -> Iterator[Rule]:
    """Yield a rule for each function or set of words that can be replaced by nothing."""
    none, kind_boosts = frozenset[str](), scores.kind_boosts
    words: Sequence[tuple[str, str, str, ModuleType, str, Any]] = (
        ("kinds", "a question with a verb first asks for its last noun",
         "can the ports of alice be reached", kinds, "_ENDING", none),
        ("kinds", "a later clause asks", "voice chat, on which port?", kinds, "_LATER", _NEVER),
        ("kinds", "the head of a noun phrase", "ssh port of this machine", kinds, "_head",
         lambda *_: 0),
        ("values", "not before its verb", "isn't the old printer running",
         vocabulary, "_beside_verbs", lambda found: found),
        ("values", "negated words are not searched", "not enabled",
         vocabulary, "negated_words", lambda _: set()),
        ("values", "a verb after do", "did it crash", vocabulary, "_ASKING", none),
        ("values", "a verb after which", "services that run but are disabled",
         vocabulary, "_RELATIVE", none),
        ("values", "a verb before a contrast", "which services run but are not enabled",
         vocabulary, "_AFTER_CLAUSES", none),
        ("values", "participles", "what is failing", vocabulary, "_PARTICIPLES", ()),
        ("values", "fillers after not", "not currently running", vocabulary, "_FILLERS", none),
        ("patterns", "what can have a value is asked for", "what is failed",
         question_patterns, "_kinds_having", lambda _: 0),
        ("patterns", "only values and kinds", "which packages are not fully installed",
         question_patterns, "_is_pure", lambda _: False),
        ("patterns", "statement of a state", "the web server is down",
         question_patterns, "is_statement", lambda _: False),
        ("patterns", "whether", "is postgres running", question_patterns, "_WHETHER", none),
        ("patterns", "of one object", "which version of redis", question_patterns, "_OF_ONE", none),
        ("patterns", "any", "is anything broken", question_patterns, "_ANY", none),
        ("patterns", "words of states", "is docker installed",
         question_patterns, "_OF_STATES", none),
    )  # fmt: skip
    for part, name, example, module, key, new in words:
        yield Rule(part, name, example, [(module, key, new)])
    swaps: Sequence[Swap] = [
        (synonyms, "_forms", lambda name: iter((name,))),
        _written_by("whole names"),
    ]
    yield Rule("glossary", "names without suffix or number", "wg0", swaps, is_of_objects=True)
    functions: Sequence[tuple[str, str, str, ModuleType, str, Any]] = (
        ("words", "everyday words", "phone calls", lexical_matches, "_add_everyday",
         lambda *_: None),
        ("words", "rare words", "asterisk", lexical_matches, "TELLING", -1),
        ("words", "a leading state", "stopped database", lexical_matches, "_without_state",
         lambda _question, terms, _view: terms),
        ("words", "an identifier means its object", "192.0.2.1", query_terms, "is_exact",
         lambda *_: False),
        ("words", "missing words", "kubernetes", lexical_matches, "find_missing",
         lambda *_: scores.Missing()),
        ("literals", "numbers", "uid 0", lexical_matches, "_numbered", lambda _: []),
        ("literals", "numbers in words", "uid three", lexical_matches, "_DIGITS", {}),
        ("literals", "port and protocol", "51820/udp", lexical_matches, "_PORT", _NEVER),
        ("literals", "exit status", "status=203/EXEC", lexical_matches, "_STATUS", _NEVER),
        ("literals", "words", "zsh as shell", lexical_matches, "_having_value", lambda *_: []),
        ("literals", "technical fields", "noexec", lexical_matches, "_TECHNICAL", none),
        ("literals", "states in capitals", "SIGABRT", lexical_matches, "_STATES", none),
        ("literals", "everyday names of fields", "privilege", lexical_matches, "_CALLED", {}),
        ("boosts", "names", "sshd", lexical_matches, "_add_names", lambda *_: None),
        ("boosts", "less certain names", "time staff", query_terms, "certainty", lambda *_: 1.0),
        ("boosts", "values", "failed", lexical_matches, "value_shares", lambda *_: None),
        ("boosts", "kinds", "which timers", lexical_matches, "kind_boosts",
         lambda _asked, _kinds, less, _values: np.zeros_like(less)),
        ("boosts", "penalties of kinds", "what prints", lexical_matches, "kind_boosts",
         lambda asked, of, less, values:
         kind_boosts(asked, of, np.zeros_like(less), values)),
        ("boosts", "value and kind", "failed services", scores, "VALUE_OF_KIND_WEIGHT", 0.0),
        ("boosts", "damped values", "is postgres running", question_patterns, "DAMPED", 1.0),
        ("order", "units of op-dbus and targets", "is the printer on",
         hit_features, "exclusion_rule", lambda _: lambda *_: False),
        ("order", "term overlap", "any", hit_features, "overlap_shares",
         lambda _question, texts: [0.0] * len(texts)),
        ("order", "booleans", "which slide is not open", hit_features, "agreement", lambda *_: 0),
        ("order", "extremes", "largest package", extremes, "find_extremes", _nothing),
        ("order", "extremes in the plural", "largest packages", extremes, "_is_plural",
         lambda _: False),
        ("order", "related units", "what needs postgresql", related_answers, "_related_units",
         _nothing_listed),
        ("order", "related objects", "which package brings the port",
         related_answers, "_related", _nothing_listed),
        ("order", "starters", "what starts the backup", related_answers, "_STARTING", _NEVER),
        ("refusing", "other kinds", "kubernetes pods", hit_features, "find_mismatches",
         _without_mismatch("kind")),
        ("refusing", "other values", "which packages are held", hit_features, "find_mismatches",
         _without_mismatch("value")),
        ("refusing", "other names", "is docker installed", hit_features, "find_mismatches",
         _without_mismatch("name")),
        ("refusing", "kinds of which there are none", "which container",
         hit_features, "has_asked_kind", lambda *_: True),
        ("refusing", "numbers that nothing has", "what listens on port 5432",
         hit_features, "has_asked_number", lambda *_: True),
        ("spelling", "names in two words", "on call", spelling, "find_compounds", lambda *_: []),
        ("spelling", "typing errors", "newtork", spelling, "_mistyped", lambda *_: ""),
        ("spelling", "beginnings", "netw", spelling, "_longer", lambda *_: ""),
        ("spelling", "joined words", "networkinterface", spelling, "_two_words", lambda *_: ""),
        ("spelling", "all but names", "fire wall", spelling, "corrections", lambda *_: []),
    )  # fmt: skip
    for part, name, example, module, key, new in functions:
        yield Rule(part, name, example, [(module, key, new)], is_everywhere=True)


async def _nothing(*_: object) -> None:
    return


async def _nothing_listed(*_: object) -> list[Any]:
    return []


def _without_mismatch(name: str) -> Callable[..., scores.Mismatch]:
    whole = hit_features.find_mismatches
    return lambda *given, **more: whole(*given, **more)._replace(**{name: 0.0})


@contextmanager
def left_out(rule: Rule) -> Iterator[None]:
    """Put other values in the place of a rule's, in every module that has them."""
    modules = [m for name, m in sys.modules.items() if name.startswith("opdbus.")]
    # a name that other modules import, too
    places = [
        (other, name, old, new)
        for module, name, new in rule.swaps
        for old in [getattr(module, name)]
        for other in modules
        if vars(other).get(name) is old
    ]
    try:
        for module, name, _, new in places:
            setattr(module, name, new)
        _forget(modules)
        yield
    finally:
        for module, name, old, _ in places:
            setattr(module, name, old)
        _forget(modules)


def _forget(modules: Sequence[ModuleType]) -> None:
    """Clear what functions remember."""
    for module in modules:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def reading(words: str) -> tuple[Any, ...]:
    """Return what the grammar reads in a question."""
    terms = query_terms.terms(words)
    extreme = extremes._WORDS.search(words)
    asked = words.strip(" ?.!")
    units = [each.example for each in related_answers.UNIT_QUESTIONS
             if each.pattern.fullmatch(asked)]  # fmt: skip
    called = {one: lexical_matches._CALLED.get(one) for one in tables.words_of(words)}
    return (
        _glosses(words),
        [*vocabulary.plain(words)],
        {**vocabulary.values_in(words)},
        [vocabulary.values_in(term) for term in terms],
        vocabulary.negated_words(words),
        kinds.kind_words(words),
        kinds.kind_phrases(words),
        kinds.requested(words, STOP_WORDS),
        question_patterns.of(words),
        question_patterns.subject(words),
        question_patterns.states(words),
        question_patterns.is_statement(words),
        question_patterns.is_yes_or_no(words),
        synonyms.find_synonyms(words),
        event_questions.find_events(words),
        event_questions.besides(words),
        event_questions.event_words(words),
        routes.name_of(words),
        constraints.find_comparisons(words),
        constraints.find_times(words),
        constraints.find_dates(words, OBSERVED),
        extreme and (extreme[0], extremes._ASKED[extreme[0].lower()]),
        units,
        called,
    )


def _glosses(words: str) -> list[str]:
    return [synonyms.gloss(term) for term in (*query_terms.terms(words), words)]


# The questions


def every_host(serving: Serving) -> list[Host]:
    """Return the hosts of all sets."""
    found = [_large(name, serving) for name in HOSTS]
    few = {f"strangers {n}": (r["objects"], [r], _HELD) for n, r in enumerate(load("strangers"))}
    for name, half in (("trades", _OPEN), ("trades_held", _HELD)):
        for n, row in enumerate(load(name)):
            few[f"{name} {n}"] = row["objects"], row["questions"], half
    school = json.loads((days.DATA / "school.json").read_text(encoding="utf-8"))["first"]
    few["ask 0"] = school, [row for row in load("ask") if "answers" in row], _HELD
    found += [_small(name, serving, *given) for name, given in few.items()]
    return [*found, _day("day"), _day("school"), Host("routes", _nothing, [*_of_routes()])]


def _large(name: str, serving: Serving) -> Host:
    async def ask(row: dict[str, Any], finder: Finder) -> Outcome:
        found = await answer(finder, name, row, _MODE)
        return Outcome(found.rank, is_refused(found))

    async def opening(stack: AsyncExitStack, scratch: Path) -> Finder:
        finder, _ = await stack.enter_async_context(finding(name, scratch, serving))
        return finder

    asked = [
        Question(
            row.get("set") if row.get("set") == "states" else name,
            _HALVES[row["half"]],
            row["kind"],
            row["question"],
            partial(ask, row),
            frozenset(row.get("answers", ())),
        )
        for row in questions(name)
        if row["kind"] != "taken out"
    ]
    return Host(name, opening, asked, contents(name))


def _small(
    name: str, serving: Serving, objects: Sequence[Any], rows: Sequence[dict[str, Any]], half: str
) -> Host:
    async def ask(row: dict[str, Any], finder: Finder) -> Outcome:
        right = {"/".join(one) for one in row["answers"]}
        found = await answer(finder, name, {**row, "answers": right, "half": half}, _MODE)
        return Outcome(found.rank, is_refused(found))

    async def opening(stack: AsyncExitStack, scratch: Path) -> Finder:
        folder = scratch / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        finder, _ = await stack.enter_async_context(finding_of_few(objects, folder, serving))
        return finder

    asked = [
        Question(
            name.split(maxsplit=1)[0],
            half,
            _ANSWERABLE if row["answers"] else "absent",
            row["question"],
            partial(ask, row),
            frozenset(map("/".join, row["answers"])),
        )
        for row in rows
    ]
    made = [StateObject(Identity(*row[:4]), row[4]) for row in objects]
    return Host(name, opening, asked, made)


def _day(name: str) -> Host:
    async def ask(row: dict[str, Any], wording: str, opened: Any) -> Outcome:  # noqa: ANN401
        finder, acts = opened
        try:
            (rank,) = await days.ranks(finder, {**row, "wordings": [wording]}, acts)
        except NotKept:
            rank = 0
        return Outcome(rank, is_refused=False)

    async def refuse(foreign: str, opened: Any) -> Outcome:  # noqa: ANN401
        return Outcome(0, not await opened[0].about(foreign, Filter(), 3))

    async def opening(stack: AsyncExitStack, _scratch: Path) -> Any:  # noqa: ANN401
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        return await stack.enter_async_context(days.lived(Path(folder), name))

    asked = [
        Question(name, _HALVES[row["set"]], _ANSWERABLE, text, partial(ask, row, text))
        for row in json.loads((days.DATA / f"{name}_questions.json").read_text(encoding="utf-8"))
        for text in row["wordings"]
    ]
    for row in load("foreign")[::5]:
        text, half = row["question"], _HALVES[row["half"]]
        asked.append(Question(name, half, "foreign", text, partial(refuse, text)))
    return Host(name, opening, asked)


def _of_routes() -> Iterator[Question]:
    """Yield the questions of routes; those of exams are all about objects."""

    async def ask(question: str, right: Sequence[str], _: None) -> Outcome:
        return Outcome(int(routes.name_of(question) in right), is_refused=False)

    rows = [(row, row["half"]) for row in load("routes")]
    rows += [(row, _HELD) for row in load("ask")]
    for exam in EXAMS:
        rows += [
            ({**row, "route": routes.OBJECTS}, row["half"]) for row in load(f"{exam}_questions")
        ]
    for row, half in rows:
        text, route = row["question"], row["route"]
        right = route if isinstance(route, list) else [route]
        yield Question("routes", _HALVES[half], _ANSWERABLE, text, partial(ask, text, right))


# Asking

# Sets that are asked about a rule that may concern any question. The others follow where no first
# answer of these is lost.
_SOON: Final = {*EXAMS, "example", "values", "strangers", "trades", "trades_held", "ask", "day"}
# Sets that a part is of, where others do not depend on it.
_ONLY: Final[Mapping[str, set[str]]] = {"happenings": {"day", "school"}, "routes": {"routes"}}
Asked: TypeAlias = tuple[Question, Outcome, Outcome]


class Asking:
    """All hosts in a scratch folder, asked with all rules and without one."""

    def __init__(
        self, hosts: Sequence[Host], level: str, scratch: Path, stack: AsyncExitStack
    ) -> None:
        self.hosts = hosts
        self._level = level
        self._scratch = scratch
        self._stack = stack
        self._texts = {host.name: [*map(render, host.objects)] for host in hosts}
        every = {each.text for host in hosts for each in host.questions}
        self._readings = {text: reading(text) for text in every}
        self._stems = {text: _stems_of(text) for text in every}

    async def ask(self, host: Host, numbers: Sequence[int]) -> None:
        """Ask questions of a host with all rules, unless that is done."""
        for n in numbers:
            if n not in host.outcomes:
                host.opened = host.opened or await host.open(self._stack, self._scratch)
                host.outcomes[n] = await host.questions[n].ask(host.opened)

    async def without(self, rule: Rule) -> list[Asked]:
        """Return questions with their outcomes with a rule and without it."""
        if rule.is_of_objects:
            return [row for host in self.hosts for row in await self._render_without(rule, host)]
        if not rule.is_everywhere:
            with left_out(rule):
                wanted = [(host, self._concerned(rule, host)) for host in self.hosts]
            return [row for each in wanted for row in await self._ask_without(rule, *each)]
        found = list[Asked]()
        for is_soon in (True, False):
            for host in self.hosts:
                numbers = [
                    n
                    for n, each in enumerate(host.questions)
                    if is_soon == (each.set in _SOON and each.kind != "foreign")
                ]
                found += await self._ask_without(rule, host, numbers)
            if any(_is_lost(*row) for row in found):
                break
        return found

    async def _ask_without(self, rule: Rule, host: Host, numbers: Sequence[int]) -> list[Asked]:
        await self.ask(host, numbers)
        with left_out(rule):
            return [
                (each, host.outcomes[n], await each.ask(host.opened))
                for n in numbers
                for each in [host.questions[n]]
            ]

    async def _render_without(self, rule: Rule, host: Host) -> list[Asked]:
        """Ask what has a right answer of another text, or a word of another gloss.

        The host is opened anew, with the texts that its objects have without the rule.
        """
        with left_out(rule):
            changed = self._changed(host)
            numbers = [
                n
                for n, each in enumerate(host.questions)
                if not changed.isdisjoint(each.right)
                or _glosses(each.text) != self._readings[each.text][0]
            ]
        if not changed or not numbers:
            return await self._ask_without(rule, host, numbers)
        await self.ask(host, numbers)
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for kept in {f"{host.name}-{self._level}", host.name.replace(" ", "-")}:
                if (self._scratch / kept).exists():
                    shutil.copytree(self._scratch / kept, folder / kept)
            with left_out(rule):
                opened = await host.open(stack, folder)
                return [
                    (each, host.outcomes[n], await each.ask(opened))
                    for n in numbers
                    for each in [host.questions[n]]
                ]

    def _concerned(self, rule: Rule, host: Host) -> list[int]:
        """Return the questions that are read otherwise now."""
        only = _ONLY.get(rule.part)
        return [
            n
            for n, each in enumerate(host.questions)
            if (only is None or each.set in only) and self._is_read_otherwise(rule, each.text)
        ]

    def _is_read_otherwise(self, rule: Rule, text: str) -> bool:
        may = rule.phrases is None or any(each <= self._stems[text] for each in rule.phrases)
        return may and reading(text) != self._readings[text]

    def _changed(self, host: Host) -> set[str]:
        """Return the objects of a host whose texts are others now."""
        rows = zip(host.objects, self._texts[host.name], strict=True)
        return {"/".join(item.identity[1:]) for item, text in rows if render(item) != text}


def _is_lost(question: Question, old: Outcome, new: Outcome) -> bool:
    """Return whether a first right answer, or the refusal of what has none, is lost."""
    if question.kind in {_ANSWERABLE, "typos"}:
        return new.reciprocal < old.reciprocal == 1
    return old.is_refused > new.is_refused


async def work(level: str, scratch: Path, names: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Ask what each of some rules concerns, with all rules and without it; or all questions."""
    vectors = _remember_vectors(scratch / "questions.pickle")
    async with served(level, scratch) as serving, AsyncExitStack() as stack:
        asking = Asking(every_host(serving), level, scratch, stack)
        report: dict[str, Any] = {"rules": []}
        if not names:
            for host in asking.hosts:
                await asking.ask(host, range(len(host.questions)))
                _say(f"{host.name}: {len(host.questions)} questions")
            report["baseline"] = _baseline(asking.hosts)
        for rule in [rule for rule in every_rule() if (rule.part, rule.name) in names]:
            begun = datetime.now(UTC)
            report["rules"].append(_figures(rule, await asking.without(rule)))
            took = (datetime.now(UTC) - begun).total_seconds()
            _say(f"{took:6.1f} s {json.dumps(report['rules'][-1])}")
        (scratch / "questions.pickle").write_bytes(pickle.dumps(vectors))
        return report


def _remember_vectors(file: Path) -> dict[tuple[Any, ...], Embedding]:
    """Compute the vector of each question once; those in a file are known."""
    known: dict[tuple[Any, ...], Embedding] = {}
    if file.exists():
        known = pickle.loads(file.read_bytes())  # noqa: S301 -- ours
    embed = Serving.embed

    async def remembered(
        serving: Serving,
        texts: Sequence[str],
        level: str = "",
        *,
        truncate: bool = True,
        priority: Rank = Rank.FEW,
    ) -> Embedding:
        key = (serving.config.vector_level, level, *texts)
        if len(texts) != 1 or key not in known:
            found = await embed(serving, texts, level, truncate=truncate, priority=priority)
            if len(texts) != 1:
                return found
            known[key] = found
        return known[key]

    Serving.embed = remembered  # type: ignore[method-assign]
    return known


def _baseline(hosts: Sequence[Host]) -> dict[str, Any]:
    """Return the figures of all sets and halves with all rules."""
    found = defaultdict[tuple[str, str], list[Outcome]](list)
    for host in hosts:
        for n, each in enumerate(host.questions):
            found[f"{each.set}, {each.half}", each.kind].append(host.outcomes[n])
    report = defaultdict[str, dict[str, Any]](dict)
    for (name, kind), some in sorted(found.items()):
        report[name][kind] = {
            "questions": len(some),
            "refused": sum(one.is_refused for one in some),
            "MRR": round(sum(one.reciprocal for one in some) / len(some), 4),
        }
    return report


def _figures(rule: Rule, found: Sequence[tuple[Question, Outcome, Outcome]]) -> dict[str, Any]:
    """Sum up what leaving out a rule changes, by half."""
    report: dict[str, Any] = {"part": rule.part, "rule": rule.name, "example": rule.example}
    report["asked"] = len(found)
    for half in (_HELD, _OPEN):
        counts, ranks = Counter[str](), Counter[str]()
        for each, old, new in found:
            if each.half != half:
                continue
            if each.kind in {_ANSWERABLE, "typos"}:
                counts["gained"] += old.reciprocal < new.reciprocal == 1
                counts["lost"] += new.reciprocal < old.reciprocal == 1
                ranks[each.set] += new.reciprocal - old.reciprocal  # type: ignore[assignment]
            name = "answerable" if each.kind == "typos" else each.kind
            counts[f"{name} refused"] += new.is_refused - old.is_refused
            counts[f"{name} no longer refused"] += old.is_refused > new.is_refused
        if shown := {key: count for key, count in counts.items() if count}:
            report[half] = shown
        if moved := {key: round(sum_, 3) for key, sum_ in ranks.items() if abs(sum_) > 1e-9}:
            report.setdefault(half, {})["reciprocal ranks"] = moved
    return report


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


def _work(level: str, scratch: Path, names: Sequence[tuple[str, str]]) -> dict[str, Any]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    return asyncio.run(work(level, scratch, names))


def main() -> None:
    """Measure the rules, in as many processes as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="medium")
    parser.add_argument("--rules", nargs="+", help="parts, such as vocabulary; all unless given")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--scratch", type=Path, help="where vectors are kept for the next time")
    parser.add_argument("--json", type=Path, default=Path("/dev/stdout"))
    given = parser.parse_args()
    names = [(r.part, r.name) for r in every_rule() if r.part in (given.rules or [r.part])]
    with tempfile.TemporaryDirectory() as folder:
        scratch = given.scratch or Path(folder)
        # vectors are computed once, and each process has its own copy
        own = [scratch / str(n) for n in range(given.processes)]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(given.processes, spawn) as pool:
            baseline = pool.submit(_work, given.level, own[0], []).result()["baseline"]
            for other in own[1:]:
                shutil.rmtree(other, ignore_errors=True)
                shutil.copytree(own[0], other)
            parts = [names[n :: given.processes] for n in range(given.processes)]
            found = [*pool.map(_work, [given.level] * len(own), own, parts)]
    order = {name: n for n, name in enumerate(names)}
    rules = [row for each in found for row in each["rules"]]
    rules.sort(key=lambda row: order[row["part"], row["rule"]])
    report = {
        "date": f"{datetime.now(UTC):%F}",
        "machine": machine.describe().line,
        "level": given.level,
        "baseline": baseline,
        "rules": rules,
    }
    given.json.write_text(f"{json.dumps(report, indent=1, ensure_ascii=False)}\n")


if __name__ == "__main__":
    main()
