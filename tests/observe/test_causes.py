"""What observers tell each other of causes."""

import time

from harness.observing import Clock, less_than

from opdbus.history import jobs
from opdbus.observe.core.recent_causes import FOLLOWS_SECONDS, Causes


def test_a_unit_is_the_cause_for_some_time() -> None:
    """What follows from a unit follows soon; of several units, the last to change is the cause."""
    clock = Clock()
    causes = Causes(clock)
    causes.note("web.service", "job:1 start")
    clock.now += 1
    causes.note("web.socket", "job:2 stop")
    assert causes.of_units(["web.service"]) == "job:1 start"
    assert causes.of_units(["web.service", "web.socket"]) == "job:2 stop"
    assert causes.of_units(["other.service", ""]) == ""
    clock.now += FOLLOWS_SECONDS
    assert causes.of_units(["web.service", "web.socket"]) == ""


def test_a_port_has_the_last_job_of_its_unit() -> None:
    """A job counts as soon as it is heard of, and what it did when that was looked at."""
    clock = Clock()
    causes, units = Causes(clock), ["web.service", ""]
    causes.note_job("web.service", "job:1 start")
    assert (causes.of_ports(units), causes.of_units(units)) == ("job:1 start", "")
    for told in ("job:1 start by web.socket", "exit:SIGKILL"):
        clock.now += 1
        causes.note("web.service", told)
        assert causes.of_ports(units) == told
    clock.now += 1
    causes.note_job("web.service", "job:2 stop")
    assert causes.of_ports(units) == "job:2 stop"
    causes.note("web.service", "job:2 restart")
    clock.now += 1
    causes.note_job("web.service", "job:2 start")
    assert causes.of_ports(units) == "job:2 restart"
    clock.now += 1
    causes.note("web.service", "reload")
    assert causes.of_ports(units) == "job:2 restart"
    clock.now += FOLLOWS_SECONDS
    assert causes.of_ports(units) == ""


def test_a_port_is_closed_by_no_start() -> None:
    """What ended a unit closed its ports, also where a start follows before anybody looks."""
    clock = Clock()
    causes, units = Causes(clock), ["web.service"]
    for noted in ("job:1 start", "exit", "job:2 start"):
        causes.note_job("web.service", noted)
        clock.now += 1
    assert causes.of_ports(units) == "job:2 start"
    assert causes.of_ports(units, but=jobs.BEGINS) == "exit"
    clock.now += FOLLOWS_SECONDS
    causes.note("web.service", "job:3 start")
    assert causes.of_ports(units, but=jobs.BEGINS) == ""


def test_a_port_is_opened_by_no_end() -> None:
    """What started a unit opened its ports, also where it has ended before anybody looks."""
    clock = Clock()
    causes, units = Causes(clock), ["web.service"]
    causes.note_job("web.service", "exit")
    assert causes.of_ports(units, but=jobs.ENDS) == ""
    for noted in ("job:1 start", "exit", "job:2 stop"):
        clock.now += 1
        causes.note_job("web.service", noted)
    assert causes.of_ports(units) == "job:2 stop"
    assert causes.of_ports(units, but=jobs.ENDS) == "job:1 start"


def test_a_run_is_the_cause_of_what_was_changed_while_it_went_on() -> None:
    """What counts is when something was changed, however much later it is seen."""
    causes = Causes()
    assert causes.run(1.0) == ""
    causes.run_begins("dpkg:one", 10.0)
    assert [causes.run(at) for at in (9.9, 10.0, 3600.0)] == ["", "dpkg:one", "dpkg:one"]
    causes.end_run(20.0)
    causes.run_begins("apt:two", 30.0)
    assert [causes.run(at) for at in (20.0, 20.1, 30.0)] == ["dpkg:one", "", "apt:two"]


def test_runs_are_looked_for_when_it_counts() -> None:
    """Whoever asks for a run need not wait until it is noticed; it is looked for once for many."""
    causes, looks = Causes(), []

    def look() -> None:
        looks.append(1)
        causes.run_begins("dpkg:now", 10.0)

    causes.look_for_runs = look
    assert [causes.run(11.0) for _ in range(1000)] == ["dpkg:now"] * 1000
    assert len(looks) == 1
    causes.run(time.time())
    assert len(looks) == 2


def test_units_are_forgotten() -> None:
    """However many units change, few are kept."""
    clock = Clock()
    causes = Causes(clock)
    with less_than(3 << 20):
        for number in range(25_000):
            clock.now += 1
            causes.note(f"{number}.service", "exit")
    assert causes.of_units(["24999.service"]) == "exit"
