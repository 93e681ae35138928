"""The figures of benchmarks/answers: what is found, what is refused, and what a score means."""

from collections.abc import Iterator
from typing import Any

from docs_parts.tables import newest, table

_HOSTS = ("example", "packages", "values", "cluster", "office", "home", "agency", "quarry")
_ANSWERS = """\
From `benchmarks/results/{file}` (`benchmarks/answers/measure.py`): the half of the questions that
nothing was fitted to. The hosts are the example (`state.example.json`), {packages} packages of
Debian with the questions that their long descriptions make (what several of them say is one
question, and has several answers), a host with {values} questions about values, and the five hosts
of the exams below. Other questions have typing errors, are about
foreign topics (words of WordNet's files of food, plants, animals, the body and feelings), ask for
what was taken out together with its near copies (each question of the example and of packages is
asked both ways), or, of the hosts of exams, for what the host has not. Those are also asked
whether some 130 programs run or are installed, most of which they have not, and for what op-dbus
observes nowhere (`data/states.json`), which counts below for what is refused.

MRR with nothing refused and, in brackets, the share of answers among the first ten that are given:

{found}

What is refused, which answers to questions about what is not there have a score of 0.5 or more, and
the area under the curve of answerable questions against removed-answer questions:

{refused}

What a score means in hybrid searches: of hits with such a score, the share that is right, which is
the object that was asked for or a near copy of it:

{calibration}

Hybrid at the level medium. Share of answerable questions refused, against share of removed-answer
questions refused:

{curve}"""


def answers() -> str:
    """Make the tables of the newest report."""
    found = newest("answers")
    assert found, "no report of benchmarks/answers is committed"
    file, report = found
    levels = report["levels"]
    medium = levels["medium"]["hybrid"]
    return _ANSWERS.format(
        file=file,
        packages="1,047",
        values=2 * medium["found"]["values"]["questions"],
        found=table(("level and mode", *_HOSTS, "typing errors"), _found(levels)),
        refused=table(
            (
                "level and mode",
                "answerable",
                "typing errors",
                "foreign",
                "taken out",
                "not there",
                "of it, 0.5 or more",
                "area",
            ),
            _refused(levels),
        ),
        calibration=table(("score", *levels), _calibration(levels)),
        curve=table(
            ("answerable", *(f"{share:.0%}" for share, _ in medium["taken out"]["curve"])),
            [("taken out", *(f"{out:.0%}" for _, out in medium["taken out"]["curve"]))],
        ),
    )


_EXAMS = """\
From `benchmarks/results/{file}` (`benchmarks/answers/exams.py`), at the level {level}: whole hosts,
cluster, office, agency and quarry with questions of strangers, and home, a family's server, with
our own. Misses of the open half were looked at; of the half held back nobody was shown how its
questions are answered.

{rows}"""
_HALVES = ("open", "held")


def exams() -> str:
    """Make the table of the newest report of exams.py."""
    found = newest("exams")
    assert found, "no report of benchmarks/answers/exams.py is committed"
    file, report = found
    names = [name for name in report if isinstance(report[name], dict)]
    heads = ("exam and half", "questions", "MRR", "in ten", "not there", "of it, refused")
    rows = ((f"{name}, {half}", *_exam(report[name][half])) for name in names for half in _HALVES)
    return _EXAMS.format(file=file, level=report["level"], rows=table(heads, rows))


def _exam(figures: dict[str, Any]) -> Iterator[str]:
    yield str(figures["questions"])
    yield from (f"{figures[key]:.3f}" for key in ("MRR", "recall@10"))
    yield from (str(figures[key]) for key in ("absent", "absent, refused"))


def _rows(levels: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each level and mode once: words are the same at every level."""
    for at, (level, modes) in enumerate(levels.items()):
        for mode, figures in modes.items():
            if mode != "lexical":
                yield f"{level}, {mode}", figures
            elif at == len(levels) - 1:
                yield "any, lexical", figures


def _found(levels: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, figures in _rows(levels):
        every = [*(figures["found"][host] for host in _HOSTS), figures["found, with typing errors"]]
        yield name, *(f"{one['MRR, none refused']:.3f} ({one['recall@10']:.2f})" for one in every)


def _refused(levels: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, figures in _rows(levels):
        shares = [f"{figures['refused'][kind]['all']:.1%}" for kind in figures["refused"]]
        yield name, *shares, f"{figures['absent, sure']:.1%}", f"{figures['taken out']['AUC']:.3f}"


def _calibration(levels: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    tenths = zip(*(modes["hybrid"]["calibration"] for modes in levels.values()), strict=True)
    for tenth in tenths:
        low = tenth[0]["from"]
        said = (f"{one['right']:.2f} of {one['hits']}" if one["hits"] else "" for one in tenth)
        yield f"{low:.1f} to {low + 0.1:.1f}", *said
