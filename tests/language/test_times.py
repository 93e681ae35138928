"""Times in questions: which ones are read, and what is scheduled then."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from harness.house import search_words

from opdbus.index.query.schedule_times import TIMES, Rule, find_times
from opdbus.language import past_spans, routes
from opdbus.platform import timestamps
from opdbus.state.object import Identity, StateObject


def meant(question: str) -> set[str]:
    """Return the conditions that the times of a question may mean."""
    meanings = (each for time in find_times(question) for each in time.meanings)
    return {f"{each.field}{each.operator}{each.value}" for each in meanings}


@pytest.mark.parametrize("rule", TIMES, ids=[rule.name for rule in TIMES])
def test_each_rule_reads_its_example(rule: Rule) -> None:
    """Read the example of each row of the table by this row."""
    match = rule.pattern.search(rule.example)
    assert match
    assert {*rule.meaning(match)} & {c for time in find_times(rule.example) for c in time.meanings}


@pytest.mark.parametrize(
    ("question", "times"),
    [
        ("what runs at twenty to five in the morning", ["04:40"]),
        ("what happens at half past two at night", ["02:30"]),
        ("what will run at a quarter past one?", ["01:15", "13:15"]),
        ("jobs at 3 am", ["03:00"]),
        ("jobs at 12 pm", ["12:00"]),
        ("what starts at 21:45", ["21:45"]),
        ("what starts at 04:05", ["04:05"]),
        ("5 minutes to 1 in the morning", ["00:55"]),
    ],
)
def test_a_time_of_the_day_is_that_of_calendars_and_schedules(
    question: str, times: list[str]
) -> None:
    """Read digits and words; without a part of the day both halves of it are meant."""
    found = {f"calendar~ {time}:" for time in times} | {f"schedule~at {time}" for time in times}
    assert meant(question) == found


@pytest.mark.parametrize(
    ("question", "condition"),
    [
        ("what runs every ten minutes", "schedule~every 10 minutes"),
        ("every quarter of an hour", "calendar~/15:00"),
        ("every half hour", "on~30 min after its unit"),
        ("timers on the first of a month", "calendar~-01 "),
    ],
)
def test_intervals_and_days_of_a_month_are_read(question: str, condition: str) -> None:
    """Read what is repeated, and days of every month."""
    assert condition in meant(question)


@pytest.mark.parametrize(
    "question",
    [
        "192.0.2.5",
        "version 3.11",
        "2001:db8::10",
        "the 2nd network card",
        "port 80 to five machines",
        "at 25:70",
        "half full",
        "",
    ],
)
def test_other_numbers_are_no_times(question: str) -> None:
    """Addresses, versions, places in an order and the like are no times."""
    assert meant(question) == set()


def test_a_document_is_not_full_of_times() -> None:
    """Only the first few times of a text are read, however long it is."""
    assert len(find_times("at 04:40 " * 10_000)) < 5


@pytest.mark.parametrize("unit", ["hour", "day", "week", "month", "year"])
def test_spans_are_as_long_in_all_readers(unit: str) -> None:
    """Read a unit as long inside of a question for changes as in an option."""
    now, span = datetime(2026, 11, 23, 12), timedelta(microseconds=timestamps.span(f"7 {unit}s"))  # noqa: DTZ001 -- local
    given, _ = past_spans.find_span(f"what changed in the last 7 {unit}s", now)
    assert given == {"since": f"{now - span:%Y-%m-%d %H:%M}"}


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
        find_times(asked)
        routes.find_route(asked, now.replace(tzinfo=None))


def test_what_is_scheduled_then_comes_first(tmp_path: Path) -> None:
    """Raise timers and jobs of a time above what has other words of the question."""

    def timer(name: str, *calendar: str) -> StateObject:
        said = {"description": f"morning {name} that runs", "calendar": [*calendar]}
        return StateObject(Identity("live:x", "systemd", "unit", f"{name}.timer"), said)

    objects = [timer(f"t{n}", f"*-*-* {n:02}:15:00") for n in range(10)]
    objects.append(timer("right", "Mon *-*-* 04:40:00"))
    question = "what runs at twenty to five in the morning?"
    assert search_words(tmp_path, objects, question)[0].object_id.name == "right.timer"
