"""Work that is paced: none is late after a quiet time, and much of it takes a twentieth."""

from harness.observing import Clock

from opdbus.observe.core.pace import Allowance, Seldom


def test_a_change_after_a_quiet_time_is_written_at_once() -> None:
    """Work of some milliseconds now and then is not followed by a rest."""
    clock = Clock()
    allowance = Allowance(clock)
    for _ in range(100):
        clock.now += 1.5
        assert allowance.rest(0.05) == 0.0


def test_a_storm_takes_a_twentieth_of_the_time() -> None:
    """Work without end is done in a twentieth of the time, and no rest is longer than a second."""
    clock = Clock()
    allowance = Allowance(clock)
    worked = 0.0
    for _ in range(5000):
        clock.now += 0.01
        worked += 0.01
        clock.now += allowance.rest(0.01)
    assert 0.049 < worked / (clock.now - 1000.0) < 0.051
    assert Allowance(Clock()).rest(60.0) == 1.0


def test_a_name_is_let_through_once_a_minute() -> None:
    """Each name has its own minute, which begins when it is let through."""
    clock = Clock()
    seldom = Seldom(60.0, clock)
    assert seldom.due(["sda", "sdb"]) == {"sda", "sdb"}
    clock.now += 59.0
    assert seldom.due(["sda", "sdc"]) == {"sdc"}
    clock.now += 1.0
    assert seldom.due(["sda", "sdc"]) == {"sda"}
