"""What a row of a unit stands for, as its cause has it, and as reports are merged."""

import pytest

from opdbus.history import jobs
from opdbus.history.change import Cause, kind_of_cause
from opdbus.observe.core.report import Batch, Key
from opdbus.wording import change_lines, change_words

UP, DOWN = {"active_state": "active"}, {"active_state": "inactive"}
STARTING = {"active_state": "activating"}
KEY = Key("unit", "a.service")
ROW = {"seq": 1, "at": 5, "boot": "b", "plugin": "systemd", "kind": "unit", "name": KEY.name}


def merged(*reports: tuple[dict[str, str], Cause]) -> Cause:
    """Return why a unit is as it was reported last, where nothing was written in between."""
    waiting = Batch({})
    for state, why in reports:
        waiting.add(KEY.kind, {KEY.name: state}, why)
    return waiting.whys[KEY]


def job(number: int, what: str, *, is_event: bool = True) -> Cause:
    """Make the Cause of a job that ended, or works."""
    return Cause(f"job:{number} {what}", is_event=is_event)


def test_different_jobs_are_counted_apart() -> None:
    """A stop before three restarts is no restart."""
    restarts = [(UP, job(number, "restart")) for number in (8, 9, 10)]
    why = merged((DOWN, job(7, "stop")), *restarts)
    assert why == Cause("job:10 restart, after 1 stop", 3, is_event=True)


def test_steps_of_one_job_are_one_change() -> None:
    """What a job goes on to do, and fields that follow, are no further start."""
    started = job(7, "start", is_event=False)
    assert merged((STARTING, started), (UP, started), (UP | {"group": "a"}, Cause())) == started


def test_a_start_and_an_exit() -> None:
    """A service that was started and failed has failed once."""
    failed = {"active_state": "failed"}
    why = merged((UP, job(7, "start")), (failed, Cause("exit")))
    assert why == Cause("exit, after 1 start", 1, is_event=True)


@pytest.mark.parametrize(
    ("before", "count", "after", "cause"),
    [
        ("job:1 stop", 1, "job:2 start, failed", "job:2 start, after 1 stop, failed"),
        ("job:1 restart, after 2 stop", 5, "job:2 restart", "job:2 restart, after 2 stop"),
        ("job:1 restart, after 2 stop", 5, "job:2 stop", "job:2 stop, after 3 restart"),
        ("", 2, "job:2 start", "job:2 start, after 2 change"),
        ("job:1 stop", 1, "reload", "reload"),
        ("reload", 1, "", "reload"),
    ],
)
def test_causes_are_joined(before: str, count: int, after: str, cause: str) -> None:
    """The last cause says what else there was, and how often."""
    assert jobs.combine(before, count, after) == cause


def test_restarts_that_started_a_unit() -> None:
    """A unit that was down is told to be started, also where it was restarted after that."""
    row = {"what": "changed", "folded": 4, "cause": "job:9 restart, after 1 stop 2 start"}
    fields = [("active_state", '"inactive"', '"active"')]
    (line,) = change_lines.group_into_lines([{**ROW, **row, "fields": fields}])
    told = "a.service started: inactive -> active (2 restarts, after 1 stop, 2 starts)"
    assert line.text == told


@pytest.mark.parametrize(
    ("cause", "folded", "said"),
    [
        ("job:10 restart, after 1 stop", 3, "a.service restarted (3 times, after 1 stop)"),
        ("job:3 restart, after 1 stop 2 start", 3, "a.service restarted (after 1 stop, 2 starts)"),
        ("job:3 restart", 1, "a.service restarted (2 times)"),
        ("exit, after 1 start", 1, "a.service was started and ended"),
        ("exit, after 2 start", 3, "a.service was started and ended (2 times)"),
        ("exit, after 2 start", 2, "a.service was started and ended (after 2 starts)"),
        ("job:9 stop, after 1 start", 1, "a.service was started and stopped"),
        ("job:9 start, after 1 exit", 1, "a.service ended and was started again"),
        ("job:9 start, after 2 stop", 3, "a.service was stopped and started again (2 times)"),
        ("job:9 start, after 2 stop", 2, "a.service was stopped and started again (after 2 stops)"),
    ],
)
def test_what_else_there_was_is_told(cause: str, folded: int, said: str) -> None:
    """People read how often each was done, and the cause without it."""
    row = {**ROW, "what": "event", "fields": [], "cause": cause, "folded": folded}
    (line,) = change_lines.group_into_lines([row])
    assert line.text == said
    # what has the same job belongs to it
    ((told, _),) = change_lines.group_by_cause([row, {**row, "cause": jobs.alone(cause)}])
    assert told == jobs.alone(cause)
    assert ", after" not in change_words.describe_cause(cause)


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("job:9 restart, after 2 stop", "job"),
        ("exit:start limit", "exit"),
        ("apt upgrade", "apt"),
        ("bus::1.7 uid 0", "bus"),
        ("state file:not followed", "state file"),
        ("start:failed", "start"),
        ("", "unknown"),
        ("anything else", "other"),
    ],
)
def test_kind_of_cause(cause: str, kind: str) -> None:
    """Name the cause of a change by a word of a fixed list."""
    assert kind_of_cause(cause) == kind
