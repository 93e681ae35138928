"""Questions for all objects in a bad state."""

import pytest

from opdbus.index.query.state_questions import (
    FAILED,
    FORMS,
    FULL,
    FULL_PERCENT,
    NEARLY_FULL_PERCENT,
    WRONG,
    Form,
    read_question,
    state_in_adjectives,
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.example)
def test_each_form_has_its_example(form: Form) -> None:
    """The first form that an example matches is its own."""
    assert next(one for one in FORMS if one.pattern.match(form.example)) == form


@pytest.mark.parametrize(
    ("question", "state", "noun", "percent", "is_whether"),
    [
        ("What has failed?", FAILED, "unit", 0, False),
        ("what is currently failing on this host?", FAILED, "unit", 0, False),
        ("which systemd timers have failed", FAILED, "timer", 0, False),
        ("Has any service failed?", FAILED, "service", 0, True),
        ("are there failed units right now?", FAILED, "unit", 0, True),
        ("show me the failed services", FAILED, "service", 0, False),
        ("which partitions are full", FULL, "unit", FULL_PERCENT, False),
        ("is one of the disks almost full?", FULL, "unit", NEARLY_FULL_PERCENT, True),
        ("which drive is getting full", FULL, "unit", NEARLY_FULL_PERCENT, False),
        ("What's wrong here?", WRONG, "unit", 0, False),
        ("is something broken?", WRONG, "unit", 0, True),
        ("what problems are there on this machine?", WRONG, "unit", 0, False),
        ("is the server healthy?", WRONG, "unit", 0, True),
    ],
)
def test_other_words_for_it(
    question: str, state: str, noun: str, percent: int, *, is_whether: bool
) -> None:
    """What all of a host is asked for is read in other words as well."""
    asked = read_question(question)
    assert asked
    assert (asked.state, asked.noun, asked.percent) == (state, noun, percent)
    assert asked.is_whether is is_whether


@pytest.mark.parametrize(
    "question",
    [
        "what is wrong with nginx?",
        "why did nginx fail?",
        "is nginx failed?",
        "what failed last night?",
        "which backup failed?",
        "is /srv full?",
        "which disk is the fullest?",
        "what is full of dust?",
        "what is op-dbus?",
        "which disk is half full",
    ],
)
def test_others_ask_for_something_else(question: str) -> None:
    """A question about one object, another time or another state is none of these."""
    assert read_question(question) is None


@pytest.mark.parametrize(
    ("question", "read_as"),
    [
        ("Which services run?", "which services are running"),
        ("which daemons do not run here?", "which daemons are not running"),
        ("which services run as root?", "which services run as root?"),
        ("which timers run at night", "which timers run at night"),
        ("which services are running?", "which services are running?"),
    ],
)
def test_run_alone_is_a_state(question: str, read_as: str) -> None:
    """Which services run is asked of those that are running, unless it says how or when."""
    assert state_in_adjectives(question) == read_as
