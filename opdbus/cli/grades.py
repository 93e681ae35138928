"""Table of the accuracy gate's measurements for `levels --detail`, within 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from opdbus.cli import output

_HEADINGS = ("", "on", "in", "texts/s", "mean", "least", "MRR", "change")
_EXPLAINED = (
    "texts/s: of one thread. mean, least: of the cosines to fp32. MRR: mean reciprocal"
    " rank of the right answers. change: its change from fp32 in points. Intervals are"
    " of 95%."
)


def show(found: Sequence[Mapping[str, Any]]) -> None:
    """Print a table for each level, the questions and refusals, and the meaning of columns."""
    for level, grades in groupby(found, key=lambda grade: grade["level"]):
        measured = sorted(grades, key=lambda grade: -grade["texts_per_second"])
        when = output.since(measured[0]["checked_at"])
        print(output.style(f"{level}, measured {when}", "bold"))
        output.table(_HEADINGS, [cells(grade) for grade in measured])
        output.section("refused", {_name(grade): grade["refused"] for grade in measured})
        asked: dict[str, list[str]] = {}
        for grade in measured:
            asked.setdefault(f"{grade['questions']} of", []).append(_name(grade))
        output.section("questions", {count: ", ".join(names) for count, names in asked.items()})
        print()
    output.paragraph(_EXPLAINED if found else "nothing was measured: no precision had to be chosen")


def cells(grade: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row of the table; cells are empty for a precision that could not run."""
    verdict = "chosen" if grade["chosen"] else "refused" if grade["refused"] else "passed"
    place = (verdict, *_name(grade).split())
    if not grade["questions"]:
        return (*place, *("",) * (len(_HEADINGS) - len(place)))
    low, high = 100 * grade["change_low"], 100 * grade["change_high"]
    return (
        *place,
        f"{grade['texts_per_second']:.0f} \u00b1{grade['rate_margin']:.0f}",
        _share(grade["mean_cosine"], 4),
        _share(grade["min_cosine"], 4),
        _share(grade["rank"], 3),
        f"{low:+.2f}..{high:+.2f}",
    )


def _share(value: float, digits: int) -> str:
    """Format a number of at most 1 without its leading zero."""
    return f"{value:.{digits}f}".removeprefix("0") if round(value, digits) < 1 else "1"


def _name(grade: Mapping[str, Any]) -> str:
    return f"{grade['provider'].removeprefix('cpu:')} {grade['precision']}"
