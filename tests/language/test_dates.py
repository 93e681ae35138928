"""Dates of objects beside today: which a question asks for, and what has them."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from harness.house import House, lived, unit

from opdbus.index.query import constraints, query_parser
from opdbus.index.query.constraints import ENDS, LASTS
from opdbus.index.search.hits import SearchRequest
from opdbus.language import past_spans, routes
from opdbus.platform import timestamps

TODAY = datetime(2026, 11, 23, 12, tzinfo=UTC)
BEGINNING = "0001-01-01"


@pytest.mark.parametrize(
    ("question", "fields", "first", "last"),
    [
        ("is this system out of support", ENDS, BEGINNING, "2026-11-23"),
        ("contract that ended", ENDS, BEGINNING, "2026-11-23"),
        ("Which licences have already ended?", ENDS, BEGINNING, "2026-11-23"),
        ("whose warranty is over", ENDS, BEGINNING, "2026-11-23"),
        ("what is no longer paid", ENDS, BEGINNING, "2026-11-23"),
        ("did it, or has it run out", ENDS, BEGINNING, "2026-11-23"),
        ("what runs out within the next 14 days", ENDS, "2026-11-23", "2026-12-07"),
        ("certificates valid for less than a week", ENDS, "2026-11-23", "2026-11-30"),
        ("which job has not succeeded since yesterday", LASTS, BEGINNING, "2026-11-22"),
        ("last backup older than three days", LASTS, BEGINNING, "2026-11-20"),
    ],
)
def test_dates_are_asked_for(question: str, fields: list[str], first: str, last: str) -> None:
    """Read when something ends or was last done."""
    (asked,) = constraints.find_dates(question, TODAY)
    assert (asked.fields, f"{asked.first.date()}", f"{asked.last.date()}") == (
        fields, first, last,
    )  # fmt: skip


def test_each_rule_reads_its_example() -> None:
    """Read the example of each row of the table by this row."""
    found = [constraints.find_dates(rule.example, TODAY) for rule in constraints.DATES]
    assert [(one.fields, f"{one.first.date()}", f"{one.last.date()}") for (one,) in found] == [
        (ENDS, "2026-11-23", "2026-12-23"),
        (ENDS, BEGINNING, "2026-11-23"),
        (LASTS, BEGINNING, "2026-11-16"),
    ]


@pytest.mark.parametrize("unit", ["hour", "day", "week", "month", "year"])
def test_spans_are_as_long_in_all_readers(unit: str) -> None:
    """Read a unit as long inside of a question for dates or for changes as in an option."""
    span = timedelta(microseconds=timestamps.span(f"7 {unit}s"))
    (asked,) = constraints.find_dates(f"no backup for over 7 {unit}s", TODAY)
    assert TODAY - asked.last == span
    now = TODAY.replace(tzinfo=None)
    given, _ = past_spans.find_span(f"what changed in the last 7 {unit}s", now)
    assert given == {"since": f"{now - span:%Y-%m-%d %H:%M}"}


@pytest.mark.parametrize(
    "question",
    [
        "what runs out of space",
        "which job ended",
        "is the support good",
        "soon",
        "mail",
        "",
        "is it valid",
        "x " * 999 + "expired",
    ],
)
def test_no_dates_are_asked_for(question: str) -> None:
    """Read no date in a question without any, and none in a document."""
    assert not constraints.find_dates(question, TODAY)


def test_a_document_is_looked_through_quickly() -> None:
    """Look at the beginning of a question only: patterns may go back many times."""
    assert len(constraints.find_dates("expire in in in not for " * 100_000, TODAY)) <= 3


FAR = ["9999", "99999", "9" * 12, "9" * 20, "9" * 400, "0", "1e400", "nine", "9999.5"]
ASKED = [
    "which backups had no success for {} years",
    "which jobs have not run for over {} weeks",
    "what is older than {} months",
    "which certificates expire in {} years",
    "what expires within the next {} days",
    "what changed in the last {} years",
    "what happened {} years ago",
    "what failed since {} weeks ago",
    "what changed on {}-12-31",
    "what changed between 0001-01-01 and {}-12-31",
    "what changed before 0001-01-03",
    "what ran at {}:{}",
    "disks over {} percent free",
    "disks with less than {} tb free",
    "timers on the {}th of every month",
]


@pytest.mark.parametrize("year", [1, 1970, 2026, 9999])
@pytest.mark.parametrize("question", ASKED)
def test_no_number_of_a_question_is_too_large(question: str, year: int) -> None:
    """Read any number and date, whatever the clock says: too far away is the first or last time."""
    now = datetime(year, 6, 1, tzinfo=UTC)
    for number in FAR:
        asked = question.replace("{}", number)
        for one in constraints.find_dates(asked, now):
            assert one.first <= one.last
        constraints.find_comparisons(asked)
        constraints.find_times(asked)
        routes.find_route(asked, now.replace(tzinfo=None))


@pytest.mark.parametrize("is_read", [False, True])
@lived(engine=False)
async def test_what_has_the_date_comes_first(
    made: House, *, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise what expired, or soon will, before what says so; no date of another year or kind."""
    monkeypatch.setattr(query_parser, "now", lambda: TODAY)

    async def first(made: House, question: str) -> str:
        (hit,) = await made.finder.search(question, SearchRequest(1), "lexical")
        return hit.object_id.name

    texts = {
        "old": "2026-11-22T23:59:59Z",
        "soon": "2026-12-05",
        "late": "2031-01-01",
        "odd": "2026-99-99",
    }
    others = [unit(f"u{n}", "nothing") for n in range(40)]
    ends = [unit(name, "a certificate", not_after=each) for name, each in texts.items()]
    await made.declare(*others, *ends)
    if is_read:
        await asyncio.wait_for(made.memory.fields.catch_up(), 30)
    assert await first(made, "which certificate has expired") == "old"
    assert await first(made, "which certificate expires soon") == "soon"
    assert await first(made, "which certificate lapses within ten years") in {"soon", "late"}
