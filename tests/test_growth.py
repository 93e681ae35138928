"""Whatever reads text that somebody else wrote takes four times as long for four times as much.

The time is the processor's, and the smallest of several runs where it matters: see growth.py.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from harness.growth import MOST, Text, Used, growth, longest_seconds, patterns, slow_texts
from harness.remembering import unit

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
    constraints,
    query_terms,
    question_patterns,
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

PATTERNS: Final = patterns()
# What texts are made of: words that somebody reads, separators, brackets, quotes, blanks.
TOKENS: Final = (
    "a", " ", "\n", "1", "not ", "can't it the ", "which ports, on which ", "what before ", "and ",
    "a=b, ", "a:", "a\n", "'", '"', "(", '[{"a":', "</a", "\\", "-", "--a ", ".", ":", "1.", "/",
    ",", "%", "=", "#", "\t", "\x01", "\u00e9 ", "aB", "_", "* ", "x:1:", "1:", "$(", "-----BEGIN ",
    "password=", "://a@",
)  # fmt: skip
SIZES: Final = (256, 1024, 4096)
QUESTION_SIZES: Final = (MAX_CHARACTERS // 16, MAX_CHARACTERS // 4, MAX_CHARACTERS)
HERE: Final = Path("state.json")
THING: Final = ObjectId("lab", "box", "x")
Work = Callable[[str], object]


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
    "comparisons": constraints.find_comparisons,
    "dates": lambda text: constraints.find_dates(text, datetime.now(UTC)),
    "everyday words": synonyms.find_synonyms,
    "form": question_patterns.of,
    "kinds": lambda text: (kinds.requested(text, query_terms.STOP_WORDS), kinds.kind_phrases(text)),
    "subject": change_ranking.subject,
    "times": constraints.find_times,
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


@pytest.mark.parametrize("used", PATTERNS, ids=lambda used: used.where)
def test_pattern_is_linear(used: Used) -> None:
    """No pattern takes more than four times as long for a text of its own parts, as it is used."""
    if used.where.startswith(("opdbus.language.routes.", "opdbus.language.past_spans.")):
        # no more of a question is read for its route
        assert longest_seconds(used, routes.MOST_CHARACTERS) < 0.05
    else:
        assert [*slow_texts(used)] == []


def test_patterns_are_found() -> None:
    """Patterns of modules, of tables in them and in functions are all tested."""
    found = {used.where for used in PATTERNS}
    assert {"opdbus.drift.equality._ADDRESS", "opdbus.drift.rule_table.JOINED"} < found
    assert any(where.startswith("opdbus.index.query.spelling:") for where in found)
    assert len(found) > 150


@pytest.mark.parametrize("pattern", [r"[:.a]*[:.][:.a]*!", r"\s*=?\s*x", r"(?:a+)+b", r"a+$"])
def test_slow_pattern_is_found(pattern: str) -> None:
    """The check fails for patterns that are slow."""
    slow = Used("here", re.compile(pattern), frozenset({"search"}))
    assert next(slow_texts(slow), None)


@pytest.mark.parametrize("name", _readers(Path()))
def test_reader_is_linear(name: str, tmp_path: Path) -> None:
    """Whatever reads a text of somebody else takes time as the text is long."""
    assert [*_faults(_readers(tmp_path)[name], SIZES)] == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_question_is_read_in_linear_time(name: str) -> None:
    """Reading a question takes time as it is long, up to the most that is read of one."""
    assert [*_faults(QUESTIONS[name], QUESTION_SIZES)] == []


@pytest.mark.parametrize("together", [1, 5000], ids=["one by one", "together"])
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

    # of thousands of arrays the caches hold less: still far from the 16 times of a square
    assert growth(work, Text("", "a", ""), (250, 1000, 4000)) < 10
