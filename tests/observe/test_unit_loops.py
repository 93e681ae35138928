"""When a service counts as restarted again and again, and until when."""

from typing import Any

import pytest

from opdbus.observe.systemd.unit_loops import UnitLoops

UNIT = "web.service"
RUNS = {"active_state": "active", "sub_state": "running"}
WAITS = {"active_state": "activating", "sub_state": "auto-restart", "result": "exit-code"}


class Watched:
    """A service, of which a state is read now and then."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.loops = UnitLoops(lambda: self.now)

    def read(self, count: int, after: float = 0.0, **states: Any) -> dict[str, Any]:
        """Return what is shown of a state that is read some seconds later."""
        self.now += after
        counted = {"n_restarts": count} if count else {}
        return self.loops.steady(UNIT, RUNS | states | counted)[0]

    def is_in_loop(self, count: int, after: float = 0.0, **states: Any) -> bool:
        """Return whether it is in a loop then."""
        return "restart_loop" in self.read(count, after, **states)


@pytest.fixture
def looping() -> Watched:
    """Return a service that has been restarted four times, and waits for one more."""
    watched = Watched()
    watched.read(0)
    watched.read(3, 10, **WAITS, exit_status=7)
    assert watched.is_in_loop(4, 10)
    return watched


def test_a_loop_is_one_state(looping: Watched) -> None:
    """Show a service that runs for a moment as it is shown while it waits, and its state now."""
    while_running, while_waiting = looping.read(5, 5), looping.read(5, 3, **WAITS, exit_status=9)
    assert while_running.pop("state_now") == "active (running)"
    assert while_waiting.pop("state_now") == "activating (auto-restart)"
    assert while_running == while_waiting
    assert while_running.items() >= (WAITS | {"exit_status": 7, "restart_loop": True}).items()
    momentary = {"active_state": "failed", "sub_state": "failed-before-auto-restart"}
    now = "failed (failed-before-auto-restart)"
    assert looping.read(5, 1, **momentary) == while_running | {"state_now": now}


@pytest.mark.parametrize(
    ("count", "after", "states"),
    [
        (0, 1, {}),  # a job started it
        (2, 1, {}),  # and it was restarted since
        (4, 1, {"active_state": "failed", "sub_state": "failed"}),
        (4, 1, {"active_state": "inactive", "sub_state": "dead"}),
        (4, 600, {}),
    ],
)
def test_a_loop_ends(looping: Watched, count: int, after: float, states: dict[str, str]) -> None:
    """A job, being down for good and ten quiet minutes end a loop."""
    assert not looping.is_in_loop(count, after, **states)


def test_a_loop_is_looked_at_when_it_may_have_ended(looping: Watched) -> None:
    """Say when ten minutes have passed since the last restart."""
    _, wait = looping.loops.steady(UNIT, RUNS | {"n_restarts": 4})
    assert wait == 600


def test_few_and_slow_restarts_are_no_loop() -> None:
    """Three restarts are none, nor one each four minutes, nor those before op-dbus has run."""
    few, slow = Watched(), Watched()
    assert not few.is_in_loop(50)
    assert not few.is_in_loop(53, 10)
    assert not any(slow.is_in_loop(n, 240) for n in range(9))


def test_a_loop_goes_on_after_a_restart_of_op_dbus(looping: Watched) -> None:
    """Show what was stored, unless the service was started by a job meanwhile."""
    stored = looping.read(4)
    again = Watched()
    again.loops.resume(UNIT, stored)
    assert again.read(60) == stored | {"n_restarts": 60}
    later = Watched()
    later.loops.resume(UNIT, stored)
    assert not later.is_in_loop(0)
