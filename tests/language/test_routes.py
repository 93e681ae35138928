"""Routes of questions: which command answers, and the times that it is given."""

import json
import re
import time
from datetime import datetime

import pytest
from conftest import ROOT

from opdbus.language import past_spans, routes
from opdbus.platform import timestamps

# a Thursday
NOW = datetime(2026, 11, 26, 14, 0)  # noqa: DTZ001 -- local time, as routes.find_route takes it
QUESTIONS = json.loads((ROOT / "benchmarks/answers/data/routes.json").read_text(encoding="utf-8"))


def test_each_row_routes_its_example() -> None:
    """Send the example of each row where the row says, by this row and by none before it."""
    for place, (route, _, example) in enumerate(routes.rows()):
        text = routes.plain(example)
        first = next(n for n, (_, form, _) in enumerate(routes.rows()) if form.search(text))
        assert (first, routes.name_of(example)) == (place, route), example


def test_rows_name_only_routes_that_there_are() -> None:
    """Have rows for each route, and a command for each."""
    assert {route for route, _, _ in routes.rows()} == set(routes.COMMANDS)


@pytest.mark.parametrize(("half", "least"), [("open", 0.98), ("held", 0.93)])
def test_questions_take_their_route(half: str, least: float) -> None:
    """Route nearly all questions of the set; of the held half no miss was looked at."""
    some = [row for row in QUESTIONS if row["half"] == half]
    right = sum(routes.name_of(row["question"]) == row["route"] for row in some)
    assert len(some) > 85
    assert right / len(some) >= least


def test_questions_about_objects_are_not_taken_from_them() -> None:
    """Leave to objects at least 95% of the questions of the exams, which all ask for objects."""
    exams = (ROOT / "benchmarks/answers/data").glob("*_questions.json")
    asked = [row["question"] for file in exams for row in json.loads(file.read_text("utf-8"))]
    objects = sum(routes.name_of(question) == routes.OBJECTS for question in asked)
    assert len(asked) > 600
    assert objects / len(asked) >= 0.95


@pytest.mark.parametrize(
    ("question", "route"),
    [
        ("Could you please tell me who changed /etc/fstab?", "changes"),
        ("Do you know who restarted nginx?", "changes"),
        ("What\N{RIGHT SINGLE QUOTATION MARK}s drifted?", "drift"),
        ("WHO CHANGED IT", "changes"),
        ("op-dbus, are you ready?", "status"),
        ("", "objects"),
        ("?!", "objects"),
        ("host name", "objects"),
        ("What's the matter with op-dbus today?", "status"),
        ("is anything wrong with op-dbus-containers.service", "objects"),
        ("which user runs op-dbus", "objects"),
        ("who left the group choir?", "changes"),
        # who did it, whatever to
        ("who stopped cron?", "changes"),
        ("who created /etc/cron.d/backup?", "changes"),
        ("who deleted the logrotate cron job?", "changes"),
        ("who runs cron jobs", "objects"),
        # what was so, and is not any more
        ("which services no longer start at boot?", "changes"),
        ("who is no longer an administrator?", "changes"),
        ("who can't log in any more", "changes"),
        ("what stopped listening?", "changes"),
        ("is there anything that's no longer installed", "changes"),
        ("which packages are no longer needed", "objects"),
        ("is nginx no longer running", "objects"),
        ("who gained root access", "changes"),
        ("who is left on this host", "objects"),
    ],
)
def test_politeness_and_case_change_no_route(question: str, route: str) -> None:
    """Read a question without what is said around it."""
    assert routes.name_of(question) == route


@pytest.mark.parametrize(
    ("words", "since", "before"),
    [
        ("yesterday", "2026-11-25", "2026-11-26"),
        ("the day before yesterday", "2026-11-24", "2026-11-25"),
        ("today", "2026-11-26", None),
        ("this morning", "2026-11-26 04:00", "2026-11-26 12:00"),
        ("last night", "2026-11-25 20:00", "2026-11-26 08:00"),
        ("overnight", "2026-11-25 20:00", "2026-11-26 08:00"),
        ("at 3 last night", "2026-11-26 02:30", "2026-11-26 03:30"),
        ("at 11 last night", "2026-11-25 22:30", "2026-11-25 23:30"),
        ("at 12 last night", "2026-11-25 23:30", "2026-11-26 00:30"),
        ("at twelve at night", "2026-11-25 23:30", "2026-11-26 00:30"),
        ("at 12:30 yesterday night", "2026-11-26", "2026-11-26 01:00"),
        ("at 12 on monday night", "2026-11-23 23:30", "2026-11-24 00:30"),
        ("at 12am on monday night", "2026-11-23 23:30", "2026-11-24 00:30"),
        ("at 3 yesterday night", "2026-11-26 02:30", "2026-11-26 03:30"),
        ("between 11 and 12 last night", "2026-11-25 23:00", "2026-11-26"),
        ("between 12 and 2 last night", "2026-11-26", "2026-11-26 02:00"),
        ("at 12 yesterday", "2026-11-25 11:30", "2026-11-25 12:30"),
        ("at noon yesterday", "2026-11-25 11:30", "2026-11-25 12:30"),
        ("at 5pm yesterday", "2026-11-25 16:30", "2026-11-25 17:30"),
        ("at 12am", "2026-11-25 23:30", "2026-11-26 00:30"),
        ("at 3.30 yesterday", "2026-11-25 03:00", "2026-11-25 04:00"),
        ("at about 12.30", "2026-11-26 12:00", "2026-11-26 13:00"),
        ("around 9.15 yesterday", "2026-11-25 08:45", "2026-11-25 09:45"),
        ("3.30pm yesterday", "2026-11-25 15:00", "2026-11-25 16:00"),
        ("since 3.10 am", "2026-11-26 03:10", None),
        ("from 2 to 4 last night", "2026-11-26 02:00", "2026-11-26 04:00"),
        ("from 9am to 11 am", "2026-11-26 09:00", "2026-11-26 11:00"),
        ("around noon", "2026-11-26 11:30", "2026-11-26 12:30"),
        ("at 15:00", "2026-11-25 14:30", "2026-11-25 15:30"),
        ("between 2 and 4 last night", "2026-11-26 02:00", "2026-11-26 04:00"),
        ("between 22:00 and 1:30 yesterday", "2026-11-25 22:00", "2026-11-26 01:30"),
        ("since yesterday", "2026-11-25", None),
        ("since the reboot", "boot", None),
        ("after the last boot of this machine", "boot", None),
        ("before the reboot", None, "boot"),
        ("since 03:10", "2026-11-26 03:10", None),
        ("after 22:00 yesterday", "2026-11-25 22:00", None),
        ("until yesterday", None, "2026-11-25"),
        ("since last friday", "2026-11-20", None),
        ("on monday", "2026-11-23", "2026-11-24"),
        ("on tuesday night", "2026-11-24 20:00", "2026-11-25 08:00"),
        ("over the weekend", "2026-11-21", "2026-11-23"),
        ("this week", "2026-11-23", None),
        ("last week", "2026-11-16", None),
        ("this month", "2026-11-01", None),
        ("last month", "2026-10-01", None),
        ("in the last two hours", "2026-11-26 12:00", None),
        ("in the last 30 seconds", "2026-11-26 13:59:30", None),
        ("in the past 10 days", "2026-11-16 14:00", None),
        ("a few minutes ago", "2026-11-26 13:55:30", "2026-11-26 13:56:30"),
        ("5 days ago", "2026-11-21 02:00", "2026-11-22 02:00"),
        ("3000 years ago", None, "1970-07-02 15:00"),
        ("70 years ago", None, "1970-07-02 15:00"),
        ("9999 months ago", None, "1970-01-16 05:15"),
        ("in the last 9999 years", None, None),
        ("since 9999 years ago", None, None),
        ("before 70 years ago", None, "1970-01-01 14:00"),
        ("on 1950-01-01", None, "1970-01-01 14:00"),
        ("on 2026-11-20", "2026-11-20", "2026-11-21"),
        ("since 20 november", "2026-11-20", None),
        ("on december 24th", "2025-12-24", "2025-12-25"),
        ("on the 30th", "2026-10-30", "2026-10-31"),
        ("on 2026-11-20 between 10:00 and 12:00", "2026-11-20 10:00", "2026-11-20 12:00"),
        ("at 11:39:05", "2026-11-26 11:38:05", "2026-11-26 11:40:05"),
        ("at 23:59:30 yesterday", "2026-11-25 23:58:30", "2026-11-26 00:00:30"),
        ("between 11:39:00 and 11:39:10", "2026-11-26 11:39", "2026-11-26 11:39:10"),
        ("since 11:39:05", "2026-11-26 11:39:05", None),
        ("at 12:05:07 on 2026-11-20", "2026-11-20 12:04:07", "2026-11-20 12:06:07"),
        ("in the last twenty minutes", "2026-11-26 13:40", None),
        ("in the last twenty-five minutes", "2026-11-26 13:35", None),
        ("in the past thirty five days", "2026-10-22 14:00", None),
        ("within the last fifteen hours", "2026-11-25 23:00", None),
        ("at 10:15 on the 20th", "2026-11-20 09:45", "2026-11-20 10:45"),
    ],
)
def test_spans_become_options_that_are_read(
    words: str, since: str | None, before: str | None
) -> None:
    """Give `op-dbus changes` the times that a question names, as `when` reads them."""
    given, rest = past_spans.find_span(f"what changed {words}", NOW)
    assert (given.get("since"), given.get("before"), rest) == (since, before, "what changed")
    for text in given.values():
        assert timestamps.moment(text, NOW.timestamp(), NOW.timestamp() - 1000) > 0


@pytest.mark.parametrize("row", past_spans.SPANS, ids=[words for *_, words in past_spans.SPANS])
def test_each_span_reads_its_words(row: tuple[str, past_spans.Meaning, str]) -> None:
    """Read the words of each row of the table by this row, and by none before it."""
    rows = [each for each in past_spans.SPANS if re.search(each[0], row[2])]
    assert rows[0] == row
    assert past_spans.find_span(f"what changed {row[2]}", NOW)[1] == "what changed"


@pytest.mark.parametrize(
    "words",
    [
        "tomorrow",
        "on 10.0.0.30",
        "port 22",
        "02:1b:21:7a:00:01",
        "at 25:99",
        "at 11:39:99",
        "in may",
        "in ubuntu 22.04",
        "in python 3.11",
        "about 3.11",
        "on tcp 10.20",
        "since 22.04",
        "after debian 12.10",
        "from 22.04 to 24.04",
        "from python 3.10 to 3.11",
        "from 14 to 15",
        "between 3.10 and 3.12",
    ],
)
def test_other_words_are_no_span(words: str) -> None:
    """Leave addresses, ports, versions and what is yet to come in a question."""
    assert past_spans.find_span(f"what changed {words}", NOW) == ({}, f"what changed {words}")


@pytest.mark.parametrize(
    ("question", "command"),
    [
        ("who changed sshd_config?", "changes --about 'who changed sshd_config'"),
        ("what changed since the reboot?", "changes --since boot"),
        (
            "what was installed yesterday",
            "changes --about 'what was installed' --since 2026-11-25 --before 2026-11-26",
        ),
        ("why did nginx fail?", "changes --before 'nginx fail'"),
        (
            "why did nginx fail last night",
            "changes --before 'nginx fail' --since '2026-11-25 20:00' --until '2026-11-26 08:00'",
        ),
        (
            "why did nginx fail at 03:10 yesterday",
            "changes --before 'nginx fail' --since '2026-11-25 02:40' --until '2026-11-25 03:40'",
        ),
        ("what happened before the web server failed", "changes --before 'the web server failed'"),
        ("what caused the outage", "changes --before 'the outage'"),
        (
            "did anything touch today's backup",
            "changes --about 'did anything touch backup' --since 2026-11-26",
        ),
        ("who changed the users' shells", "changes --about 'who changed the users shells'"),
        ("did nginx restart?", "changes --about 'did nginx restart'"),
        (
            "did fstrim.timer stop yesterday?",
            "changes --about 'did fstrim.timer stop' --since 2026-11-25 --before 2026-11-26",
        ),
        ("has nginx crashed", "changes --about 'has nginx crashed'"),
        ("what is no longer drifting?", "changes --what healed"),
        ("what has healed?", "changes --what healed"),
        (
            "which packages stopped drifting today",
            "changes --about 'which packages' --what healed --since 2026-11-26",
        ),
        ("is vim no longer drifting?", "drift --about 'is vim no longer drifting?'"),
        ("is all as declared?", "drift --about 'is all as declared?'"),
        ("are you ready?", "status"),
        ("web server", "search 'web server'"),
        ("-n is an option", "search '-n is an option'"),
    ],
)
def test_a_route_has_a_command(question: str, command: str) -> None:
    """Say the command that answers, as a shell takes it."""
    assert routes.find_route(question, NOW).command(question) == f"op-dbus {command}"


def test_a_route_is_found_in_time_that_does_not_grow() -> None:
    """Read no more of a question than its beginning, whatever is repeated in it."""
    pieces = (
        "what ",
        "which was ",
        "declared not ",
        "at 3 ",
        "since ",
        "why is ",
        "a" * 50,
        "'",
        "1:",
    )
    for piece in pieces:
        times = []
        for size in (2_000, 200_000):
            question = (piece * size)[:size]
            start = time.process_time()
            routes.find_route(question, NOW)
            times.append(time.process_time() - start)
        assert times[1] < 6 * times[0] + 0.05, piece
