"""Times in questions: which ones are read, and what is scheduled then."""

from pathlib import Path

import pytest
from harness.house import search_words

from opdbus.index.query.constraints import TIMES, Meaning, Rule, find_times
from opdbus.state.object import Identity, StateObject


def meant(question: str) -> set[str]:
    """Return the conditions that the times of a question may mean."""
    meanings = (each for time in find_times(question) for each in time.meanings)
    return {f"{each.field}{each.operator}{each.value}" for each in meanings}


@pytest.mark.parametrize("rule", TIMES, ids=[rule.name for rule in TIMES])
def test_each_rule_reads_its_example(rule: Rule[Meaning]) -> None:
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


def test_what_is_scheduled_then_comes_first(tmp_path: Path) -> None:
    """Raise timers and jobs of a time above what has other words of the question."""

    def timer(name: str, *calendar: str) -> StateObject:
        said = {"description": f"morning {name} that runs", "calendar": [*calendar]}
        return StateObject(Identity("live:x", "systemd", "unit", f"{name}.timer"), said)

    objects = [timer(f"t{n}", f"*-*-* {n:02}:15:00") for n in range(10)]
    objects.append(timer("right", "Mon *-*-* 04:40:00"))
    question = "what runs at twenty to five in the morning?"
    assert search_words(tmp_path, objects, question)[0].object_id.name == "right.timer"
