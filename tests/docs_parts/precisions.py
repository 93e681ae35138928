"""What the accuracy gate measured of every level, from benchmarks/precisions.py."""

from collections.abc import Iterator, Mapping
from typing import Any

from docs_parts.tables import newest, table
from opdbus.cli import status

_HEADINGS = ("level", "", "on", "in", "texts/s", "cosine", "least", "change", "questions")
_TEXT = """\
From `benchmarks/results/{file}` (`python benchmarks/precisions.py`), on {machine}:

{table}

Refused: {reasons}."""


def precisions() -> str:
    """Make the table of the newest committed report."""
    found = newest("precisions")
    if not found:
        return "No report of `benchmarks/precisions.py` is committed yet."
    file, report = found
    measured = list(_measured(report["levels"]))
    rows = [(grade["level"], *_cells(grade), str(grade["questions"])) for grade in measured]
    reasons = "; ".join(
        f"{grade['level']} in {grade['precision']} on {grade['provider']}, since {grade['refused']}"
        for grade in measured
        if grade["refused"]
    )
    machine = report["machine"]
    where = f"{machine['processors']} processors of {machine['processor']}"
    return _TEXT.format(file=file, machine=where, table=table(_HEADINGS, rows), reasons=reasons)


def _measured(levels: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for level, report in levels.items():
        chosen = (report["provider"], report["chosen"])
        for grade in sorted(report["grades"], key=lambda grade: -grade["texts_per_second"]):
            is_chosen = (grade["provider"], grade["precision"]) == chosen
            yield {**grade, "level": level, "chosen": is_chosen}


def _cells(grade: Mapping[str, Any]) -> tuple[str, ...]:
    verdict, *others = status.grade_cells(grade)
    return (f"**{verdict}**" if grade["chosen"] else verdict, *others)
