"""Whatever reads text that somebody else wrote takes four times as long for four times as much.

The time is the processor's, and the smallest of several runs where it matters. Each pattern is
tried with texts of what it repeats itself, by the methods that are called of it.
"""

import ast
import gc
import importlib
import inspect
import pkgutil
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from re import _compiler as compiler  # type: ignore[attr-defined]  # patterns have no public parser
from re import _constants as codes  # type: ignore[attr-defined]  # as above
from re import _parser as parser  # type: ignore[attr-defined]  # as above
from typing import Any, Final, NamedTuple

import pytest
from conftest import ROOT
from harness.remembering import unit

import opdbus
from opdbus.bus import paths
from opdbus.cli import output
from opdbus.drift import equality, field_comparison, rule_table, versions
from opdbus.errors import OpDbusError
from opdbus.history import change_sentence, checkpoint, event_questions, jobs
from opdbus.history.change import Cause, Change, FieldChange
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.changes import change_ranking, change_relations
from opdbus.index.database.quota import Usage
from opdbus.index.database.store import Entry
from opdbus.index.query import (
    query_terms,
    question_patterns,
    schedule_times,
)
from opdbus.index.query.question_conditions import MAX_CHARACTERS
from opdbus.language import kinds, routes, synonyms, vocabulary
from opdbus.language.object_text import render
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.host import crontab
from opdbus.observe.kernel import mounts
from opdbus.observe.kernel.kernel import parse_modules, parse_parameters
from opdbus.observe.kernel.sysctls import Sysctls
from opdbus.observe.packages import documents, dpkg
from opdbus.observe.systemd import unit_files
from opdbus.platform import timestamps
from opdbus.platform.slices import slices
from opdbus.settings import env_file
from opdbus.state import conditions, document, fields, flatten, publish, redact
from opdbus.state.object import Identity, ObjectId
from opdbus.wording import change_words

# What texts are made of: words that somebody reads, separators, brackets, quotes, blanks.
TOKENS: Final = (
    "a", " ", "\n", "1", "not ", "can't it the ", "which ports, on which ", "what before ", "and ",
    "a=b, ", "a:", "a\n", "'", '"', "(", '[{"a":', "</a", "\\", "-", "--a ", ".", ":", "1.", "/",
    ",", "%", "=", "#", "\t", "\x01", "\u00e9 ", "aB", "_", "* ", "x:1:", "1:", "$(", "-----BEGIN ",
    "password=", "://a@",
)  # fmt: skip
SIZES: Final = (1024, 4096)
QUESTION_SIZES: Final = (MAX_CHARACTERS // 4, MAX_CHARACTERS)
# The first one is small enough for an exponential pattern.
PATTERN_SIZES: Final = (24, 384, 1536)
# Four times for a text four times as long, and half as much again for what memory does.
MOST: Final = 6.0
# In so little time nothing that grows with the square has done much yet.
TINY_SECONDS: Final = 0.001
# So long a time is no accident: it need not be measured again.
LONG_SECONDS: Final = 0.2
HERE: Final = Path("state.json")
THING: Final = ObjectId("lab", "box", "x")
Work = Callable[[str], object]


class Text(NamedTuple):
    """A text of any length: a beginning, a token that is repeated, and an ending."""

    prefix: str
    token: str
    ending: str

    def of(self, size: int) -> str:
        """Return it with about so many characters."""
        return self.prefix + self.token * (size // len(self.token)) + self.ending


def seconds(work: Work, text: str, runs: int = 1) -> float:
    """Return the least processor time of some runs, without garbage collection."""
    found = []
    for _ in range(runs):
        gc.disable()
        try:
            before = time.thread_time()
            work(text)
            found.append(max(time.thread_time() - before, 1e-6))
        finally:
            gc.enable()
    return min(found)


def growth(work: Work, text: Text, sizes: Iterable[int]) -> float:
    """Return by how much time grows at most where a text is four times as long; 0 if it is tiny."""
    worst = 0.0
    for size in sizes:
        if (spent := seconds(work, text.of(size))) < TINY_SECONDS:
            continue
        before = seconds(work, text.of(size // 4))
        if spent > MOST * before and spent < 10 * LONG_SECONDS:
            # the least of several: another process may have used the caches
            runs = 9 if spent < LONG_SECONDS else 3
            before, spent = (seconds(work, text.of(each), runs) for each in (size // 4, size))
            # a pattern with a bounded window grows faster until the text fills the window
            if spent > MOST * before and spent < LONG_SECONDS:
                runs = 9 if spent < LONG_SECONDS / 40 else 3
                before, spent = spent, seconds(work, text.of(4 * size), runs)
        worst = max(worst, spent / before) if spent > TINY_SECONDS else worst
        if worst > MOST:
            break
    return worst


def _object(text: str) -> dict[str, Any]:
    return {"address": text, text[:1000]: text, "list": text.split(" "), "in": {"a": [text]}}


def _change(text: str) -> None:
    whole = Identity("live:lab", *THING)
    changed = [FieldChange((key,), [text + "x"], [text]) for key in ("version", "state", text)]
    change_sentence.of_change(Change(whole, "changed", Cause("exit"), changed), text)


def _document(text: str) -> None:
    for given in (text, f'{{"a": "{text}"}}', f"{{{text}}}"):
        document.parse(given, HERE)


def _compared(text: str) -> None:
    """Compare a text with what is declared, by each rule of the table and without one."""
    for declared in ("10.0.0.1", 5, [text], text + "x"):
        fields = dict.fromkeys((*RULES, "address", "command", "state", "enabled"), declared)
        field_comparison.compare(ROW, fields, {**dict.fromkeys(fields, text), text: text})
    field_comparison.unseen(ROW, "x", {f"{text}s": 1}, {text: text})


# every rule that there is, each for a field of its own
MEANINGS: Final = {rule.means: rule for row in rule_table.ROWS for rule in row.rules.values()}
RULES: Final = {
    f"k{n}": replace(rule, observed=f"k{n}") for n, rule in enumerate(MEANINGS.values())
}
ROW: Final = replace(rule_table.ROWS[0], rules=RULES)


def _jobs(text: str) -> list[crontab.Job]:
    return crontab.parse_crontab(text, Path("crontab"), Skipped())


def _file(folder: Path, name: str, read: Callable[[], object]) -> Work:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)

    def work(text: str) -> None:
        path.write_text(text, errors="replace")
        read()

    return work


def _readers(folder: Path) -> dict[str, Work]:
    """Give what reads texts, besides questions."""
    service, root = folder / "x.service", folder / "etc"
    return {
        "address": equality.address,
        "bus path": lambda text: (paths.parse(paths.of(*THING[:2], text)), paths.parse(text)),
        "cause": lambda text: (
            change_words.describe_cause(text),
            change_words.describe_cause(f"apt:{text}"),
            jobs.others(text),
        ),
        "checkpoint": lambda text: checkpoint.parse(f"op-dbus/{text}\n1\n{text}", 0, text),
        "conditions": lambda text: (conditions.parse(text), conditions.parse(f"a = {text}")),
        "crontab": lambda text: [*_jobs(text), *_jobs(f"* * * * * root {text}")],
        "crontab of anacron": lambda text: [
            *crontab.parse_anacrontab(text, Path("crontab"), Skipped())
        ],
        "drift": _compared,
        "env file": _file(folder, "env", lambda: [*env_file.read_assignments(folder / "env")]),
        "fields": lambda text: (fields.split(text), fields.paths(_object(text))),
        "flatten": lambda text: [*flatten.flatten({text: _object(text), "b": {text: {"a": {}}}})],
        "glossary": synonyms.gloss,
        "happening": _change,
        "lexical terms": lambda text: (query_terms.terms(text), query_terms.names(text)),
        "manual page": lambda text: documents.describe_page(f".SH NAME\nx \\- {text}"),
        "modules": lambda text: (parse_modules(text), parse_modules(f"a 1 2 {text} Live")),
        "mountinfo": lambda text: (
            mounts.parse_mountinfo(text),
            mounts.parse_mountinfo(f"1 2 3 / {text} a - b c"),
        ),
        "number": conditions.number,
        "output": lambda text: (output.escape_hidden(text), output.json_text(text)),
        "package": lambda text: dpkg.parse_paragraph(f"Package: {text}\nStatus: {text}\n".encode()),
        "parameters": parse_parameters,
        "program": crontab.program,
        "published": lambda text: publish.make_object("publish:x", *THING, _object(text)),
        "redaction": lambda text: (redact.redact_text(text), redact.redact(_object(text))),
        "rendering": lambda text: render(unit(text, description=text, note=text)),
        "services": documents.parse_services,
        "short name": lambda text: change_relations.called(ObjectId("a", "b", text)),
        "state file": _document,
        "sysctl": _file(root, "sysctl.conf", lambda: Sysctls(folder).read()),
        "terminal": lambda text: (output.wrap(text, 40), output.width_of(text)),
        "time": lambda text: timestamps.moment(text, 1e9, 1e9),
        "unit file": _file(
            folder, service.name, lambda: unit_files.describe_units([service.name], [str(folder)])
        ),
        "values": lambda text: [
            equality.same(one, text) for one in ("10.0.0.1", text + "x", 1, [1])
        ],
        "versions": lambda text: versions.satisfies(f">= {text[:9]}, < 1", text, exactly=True),
        "version wanted": lambda text: (
            versions.satisfies(text, "1.2"),
            versions.compare(text, "1"),
        ),
        "vocabulary": lambda text: vocabulary.Reader().traits(Identity("a", *THING), {"a": text}),
        "words": vocabulary.plain,
        "wording": lambda text: (
            event_questions.is_alike(text, text + "x"),
            event_questions.share([1], text),
        ),
    }


QUESTIONS: Final[dict[str, Work]] = {
    "changes asked for": event_questions.find_events,
    "changes besides": lambda text: (event_questions.besides(text), event_questions.saying(text)),
    "everyday words": synonyms.find_synonyms,
    "form": question_patterns.of,
    "kinds": lambda text: (kinds.requested(text, query_terms.STOP_WORDS), kinds.kind_phrases(text)),
    "subject": change_ranking.subject,
    "times": schedule_times.find_times,
    "vocabulary": vocabulary.negated_words,
}


def _forgetful(work: Work) -> Work:
    """Work without what is remembered of the same text."""

    def anew(text: str) -> None:
        for cached in (vocabulary.values_in, synonyms.find_synonyms, question_patterns.of):
            cached.cache_clear()
        with suppress(OpDbusError, ValueError):
            work(text)

    return anew


def _faults(work: Work, sizes: tuple[int, ...]) -> Iterator[str]:
    for token in TOKENS:
        for text in (Text("", token, "!"), Text("what is ", token, "\n")):
            if (found := growth(_forgetful(work), text, sizes)) > MOST:
                yield f"{found:.0f} times as long for 4 times as much of {text}"


@pytest.mark.parametrize("name", _readers(Path()))
def test_reader_is_linear(name: str, tmp_path: Path) -> None:
    """Whatever reads a text of somebody else takes time as the text is long."""
    assert [*_faults(_readers(tmp_path)[name], SIZES)] == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_question_is_read_in_linear_time(name: str) -> None:
    """Reading a question takes time as it is long, up to the most that is read of one."""
    assert [*_faults(QUESTIONS[name], QUESTION_SIZES)] == []


@pytest.mark.parametrize("together", [1, 1000], ids=["one by one", "together"])
def test_objects_of_one_name_take_as_long_as_others(together: int) -> None:
    """Take four times as long to put and remove four times as many objects that have one name."""

    def work(text: str) -> None:
        catalogue = Catalogue(Usage())
        names = [Identity("publish:x", "lab", f"kind{n}", "eth0") for n in range(1, len(text))]
        entries = [
            Entry(n, name, 0, "0" * 32, bytes(16), updated_at=0, transient=False)
            for n, name in enumerate(names, 1)
        ]
        for part in slices(entries, together):
            catalogue.put(part)
        assert len(catalogue.named("eth0")) == len(entries)
        for entry in entries:
            catalogue.remove([entry])
        assert not catalogue.named("eth0")

    # of many dictionaries the caches hold less: still far from the 16 times of a square
    assert any(growth(work, Text("", "a", ""), (250, 1000)) < 10 for _ in range(3))


METHODS: Final = frozenset("match fullmatch search finditer findall sub subn split".split())
REPEATS: Final = frozenset({codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT})
CHARACTERS: Final = "a1 -.:/=\n\t,AzB_'\"(){}[]<>|#%$@;*+\\?!~^&`"


class Used(NamedTuple):
    """A pattern, where it stands, and the methods of it that are called."""

    where: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


def inside(value: Any, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    """Yield the patterns in a constant, in a table, and in what is read once by a function."""
    if hasattr(value, "cache_info") and not inspect.signature(value).parameters:
        value = value()
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, Mapping | list | tuple | set | frozenset) and depth < 4:
        parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        for part in parts:
            yield from inside(part, depth + 1)


def written_in(module: str, function: ast.AST) -> Iterator[Used]:
    """Yield the patterns that a function has where it uses them; what is put in is a word."""
    for node in ast.walk(function):
        match node:
            case ast.Call(ast.Attribute(ast.Name("re"), method), [first, *_]):
                parts = first.values if isinstance(first, ast.JoinedStr) else [first]
                if all(isinstance(part, ast.Constant | ast.FormattedValue) for part in parts):
                    texts = (p.value if isinstance(p, ast.Constant) else "word" for p in parts)
                    methods = frozenset({method}) & METHODS
                    yield Used(f"{module}:{node.lineno}", re.compile("".join(texts)), methods)


# A method of a constant, or a function of state/long_text.py that is given one.
CALLED: Final = re.compile(
    r"(?<!\w)(_?[A-Z][A-Z0-9_]+)(?:\[[^]]*\])?\.(\w+)|\b(search|finditer|sub)\((_?[A-Z][A-Z0-9_]+)"
)


def key_of(module: str, name: str) -> str:
    """Return what a constant is known by: private ones of several modules have one name."""
    return f"{module}.{name}" if name.startswith("_") else name


def functions() -> tuple[Mapping[str, set[str]], Mapping[str, set[str]], list[Used]]:
    """Return what is called of constants, and in functions that name them; and written patterns."""
    own, near, written = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set), []
    for path in sorted((ROOT / "opdbus").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        lines = path.read_text(encoding="utf-8").splitlines()
        for function in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                written += written_in(module, function)
                text = "\n".join(lines[function.lineno - 1 : function.end_lineno])
                for name, method, other, given in CALLED.findall(text):
                    own[key_of(module, name or given)] |= {method or other} & METHODS
                # `split` is one of strings as well
                others = {method for method in METHODS - {"split"} if f".{method}(" in text}
                for name in re.findall(r"(?<!\w)_?[A-Z][A-Z0-9_]+", text):
                    near[key_of(module, name)] |= others
    return own, near, written


def patterns() -> list[Used]:
    """Return every pattern of the package: those of its modules, and those in functions."""
    own, near, written = functions()
    found: dict[re.Pattern[Any], list[str]] = defaultdict(list)
    for info in pkgutil.walk_packages(opdbus.__path__, "opdbus."):
        if info.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError:
            # of an extra that is not installed
            continue
        for name, value in vars(module).items():
            for pattern in inside(value):
                found[pattern].append(f"{info.name}.{name}")
    for pattern, places in found.items():
        keys = [key_of(*place.rsplit(".", 1)) for place in places]
        called = (set[str]().union(*(each.get(key, ()) for key in keys)) for each in (own, near))
        written.append(Used(min(places), pattern, frozenset(next(filter(None, called), METHODS))))
    return list({(used.where, used.pattern): used for used in written}.values())


def samples(code: Any, value: Any) -> list[str]:
    """Return texts that a node of a pattern meets, or nearly."""
    if code is codes.LITERAL:
        return [chr(value)]
    if code in {codes.IN, codes.NOT_LITERAL, codes.ANY}:
        parts = value if code is codes.IN else []
        own = "".join(chr(v) for kind, v in parts if kind is codes.LITERAL)
        one = compiler.compile(parser.SubPattern(parser.State(), [(code, value)]))
        return [c for c in dict.fromkeys(CHARACTERS[:2] + own + CHARACTERS) if one.match(c)]
    if code in REPEATS:
        return [text * max(1, value[0]) for text in variants(value[2])]
    if code is codes.BRANCH:
        return [sample(branch) for branch in value[1]]
    if code in {codes.SUBPATTERN, codes.ATOMIC_GROUP}:
        return variants(value[-1] if code is codes.SUBPATTERN else value)
    return [""]


def sample(tree: Any) -> str:
    """Return a text that a part of a pattern meets, or nearly."""
    return "".join(next(iter(samples(code, value)), "") for code, value in tree)


def variants(tree: Any) -> list[str]:
    """Return several texts that a part meets, which differ in one of its nodes."""
    nodes = [*tree]
    found = {sample(nodes): None}
    for at, (code, value) in enumerate(nodes):
        for text in samples(code, value)[1:4]:
            found[sample(nodes[:at]) + text + sample(nodes[at + 1 :])] = None
    return [*filter(None, found)][:4]


def parts_of(code: Any, value: Any) -> list[Any]:
    """Return the trees inside a node of a pattern."""
    if code is codes.BRANCH:
        return list(value[1])
    if code in REPEATS | {codes.ASSERT, codes.ASSERT_NOT, codes.SUBPATTERN}:
        return [value[-1]]
    return [value] if code is codes.ATOMIC_GROUP else []


def repeats(tree: Any, before: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield what may come before each repetition, and what it repeats."""
    for code, value in tree:
        if code in REPEATS:
            yield before, variants(value[2])
        for part in parts_of(code, value):
            yield from repeats(part, before)
        before += sample([(code, value)])


def can_backtrack(tree: Any) -> bool:
    """Return whether a part of a pattern may match one text in several ways."""
    for code, value in tree:
        is_choice = code is codes.BRANCH or (code in REPEATS and value[0] != value[1])
        if is_choice and code is not codes.POSSESSIVE_REPEAT:
            return True
        is_inside = code not in {codes.ASSERT, codes.ASSERT_NOT, codes.ATOMIC_GROUP}
        if is_inside and any(map(can_backtrack, parts_of(code, value))):
            return True
    return False


def repeats_wrongly(tree: Any) -> bool:
    """Return whether Python before 3.11.5 fails on a possessive repeat in it (gh-106052)."""
    return any(
        (code is codes.POSSESSIVE_REPEAT and can_backtrack(value[2]))
        or any(map(repeats_wrongly, parts_of(code, value)))
        for code, value in tree
    )


def tree_of(pattern: re.Pattern[Any]) -> Any:
    """Return the nodes of a pattern."""
    source = pattern.pattern
    if isinstance(source, bytes):
        source = source.decode("latin-1")
    return parser.parse(source, pattern.flags & ~re.UNICODE)


def hostile_texts(pattern: re.Pattern[Any]) -> Iterator[Text]:
    """Yield texts of what a pattern repeats, each alone and after what comes before it."""
    tree = tree_of(pattern)
    whole = sample(tree)
    tokens = {("", whole): None, ("", whole + " "): None}
    for prefix, body in repeats(tree):
        for token in (*body, *(token + " " for token in body), " ", "\n", "a", "1"):
            tokens |= dict.fromkeys([("", token), (prefix, token)])
        tokens |= dict.fromkeys([("", prefix), ("", prefix + "".join(body[:1]))])
    for prefix, token in islice((key for key in tokens if key[1]), 200):
        yield from (Text(prefix, token, ending) for ending in ("!", "\x01\n"))


def works(used: Used) -> Iterator[tuple[Work, Text]]:
    """Yield what is done with a pattern, and the texts that it is done with."""
    is_bytes = isinstance(used.pattern.pattern, bytes)
    once, texts = used.methods & {"match", "fullmatch", "search"}, [*hostile_texts(used.pattern)]
    for method in sorted(once) + ["finditer"] * (once != used.methods):

        def work(text: str, method: str = method) -> None:
            given = text.encode("latin-1", "replace") if is_bytes else text
            found = getattr(used.pattern, method)(given)
            if method == "finditer":
                deque(found, 0)

        for text in texts:
            yield work, text


def slow_texts(used: Used) -> Iterator[tuple[Text, float]]:
    """Yield the texts that a pattern is slow with."""
    for work, text in works(used):
        if (found := growth(work, text, PATTERN_SIZES)) > MOST:
            yield text, found


@pytest.fixture(scope="module")
def used() -> list[Used]:
    """Find all patterns."""
    return patterns()


def test_patterns_are_linear(used: list[Used]) -> None:
    """No pattern takes more than four times as long for a text of its own parts, as it is used."""
    slow = []
    for one in used:
        if one.where.startswith(("opdbus.language.routes.", "opdbus.language.past_spans.")):
            # no more of a question is read for its route
            size = routes.MOST_CHARACTERS
            if any(seconds(work, text.of(size), 3) > 0.05 for work, text in works(one)):
                slow.append(one)
        elif next(slow_texts(one), None):
            slow.append(one)
    assert slow == []


def test_patterns_are_found(used: list[Used]) -> None:
    """Patterns of modules, of tables in them and in functions are all tested."""
    found = {one.where for one in used}
    assert {"opdbus.drift.equality._ADDRESS", "opdbus.drift.rule_table.JOINED"} < found
    assert any(where.startswith("opdbus.index.query.spelling:") for where in found)
    assert len(found) > 150


@pytest.mark.parametrize("pattern", [r"[:.a]*[:.][:.a]*!", r"\s*=?\s*x", r"(?:a+)+b", r"a+$"])
def test_slow_pattern_is_found(pattern: str) -> None:
    """The check fails for patterns that are slow."""
    slow = Used("here", re.compile(pattern), frozenset({"search"}))
    assert next(slow_texts(slow), None)


def test_possessive_repeats_cannot_backtrack(used: list[Used]) -> None:
    """Every pattern means the same in Python 3.11.2, which is Debian 12's, as in later ones."""
    assert [one for one in used if repeats_wrongly(tree_of(one.pattern))] == []


@pytest.mark.parametrize("pattern", [r"(?:ab|c)*+", r"x(?:\s+-a){0,4}+", r"((?:(?:a?b)++)c)d"])
def test_wrong_repeat_is_found(pattern: str) -> None:
    """The check fails for possessive repeats that can backtrack."""
    assert repeats_wrongly(tree_of(re.compile(pattern)))
