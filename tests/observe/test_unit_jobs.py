"""Which job changed a unit: from signals as PID 1 sends them, in order, lost, and not sane."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdbus.observe.systemd.unit_jobs import UnitJobs, Work

UNIT = "web.service"
NEVER, EARLY, NOW, LATER = 0, 100, 200, 300


def told(state: str, job: int = 0, *, began: int = EARLY, ended: int = 0) -> dict[str, Any]:
    """Make what a signal says of a unit."""
    return {
        "ActiveState": state,
        "InactiveExitTimestampMonotonic": began,
        "ActiveExitTimestampMonotonic": ended,
        "InactiveEnterTimestampMonotonic": ended,
        "StateChangeTimestampMonotonic": max(began, ended),
        "Job": [job, "/org/freedesktop/systemd1/job/1"],
    }


def changed_at(time: object) -> dict[str, object]:
    """Make the property that has the time of a unit's last change."""
    return {"StateChangeTimestampMonotonic": time}


def heard(*signals: dict[str, Any]) -> UnitJobs:
    """Hear signals of a unit."""
    jobs = UnitJobs()
    for signal in signals:
        jobs.update(UNIT, signal)
    return jobs


RUNS = told("active")
LIVES = {
    "start": (told("inactive", 7, began=NEVER), told("active", 7, began=NOW)),
    "stop": (told("active", 7), told("inactive", 7, ended=NOW)),
    "restart": (told("active", 7), told("inactive", 7, ended=NOW), told("active", 7, began=LATER)),
    "reload": (
        told("active", 7),
        {**told("active", 7), "StateChangeTimestampMonotonic": NOW},
    ),
}


@pytest.mark.parametrize("type_", LIVES)
def test_a_job_is_known_by_what_its_unit_did(type_: str) -> None:
    """A job that is over before PID 1 can be asked is called what it did, and counted once."""
    jobs = heard(*LIVES[type_])
    assert jobs.take(UNIT) == Work(f"job:7 {type_}", 0)
    assert jobs.last_cause(UNIT) == f"job:7 {type_}"
    jobs.end_job(7, UNIT)
    assert jobs.last_cause(UNIT) == f"job:7 {type_}"
    assert jobs.take(UNIT) == Work(f"job:7 {type_}", 1)
    assert jobs.take(UNIT) == Work()


FAILED = told("failed", 7, ended=NOW)
STOPS_LATER = [
    {**signal, "Job": [8, "/"], "InactiveExitTimestampMonotonic": LATER} for signal in LIVES["stop"]
]
# Signals of a unit and numbers of jobs that end, and what is taken after them.
SEQUENCES: dict[str, tuple[list[Any], Work]] = {
    "a restart that began after a stop is known by its last signal": (
        [RUNS, told("active", 7, began=LATER, ended=NOW), 7],
        Work("job:7 restart", 1),
    ),
    "a job that was cancelled or waited in vain is no event": (
        [RUNS, told("active", 7), 7],
        Work("job:7", 0),
    ),
    "a unit that does not run and only changes its time was to be started": (
        [FAILED, {**FAILED, "StateChangeTimestampMonotonic": LATER}, 7],
        Work("job:7 start", 1),
    ),
    "of jobs that follow each other, the last is the cause and counts the others": (
        [*LIVES["restart"], 7, *STOPS_LATER, 8],
        Work("job:8 stop, after 1 restart", 2),
    ),
    "of a job whose signals were lost, only the number is known": (
        [*LIVES["start"], 9],
        Work("job:9", 0),
    ),
}


@pytest.mark.parametrize("about", SEQUENCES)
def test_what_jobs_did(about: str) -> None:
    """Jobs of a unit are known by its signals, and each that did something counts once."""
    steps, work = SEQUENCES[about]
    jobs = UnitJobs()
    for step in steps:
        if isinstance(step, int):
            jobs.end_job(step, UNIT)
        else:
            jobs.update(UNIT, step)
    assert jobs.take(UNIT) == work


def test_what_follows_what_was_read_is_no_cause_of_it() -> None:
    """A job that began only after a unit was read is told when the unit is read again."""
    jobs = heard(*LIVES["stop"])
    jobs.end_job(7, UNIT)
    jobs.set_read(UNIT, changed_at(NOW))
    jobs.update(UNIT, told("inactive", 8, ended=NOW))
    jobs.update(UNIT, told("active", 8, began=LATER, ended=NOW))
    jobs.set_types({8: "start"})
    assert jobs.take(UNIT) == Work("job:7 stop", 1)
    jobs.end_job(8, UNIT)
    assert jobs.take(UNIT) == Work()
    jobs.set_read(UNIT, changed_at(LATER))
    assert jobs.take(UNIT) == Work("job:8 start", 1)


def test_a_job_that_has_not_begun_is_no_cause() -> None:
    """What is to stop a unit that is still up has not changed it yet."""
    jobs = heard(*LIVES["start"])
    jobs.end_job(7, UNIT)
    jobs.update(UNIT, told("active", 8, began=NOW))
    jobs.set_types({8: "stop"})
    jobs.set_read(UNIT, changed_at(NOW))
    assert jobs.take(UNIT) == Work("job:7 start", 1)
    jobs.update(UNIT, told("inactive", 8, began=NOW, ended=LATER))
    jobs.end_job(8, UNIT)
    jobs.set_read(UNIT, changed_at(LATER))
    assert jobs.take(UNIT) == Work("job:8 stop", 1)


def test_a_unit_that_is_unloaded_while_it_is_read_has_its_jobs_one_by_one() -> None:
    """What stopped a unit after it was read, and had it unloaded, is no cause of what was read."""
    jobs = heard(*LIVES["start"])
    jobs.end_job(7, UNIT)
    jobs.set_read(UNIT, changed_at(NOW))
    jobs.update(UNIT, told("active", 8, began=NOW))
    jobs.update(UNIT, told("inactive", 8, began=NOW, ended=LATER))
    jobs.end_job(8, UNIT)
    jobs.forget(UNIT)
    assert jobs.take(UNIT) == Work("job:7 start", 1)
    jobs.set_read(UNIT, {})
    assert jobs.take(UNIT) == Work("job:8 stop", 1)


@pytest.mark.parametrize("kind", ["timer", "path", "socket"])
def test_what_triggered_a_unit_is_named(kind: str) -> None:
    """A trigger waits for its unit before that comes up; one that follows it waits later."""
    trigger = f"web.{kind}"
    waiting = {**told("active"), "SubState": "waiting"}
    running = {**told("active"), "SubState": "running"}

    def started(*, at: int) -> str:
        jobs = heard(*LIVES["start"])
        jobs.update(trigger, waiting)
        jobs.update(trigger, {**running, "StateChangeTimestampMonotonic": at})
        # said again when the unit is up
        jobs.update(trigger, {**running, "StateChangeTimestampMonotonic": LATER})
        jobs.end_job(7, UNIT)
        return jobs.take(UNIT, ["other.timer", trigger]).cause

    assert started(at=EARLY) == started(at=NOW) == f"job:7 start by {trigger}"
    assert started(at=LATER) == "job:7 start"


def test_a_trigger_is_named_once() -> None:
    """A unit that somebody else starts after its timer has is not started by the timer."""
    first, last = LIVES["start"]
    jobs = heard(first, last)
    jobs.update("web.timer", {**told("active", began=NOW), "SubState": "running"})
    jobs.end_job(7, UNIT)
    assert jobs.take(UNIT, ["web.timer"]).cause.endswith(" by web.timer")
    ended = {**told("inactive", began=NOW, ended=LATER), "Job": [0, "/"]}
    for signal in (ended, {**ended, "Job": [8, "/"]}, told("active", 8, began=LATER + 1)):
        jobs.update(UNIT, signal)
    assert jobs.take(UNIT, ["web.timer"]).cause == "job:8 start"


def test_a_connection_is_started_by_its_socket() -> None:
    """A socket with a service for each connection waits for none of them."""
    jobs = UnitJobs()
    for signal in LIVES["start"]:
        jobs.update("web@1.service", signal)
    assert jobs.take("web@1.service", ["web.socket"]).cause == "job:7 start by web.socket"


def test_a_unit_that_was_unloaded_begins_anew() -> None:
    """What was known of a unit does not count for the next one of that name."""
    jobs = heard(told("active", began=LATER))
    jobs.forget(UNIT)
    assert not jobs.is_behind(UNIT, changed_at(NOW), is_new=False)
    jobs.update(UNIT, told("inactive", 7, began=NEVER))
    jobs.update(UNIT, told("active", 7, began=NOW))
    assert jobs.take(UNIT).cause == "job:7 start"


def test_a_reading_may_be_ahead_of_the_signals() -> None:
    """A unit whose last change no signal has told of is known by PID 1's clock."""
    jobs = heard(RUNS)
    assert jobs.is_behind(UNIT, changed_at(NOW), is_new=False)
    assert not jobs.is_behind(UNIT, changed_at(EARLY), is_new=False)
    assert not jobs.is_behind(UNIT, changed_at("now"), is_new=True)
    assert not jobs.is_behind("other.service", changed_at(NOW), is_new=False)
    assert jobs.is_behind("other.service", changed_at(NOW), is_new=True)
    assert not jobs.is_behind("other.service", changed_at(NEVER), is_new=True)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.lists(st.tuples(st.sampled_from([*told("active")]), ODD), max_size=3), ODD, st.text())
def test_signals_that_are_not_sane_break_nothing(
    odd: list[tuple[str, Any]], number: Any, name: str
) -> None:
    """What a signal says wrongly is left out, and what comes next is heard."""
    jobs = heard(told("active", 7) | dict(odd), dict(odd))
    jobs.end_job(number, name)
    jobs.set_types({1: name})
    assert len(jobs.take(UNIT).cause) < 200
    jobs = heard(told("active") | dict(odd), *LIVES["restart"])
    jobs.end_job(7, UNIT)
    assert jobs.take(UNIT).cause.startswith("job:7")


@pytest.mark.parametrize("name", ["", "a b.service", "a.service\nb", "../x.service", "\0.service"])
def test_a_name_that_no_unit_has_is_not_noted(name: str) -> None:
    """A job is of a unit: nothing else is kept."""
    jobs = UnitJobs()
    jobs.end_job(1, name)
    assert jobs.take(name) == Work()


def test_jobs_that_are_not_taken_are_bounded() -> None:
    """A flood of jobs of units that there are not takes no memory for ever."""
    jobs = UnitJobs()
    for number in range(25_000):
        jobs.update(f"a{number}.service", told("active", number))
        jobs.end_job(number, f"a{number}.service")
    assert sum(bool(jobs.take(f"a{n}.service").cause) for n in range(25_000)) <= 20_001
