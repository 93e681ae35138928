"""What observers tell each other of causes."""

from opdbus.observe.causes import FOLLOWS_SECONDS, Causes


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Give the time in seconds."""
        return self.now


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


def test_a_run_is_the_cause_until_shortly_after_its_end() -> None:
    """What a package run changed is seen a moment later, however long the run took."""
    clock = Clock()
    causes = Causes(clock)
    assert causes.run == ""
    causes.run_goes_on("dpkg:now")
    clock.now += 3600
    assert causes.run == "dpkg:now"
    causes.run_ended()
    clock.now += 1
    assert causes.run == "dpkg:now"
    clock.now += 2
    assert causes.run == ""


def test_units_are_forgotten() -> None:
    """However many units change, few are kept."""
    clock = Clock()
    causes = Causes(clock)
    for number in range(25_000):
        clock.now += 1
        causes.note(f"{number}.service", "exit")
    assert causes.of_units(["24999.service"]) == "exit"
    assert len(vars(causes)["_units"]) <= 10_001
