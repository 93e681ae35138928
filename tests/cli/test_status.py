"""`op-dbus status`: the host first, then what serves, in plain words."""

from typing import Any

from opdbus.bus.names import STATE, VECTORIZER
from opdbus.bus.service import contract
from opdbus.cli.status import (
    EMPTY,
    Properties,
    describe_failed,
    describe_host,
    describe_serving,
)
from opdbus.cli.top import screen
from opdbus.cli.top.feed import Facts
from opdbus.cli.top.terminal import plain_text
from opdbus.cli.top.view import View

_TOLD: dict[str, Any] = {
    "Drifted": 2,
    "DriftAwaits": [],
    "Count": 1322,
    "Vectorized": 1322,
    "Pending": 0,
    "FirstStage": 1322,
    "StateFile": "/etc/op-dbus/state.json",
    "Sources": [["live:systemd", 642], ["live:packages", 577], ["file", 100], ["publish:p", 3]],
    "Observers": [
        ["systemd", "up", 642, ""],
        ["packages", "up", 577, "there are more than 20,000 objects: the rest is left out"],
        ["login1", "absent", 0, "org.freedesktop.login1 is not on the system bus"],
        ["units", "absent", 0, "org.freedesktop.login1 is not on the system bus"],
        ["users", "failed", 0, "reading took more than 10 s"],
        ["network", "starting", 0, ""],
    ],
    "Accuracy": [],
    "State": "degraded",
    "StateFileError": "",
    "LastError": "",
    "Proof": {},
    "Fallbacks": [["cuda", "cuda cannot run here: no driver"], ["openvino", "it crashed"]],
    "Jobs": [],
    "Texts": 0,
    "Latency": 0.0031,
    "Memory": 300 << 20,
    "Version": "0.1.0",
}
VALUES = _TOLD | {name: EMPTY[name] for name in EMPTY.keys() - _TOLD.keys()}


def test_failed_units_come_first() -> None:
    """Name the first failed units and count all, before all else; say nothing without any."""
    said = describe_failed(4, ["a.service", "b.service", "c.service"])
    assert said == "4 units: a.service, b.service, c.service and 1 more"
    assert describe_failed(1, ["a.service"]) == "1 unit: a.service"
    assert next(iter(describe_host(VALUES, said).items())) == (
        "Failed",
        f"{said}; `op-dbus ask 'what failed?'` says more",
    )
    assert describe_failed(0, []) == ""
    assert "Failed" not in describe_host(VALUES)


def test_objects_are_counted_by_where_they_are_from() -> None:
    """The host's lines count all objects, and those of each observer, file and publisher."""
    lines = describe_host(VALUES)
    assert list(lines)[:3] == ["Objects", "Observed", "Not observed"]
    assert lines["Objects"] == "1,322 so far, all with vectors"
    assert lines["Observed"] == "1,219 so far: systemd 642, packages 577"
    assert lines["Declared"] == "100 in /etc/op-dbus/state.json"
    gone = describe_host(VALUES | {"StateFileError": "it is gone; put it back"})["Declared"]
    assert gone == "100, the last that /etc/op-dbus/state.json declared: it cannot be read now"
    assert lines["Drifted"] == "2: `op-dbus drift` lists what is other than declared"
    assert lines["Published"] == "3: p 3"
    assert "Drifted" not in describe_host(VALUES | {"Drifted": 0})
    assert (
        describe_host(VALUES | {"Sources": []})["Declared"] == "nothing in /etc/op-dbus/state.json"
    )


def test_what_is_not_observed_is_said_with_the_reason() -> None:
    """Each observer that is absent or failed is named, those of one reason together."""
    assert describe_host(VALUES)["Not observed"].splitlines() == [
        "login1, units (absent): org.freedesktop.login1 is not on the system bus",
        "users (failed): reading took more than 10 s",
    ]
    assert describe_host(VALUES)["Note"].startswith("packages: there are more than")
    assert "Not observed" not in describe_host(VALUES | {"Observers": VALUES["Observers"][:1]})


def test_a_daemon_of_another_version_may_tell_less() -> None:
    """Each property has its empty value, and what the daemon does not tell is named."""
    infos = [contract.interface(name) for name in (VECTORIZER, STATE)]
    types = {p.name: p.signature for info in infos for p in info.properties.values()}
    empty = {"s": "", "a{sv}": {}, **dict.fromkeys("tud", 0)}
    assert {name: empty.get(type_, []) for name, type_ in types.items()} == EMPTY
    for name in EMPTY:
        values = Properties(VALUES)
        del values[name]
        assert describe_host(values)["Unknown"].startswith(f"{name}: not sent by this daemon")
        describe_serving(values)
        shown = screen.draw_screen(Facts("web1", values, 1.0), View(), 100, 24, 1.0)
        assert f"! unknown {name}: not sent by this daemon, another" in "\n".join(
            map(plain_text, shown)
        )
    assert "Unknown" not in describe_host(VALUES)


def test_no_observer_is_no_fault() -> None:
    """Where nothing is to be observed, or nothing was yet, that is said."""
    without: dict[str, Any] = {"Sources": [["file", 100]], "Observers": []}
    assert describe_host(VALUES | without)["Observed"] == "nothing: OP_DBUS_OBSERVE is none"
    starting = without | {"Observers": [["network", "starting", 0, ""]]}
    assert describe_host(VALUES | starting)["Observed"] == "nothing yet"
    read = {"Observers": [["network", "up", 0, ""]]}
    assert describe_host(VALUES | read)["Objects"] == "1,322, all with vectors"
    assert describe_host(VALUES | read)["Observed"] == "1,219: systemd 642, packages 577"


def test_objects_that_wait_are_counted() -> None:
    """Objects without vectors are counted, and those that an update has still to render."""
    waiting = VALUES | {"Pending": 40, "Vectorized": 1282}
    assert describe_host(waiting)["Objects"] == "1,322 so far, 40 of which wait for their vectors"
    updated = {"Pending": 900, "Vectorized": 1282}
    for level in ({}, {"Level": "none", "Vectorized": 0, "Pending": 1322}):
        line = describe_host(VALUES | updated | level)["Objects"]
        assert line.endswith(" of which wait to be brought up to this version")
    stage = "96% ready; searches find 1,322 objects by static vectors"
    assert describe_host(waiting)["Second stage"] == stage
    assert "Second stage" not in describe_host(waiting | {"FirstStage": 0})
    assert "Second stage" not in describe_host(VALUES)
    assert describe_host(VALUES | {"Vectorized": 0})["Objects"] == "1,322 so far"


def test_many_publishers_are_cut() -> None:
    """Of many sources the largest are named, and all are counted."""
    many = [[f"publish:p{number}", 1] for number in range(50)]
    line = describe_host(VALUES | {"Sources": many})["Published"]
    assert line.startswith("50: p0 1, ")
    assert line.endswith(", 30 more")


def test_a_fallback_names_its_provider_once() -> None:
    """A reason that begins with the provider is not preceded by it."""
    assert (
        describe_serving(VALUES)["Fallbacks"]
        == "cuda cannot run here: no driver\nopenvino: it crashed"
    )


def test_what_there_is_not_is_left_out() -> None:
    """Empty values, and those of the host's lines, are not shown below."""
    shown = describe_serving(VALUES)
    assert list(shown) == ["State", "Fallbacks", "Latency", "Memory", "Version"]
    assert (shown["Latency"], shown["Memory"]) == ("3.1 ms", "300 MiB")
