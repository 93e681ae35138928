"""Changes in plain words."""

import asyncio
import json
import re
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from opdbus.cli import show_history
from opdbus.wording import change_lines, change_words


def change(
    what: str,
    kind: str,
    name: str,
    *,
    cause: str = "",
    source: str = "",
    folded: int = 0,
    **fields: Any,
) -> dict[str, Any]:
    """Make a change as the bus gives it; a field is (before, after), or None."""
    plugin, _, kind = kind.partition("/")
    sides = ((path, *(_json(value) for value in sides)) for path, sides in fields.items())
    return {
        "seq": 1,
        "at": 5,
        "boot": "b",
        "plugin": plugin,
        "kind": kind,
        "name": name,
        "what": what,
        "cause": cause,
        "source": source,
        "folded": folded,
        "fields": list(sides),
    }


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value)


UNIT, PACKAGE, PORT = "systemd/unit", "packages/package", "net/listener"
SYSCTL = "kernel/sysctl"


def unit(name: str, **more: Any) -> dict[str, Any]:
    """Make a change of a unit."""
    return change("changed", UNIT, name, **more)


def package(name: str, **more: Any) -> dict[str, Any]:
    """Make a change of a package."""
    return change("changed", PACKAGE, name, **more)


def unit_event(name: str, cause: str, **more: Any) -> dict[str, Any]:
    """Make an event of a unit."""
    return change("event", UNIT, name, cause=cause, **more)


def note(*args: Any, **fields: Any) -> dict[str, Any]:
    """Make a change that the journal's reader published."""
    return {**change(*args, **fields), "believed": True}


STOP = {"at": "2026-11-27T10:28:10+00:00", "with": "sudo", "command": "systemctl stop chrony"}
SAID = [
    (note("changed", "journal/user", "bob", ran=([], [STOP]), as_root=([STOP], [])),
     "user bob ran as root: sudo systemctl stop chrony"),
    (note("changed", "journal/user", "bob", as_root=([], [STOP])),
     "user bob is root: sudo systemctl stop chrony"),
    (note("changed", "journal/user", "bob", as_root=([STOP], [])), "user bob is root no longer"),
    (note("changed", "journal/user", "bob", as_root=(1, "x"), ran=({}, [1, [], {"with": 3}])),
     "user bob ran as root: 3"),
    (note("appeared", "journal/failure", "a.service", failed=(None, [{"why": "error: x",
     "lines": ["error: x"]}])), "a.service logged before it failed: error: x"),
    (note("changed", "journal/failure", "a.service", failed=([], [{"why": "killed by a signal"}])),
     "a.service failed: killed by a signal"),
    (note("gone", "journal/reader", "op-dbus-journal"), "the journal is read no longer"),
    # another publisher's, which anybody in the group may write
    (change("appeared", "journal/user", "alice", ran=(None, [STOP]), source="publish:journal",
     cause="bus::1.9 uid 1003"), "published by uid 1003: user alice published"),
    (change("healed", PACKAGE, "a", version=("1.0", ">= 2.0")),
     "package a is as declared again: version was 1.0, declared >= 2.0"),
    (unit("a.timer", sub_state=("waiting", "elapsed")), "a.timer elapsed, and is not set again"),
    (change("appeared", SYSCTL, "vm.x", file=(None, "/a"), wanted=(None, "1"), value=(None, 6)),
     "sysctl vm.x named in /a, to be 1, is 6"),
    (change("appeared", SYSCTL, "vm.x", value=(None, "60")), "sysctl vm.x named, is 60"),
    (change("gone", SYSCTL, "vm.x", value=("60", None)), "sysctl vm.x is named no longer"),
    (unit("sshd.service", active_state=("active", "inactive")),
     "sshd.service stopped: active -> inactive"),
    (unit("a.service", active_state=("active", "failed"), result=(None, "exit-code")),
     "a.service failed: active -> failed (exit-code)"),
    (unit("a", active_state=("active", "inactive"), enabled=(True, False)),
     "a stopped, disabled: active -> inactive"),
    (unit("a.service", active_state=("failed", "inactive")),
     "a.service is no longer failed: failed -> inactive"),
    (unit("a", cause="job:7 start", active_state=("failed", "inactive")),
     "a ran, is no longer failed: failed -> inactive"),
    (unit("a", cause="job:7 start", active_state=("activating", "inactive")),
     "a ran: activating -> inactive"),
    (unit("a", cause="job:7 stop", active_state=("activating", "inactive")),
     "a stopped: activating -> inactive"),
    *((unit("a", active_state=("active", "failed"), result=(None, result), **{field: (None, x)}),
       f"a failed: active -> failed ({said})")
      for result, field, x, said in (
          ("exit-code", "exit_status", 7, "status 7"),
          ("signal", "exit_signal", "SIGKILL", "killed by SIGKILL"),
          ("core-dump", "exit_signal", "SIGSEGV", "SIGSEGV"),
          ("watchdog", "exit_signal", "SIGABRT", "watchdog"))),
    (unit("a", masked=(None, False), load_state=("not-found", "error"), load_error=(None,
     "Invalid")), "a cannot be loaded: Invalid"),
    (unit("a", masked=(True, None), enabled=(False, None), load_state=("masked", "not-found")),
     "a unmasked"),
    (unit("a", masked=(None, False), enabled=(None, False)),
     "a changed: masked none -> no, enabled none -> no"),
    (unit("a", active_state=("inactive", "active"), description=("Lobby", "Arena"), drop_ins=(None,
     ["/a.conf"])),
     "a started: inactive -> active, description Lobby -> Arena, drop_ins none -> /a.conf"),
    (change("appeared", UNIT, "a.timer", enabled=(None, True)), "a.timer appeared, enabled"),
    (unit("a.timer", enabled=(False, True)), "a.timer enabled"),
    (unit("a.timer", masked=(True, False)), "a.timer unmasked"),
    (unit_event("a.service", "job:7 restart"), "a.service restarted"),
    (unit_event("a.service", "job:7 start, failed"), "a.service failed again"),
    (unit("a", active_state=("active", "activating"), sub_state=("running", "auto-restart"),
     result=(None, "exit-code")), "a exited (exit-code), is starting again: active -> activating"),
    (unit("a", active_state=("active", "activating"), restart_loop=(None, True), result=(None,
     "exit-code"), exit_status=(None, 3)), "a is restarted again and again (status 3)"),
    (unit("a", active_state=("activating", "active"), restart_loop=(True, None)),
     "a is not restarted again and again any more"),
    (change("appeared", UNIT, "a", active_state=(None, "failed"), result=(None, "exit-code")),
     "a appeared, failed (exit-code)"),
    (unit_event("a.service", "start"), "a.service restarted"),
    (unit_event("a.service", "start:failed"), "a.service failed again"),
    (unit_event("a.service", "start:ran"), "a.service ran"),
    (unit_event("a.service", "job:7 stop"), "a.service stopped"),
    (change("appeared", UNIT, "a", masked=(None, True)), "a appeared, masked"),
    (change("appeared", "backup/run", "a", source="publish:backup"), "run a published"),
    (change("gone", "backup/run", "a", source="publish:backup"), "run a no longer published"),
    (unit_event("a.service", "reload"), "a.service changed, and is as it was"),
    (change("event", "files/file", "/etc/a"), "/etc/a changed, and is as it was"),
    (change("event", "devices/usb", "1-1"), "USB device 1-1 had an event"),
    (unit_event("a.service", "job:7 start by a.timer"), "a.service ran"),
    *((unit_event("a.service", cause),
     "a.service ended and was started again") for cause in ("exit", "exit:SIGKILL")),
    (package("openssl", version=("3.0.9", "3.0.10")), "package openssl upgraded 3.0.9 -> 3.0.10"),
    (package("x", version=("1:2.0", "3.0~rc1")), "package x downgraded 1:2.0 -> 3.0~rc1"),
    (package("x", version=("3.0~rc1", "3.0")), "package x upgraded 3.0~rc1 -> 3.0"),
    (package("x", essential=(None, True), on_hold=(True, None), version=("2", "1")),
     "package x downgraded, no longer on hold, essential none -> yes: 2 -> 1"),
    (package("x", installed_size_mb=(1, 2), version=("1", "2")), "package x upgraded 1 -> 2"),
    (package("x", on_hold=(None, True)), "package x put on hold"),
    (change("appeared", PACKAGE, "hello", version=(None, "2.10")), "package hello installed 2.10"),
    (change("appeared", PACKAGE, "x", version=(None, "1"), status=(None, "unpacked")),
     "package x left unpacked 1"),
    (package("x", removed=(True, None), status=("x", "half-configured")),
     "package x left half-configured"),
    (unit("a.service", enabled=(True, None), load_state=("loaded", "not-found")),
     "a.service has no file any more"),
    (package("hello", removed=(None, True), status=("installed", "x")),
     "package hello removed, its configuration is left"),
    (change("appeared", PORT, "tcp 0.0.0.0:8080", port=(None, 8080), unit=(None, "n.service")),
     "port tcp 0.0.0.0:8080 opened by n.service"),
    (package("x", status=("unpacked", "installed")), "package x installed"),
    (change("changed", "files/file", "/etc/a", sha256=("a", "b"), size=(1, 2), mode=("1", "2")),
     "/etc/a changed: its content, mode 1 -> 2"),
    (change("changed", "files/file", "/etc/a", owner=(None, "not root")),
     "/etc/a changed: owner root -> not root"),
    (change("changed", "files/file", "/etc/a", sha256=("a", None), mode=("0644", "0600"),
     modified=(False, None), readable=(None, False)),
     "/etc/a changed: not readable for all any more, mode 0644 -> 0600"),
    (change("changed", "files/file", "/etc/a", sha256=(None, "a"), readable=(False, None)),
     "/etc/a changed: readable for all"),
    (change("changed", "files/file", "/etc/a", written_at=("x", "y"), size=(1, 2)),
     "/etc/a changed: written anew, size 1 -> 2"),
    (change("changed", "files/file", "/etc/a", missing=(None, True)), "/etc/a deleted"),
    (change("gone", PORT, "tcp 0.0.0.0:8080", port=(8080, None)), "port tcp 0.0.0.0:8080 closed"),
    (change("appeared", PORT, "tcp 127.0.0.1:8088", cause="first"),
     "port tcp 127.0.0.1:8088 found"),
    (change("gone", PORT, "tcp [::1]:53", unit=("named.service", None), cause="exit"),
     "port tcp [::1]:53 closed by named.service"),
    (change("gone", PORT, "tcp [::1]:53"), "port tcp [::1]:53 closed"),
    (change("appeared", "kernel/module", "kvm"), "module kvm loaded"),
    (change("appeared", "house/lamp", "hall", cause="first"), "lamp hall found"),
    (change("changed", "house/lamp", "hall", a=(1, 2), b=(None, "x"), c=(True, None), d=(1, 2)),
     "lamp hall changed: a 1 -> 2, b none -> x, c yes -> none and 1 more"),
    (change("changed", "house/lamp", "hall", a=(None, None)), "lamp hall changed: a"),
    (change("gone", "house/lamp", "hall"), "lamp hall is gone"),
    (change("drift", UNIT, "a.service", active=(True, False), mode=(None, "x")),
     "a.service is other than declared: active is no, declared yes; mode is x, declared none"),
    (change("intended", UNIT, "a.service", active=(None, None)),
     "a.service is not yet as declared: active"),
    (change("drift", UNIT, "a", cause="state file:not followed", enabled=(True, False)),
     "a is still other than declared: enabled is no, declared yes"),
    (change("healed", UNIT, "a.service", masked=("masked", False)),
     "a.service is as declared again: masked yes -> no"),
    (change("appeared", "cron/job", "/etc/cron.d/nightly false"),
     "cron job false of /etc/cron.d/nightly added"),
    (change("appeared", "cron/job", "/etc/cron.daily/apt"), "cron job /etc/cron.daily/apt added"),
    (change("drift", UNIT, "a.service", presence=("present", "missing")),
     "a.service is other than declared: missing"),
    (change("drift", UNIT, "a.service", presence=("not declared", "present")),
     "a.service is other than declared: there, and not declared"),
    (change("undeclared", UNIT, "a.service", presence=("not declared", None)),
     "a.service need not be declared any more"),
    (change("undeclared", UNIT, "a.service", active=(True, None)),
     "a.service is no longer declared: active"),
    (change("healed", UNIT, "a.service", active=(False, False)),
     "a.service is as declared again: active is no"),
    (change("healed", UNIT, "a.service", active=(False, True)),
     "a.service is as declared again: active no -> yes"),
    (change("drift", UNIT, "a", **{"on": (None, False), "declared.on": (None, True)}),
     "a is other than declared: on is no, declared yes"),
    (change("drift", UNIT, "a", **{"presence": (None, "present"), "declared.presence": (None,
     "not declared")}), "a is other than declared: there, and not declared"),
    (change("undeclared", UNIT, "a", **{"declared.presence": ("not declared", None)}),
     "a need not be declared any more"),
    (change("undeclared", UNIT, "a", **{"declared.on": (True, None)}),
     "a is no longer declared: on"),
    (change("drift", "users/group", "g", **{"members": (["b"], ["b", "a"]),
     "declared.members": (None, ["a"])}),
     "group g is other than declared: members +b"),
    (change("drift", "files/file", "/etc/a", **{"sha256": ("a", "b"),
     "declared.sha256": (None, "a")}), "/etc/a is other than declared: its content differs"),
    (change("healed", "files/file", "/etc/a", sha256=("b", "a")),
     "/etc/a is as declared again: its content"),
    (change("drift", "users/group", "g", members=(["a"], [])),
     "group g is other than declared: members is none, declared a"),
    (change("appeared", "login1/user", "bob", linger=(None, False)), "user bob logged in"),
    (change("gone", "login1/user", "bob", linger=(True, None)), "user bob is gone"),
    (change("appeared", "login1/session", "c1", user=(None, "bob")), "session c1 of bob began"),
    (change("gone", "login1/session", "c1", user=("bob", None)), "session c1 of bob ended"),
    (change("gone", "login1/session", "c1"), "session c1 ended"),
    (change("appeared", "users/account", "bob", administrator=(None, True)),
     "account bob added, an administrator"),
    (change("forgot", "history/row", "x", count=(None, 1), rows=(None, [[1, 1]])),
     "history was made to forget the values of 1 row"),
    (change("forgot", "history/row", "x", count=(None, 7), rows=(None, [[1, 7]])),
     "history was made to forget the values of 7 rows"),
    (change("new word", UNIT, "a.service"), "a.service new word"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), SAID, ids=[said for _, said in SAID])
def test_changes_are_told_in_plain_words(given: dict[str, Any], said: str) -> None:
    """Say what happened as an administrator would."""
    assert str(change_words.describe_change(given)) == said


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("job:4711 restart", "job 4711 restart"),
        ("apt:2026-11-22T07:01:02 apt upgrade -y", "package run 07:01 apt upgrade -y"),
        ("dpkg:2026-11-22T07:01:02", "package run 07:01 dpkg"),
        ("unit exit:SIGKILL", "its unit was killed by SIGKILL"),
        ("exit:signal 34", "killed by signal 34"),
        ("exit:status 3", "its own process ended (status 3)"),
        ("start:failed", "while op-dbus was not running"),
        ("start:unread", "after the last reading before op-dbus was stopped"),
        ("during dpkg:2026-11-22T07:01:02", "during package run 07:01 dpkg"),
        ("bus::1.42 uid 1000", "by alice (:1.42)"),
        ("bus:org.freedesktop.UDisks2", "by org.freedesktop.UDisks2"),
        ("first", "listed for the first time"),
        ("", "cause not known"),
        ("moon: full", "moon: full"),
    ],
)
def test_causes_are_told_in_plain_words(cause: str, said: str) -> None:
    """Say each cause that is known, and any other as it is."""
    assert change_words.describe_cause(cause, {1000: "alice"}.__getitem__) == said


def written(what: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    """Make a change of the state file."""
    return {**change(what, kind, name, cause="state file", **fields), "source": "file"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (written("appeared", "users/account", "bob"), "account bob declared"),
        (written("appeared", "mounts/mount", "/srv/media"), "mount /srv/media declared"),
        (written("changed", "users/account", "bob", home=("/home/b", "/srv/b")),
         "declaration of account bob changed: home /home/b -> /srv/b"),
        (written("changed", UNIT, "a.service", active_state=("active", "inactive")),
         "declaration of a.service changed: active_state active -> inactive"),
        (written("gone", UNIT, "nosuch.service", enabled=(True, None)),
         "declaration of nosuch.service removed"),
    ],
)  # fmt: skip
def test_what_the_state_file_says_is_no_change_of_the_host(
    given: dict[str, Any], said: str
) -> None:
    """Say of a row of the state file that something is declared, not that it happened."""
    assert str(change_words.describe_change(given)) == said


def test_who_did_it_and_why_stand_behind_the_cause() -> None:
    """Say by whom, else who was root meanwhile, and what a unit said before it failed."""
    stopped = unit("a.service", cause="job:7 stop", active_state=("active", "inactive"))
    shell = ["bob with sudo bash", 1_700_000_000_000_000]
    rows = [
        {**stopped, "by": "bob with sudo systemctl stop a", "why": "error: x", "lines": []},
        {**stopped, "as_root": [shell], "as_root_others": 2},
    ]
    first, second = map(str, change_lines.group_into_lines(rows))
    said = "a.service stopped: active -> inactive (job 7 stop)"
    assert first == f"{said} by bob with sudo systemctl stop a, why: error: x"
    since = change_words.format_stamp(shell[1])
    assert (
        second
        == f"{said}, while bob was root since {since} (sudo bash), and 2 other sessions as root"
    )


def test_a_signal_ends_a_unit_once() -> None:
    """Say by which signal a unit was killed, once, and not that its process ended by itself."""
    killed = unit(
        "a.service", cause="exit", active_state=("active", "failed"), result=(None, "signal"),
        exit_signal=(None, "SIGKILL"),
    )  # fmt: skip
    by = {"by": "carol with sudo pkill -9 a", "why": "killed by SIGKILL"}
    again = {**unit_event("a.service", "exit:SIGKILL"), **by}
    assert [str(line) for line in change_lines.group_into_lines([{**killed, **by}, again])] == [
        "a.service failed: active -> failed (killed by SIGKILL) by carol with sudo pkill -9 a",
        "a.service ended and was started again (killed by SIGKILL) by carol with sudo pkill -9 a",
    ]


def test_many_declarations_are_one_line() -> None:
    """Do not mix what was declared with what happened, though both have one verb."""
    gone = [written("gone", "users/account", f"u{n}") for n in range(4)]
    real = [change("gone", "users/account", f"u{n}", cause="state file") for n in range(4)]
    assert [line.text for line in change_lines.group_into_lines([*gone, *real])] == [
        "declarations of 4 accounts removed: u0, u1, u2 and 1 more",
        "4 accounts removed: u0, u1, u2 and 1 more",
    ]


def test_alike_changes_are_one_line() -> None:
    """Count many changes of one kind and cause, name the first, and leave few as they are.

    What has no known cause is put together only where nothing came between.
    """
    upgrades = [
        change("changed", PACKAGE, f"p{n}", cause="apt:x", version=("1", "2")) for n in range(31)
    ]
    unit = change("changed", UNIT, "a.service", cause="apt:x", active_state=("active", "failed"))
    again = [change("event", UNIT, "b.service", cause="exit", folded=4)]
    same = [change("changed", "house/lamp", "hall", cause="c", a=(n, n + 1)) for n in range(9)]
    assert [
        line.text
        for line in change_lines.group_into_lines([*upgrades, unit, *upgrades[:2], *again, *same])
    ] == [
        "a.service failed: active -> failed",
        "31 packages upgraded: p0, p1, p2 and 28 more",
        "b.service ended and was started again (5 times)",
        "lamp hall changed 9 times",
    ]


@pytest.mark.parametrize("cause", ["", "apt:x"])
def test_only_what_happened_within_a_moment_is_one_line(cause: str) -> None:
    """Do not hide a later change of another thing among those before it."""
    files = [
        {**change("changed", "files/file", f"/f{n}", cause=cause, sha256=("a", "b")), "at": at}
        for n, at in enumerate([0, 400_000, 800_000, 900_000, 6_000_000])
    ]
    assert [line.text for line in change_lines.group_into_lines(files)] == [
        "4 files changed: /f0, /f1, /f2 and 1 more",
        "/f4 changed: its content",
    ]


def test_few_changes_that_were_asked_for_are_told_each() -> None:
    """Show the fields where a question is about few things."""
    same = [change("changed", "house/lamp", "hall", a=(n, n + 1)) for n in range(4)]
    (line,) = change_lines.group_into_lines(same)
    assert line.text == "lamp hall changed 4 times"
    told = [line.text for line in change_lines.group_into_lines(same, is_narrow=True)]
    assert told == [f"lamp hall changed: a {n} -> {n + 1}" for n in range(4)]
    assert len(list(change_lines.group_into_lines(same * 6, is_narrow=True))) == 1


def test_what_has_no_known_cause_keeps_its_order() -> None:
    """Put together only what came one after the other: nothing says that the rest belongs to it."""
    lamps = [change("appeared", "house/lamp", f"l{n}") for n in range(5)]
    changes = [*lamps, change("gone", "house/lamp", "x"), *lamps[:2]]
    assert [line.text for line in change_lines.group_into_lines(changes)] == [
        "5 lamps appeared: l0, l1, l2 and 2 more",
        "lamp x is gone",
        "lamp l0 appeared",
        "lamp l1 appeared",
    ]


def test_causes_are_in_the_order_in_which_they_ended() -> None:
    """Put what changed last last, whether its cause is known or not."""
    changes = [change("event", UNIT, str(n), cause=cause) for n, cause in enumerate("ab a")]
    changes[2]["cause"] = ""
    for seq, item in enumerate(changes):
        item["seq"] = seq
    found = [
        (cause, [item["name"] for item in items])
        for cause, items in change_lines.group_by_cause(changes)
    ]
    assert found == [("b", ["1"]), ("", ["2"]), ("a", ["0", "3"])]


@pytest.mark.parametrize(
    "text", ["null", "[]", "{}", '""', '"\\u001b[31m\\n"', "1e999", '["a", 1]']
)
def test_any_value_is_said(text: str) -> None:
    """Say something of any JSON."""
    given = change("changed", UNIT, "a.service")
    given["fields"] = [("x", text, text)]
    assert change_words.describe_change(given).detail.startswith("x ")


def test_a_long_value_is_cut() -> None:
    """Say the beginning of a long value."""
    given = change("changed", UNIT, "a.service", x=("y" * 99, 1))
    assert change_words.describe_change(given).detail == f"x {'y' * 37}... -> 1"


def test_a_cause_is_one_while_it_goes_on() -> None:
    """Put reloads an hour apart, and jobs of two boots, below two headings."""
    times = [("reload", 0, "b"), ("job:7", 1, "b"), ("reload", 3600, "b"), ("job:7", 1, "c")]
    changes = [
        {**change("event", UNIT, "a", cause=cause), "at": at * 1_000_000, "boot": boot, "seq": seq}
        for seq, (cause, at, boot) in enumerate(times)
    ]
    found = change_lines.group_by_cause(changes)
    assert [cause for cause, _ in found] == ["reload", "job:7", "reload", "job:7"]


def test_what_has_no_known_cause_is_apart_where_time_is_between() -> None:
    """Put changes without a known cause below two headings where a minute is between them."""
    changes = [
        {**change("event", UNIT, "a"), "at": at * 1_000_000, "seq": seq}
        for seq, at in enumerate((0, 30, 600))
    ]
    assert [len(items) for _, items in change_lines.group_by_cause(changes)] == [2, 1]


def test_ends_of_unrelated_units_are_apart() -> None:
    """Put what their own processes did, or nobody knows, below a heading for each unit."""
    port = change("gone", PORT, "tcp [::]:80", cause="exit", unit=("a.service", None))
    ends = [change("event", UNIT, f"{name}.service", cause="exit") for name in "aba"]
    users = [change("changed", f"users/{kind}", "x") for kind in ("account", "group", "account")]
    changes = [{**each, "seq": seq} for seq, each in enumerate([*ends, port, *users])]
    found = [[each["seq"] for each in items] for _, items in change_lines.group_by_cause(changes)]
    assert found == [[1], [0, 2, 3], [5], [4, 6]]


@pytest.mark.parametrize("cause", ["first", "job:7 start"])
def test_what_was_cut_off_is_not_counted_as_all(cause: str) -> None:
    """Say `at least` in a line that counts the oldest change, where older ones are left out."""
    lamps = [change("appeared", "house/lamp", f"l{n}", cause=cause) for n in range(5)]
    later = [change("appeared", "house/door", f"d{n}", cause="source") for n in range(5)]
    cut, whole = change_lines.group_into_lines([*lamps, *later], is_cut=True)
    assert "at least 5 lamps" in cut.text
    assert "at least" not in whole.text
    assert not any("at least" in line.text for line in change_lines.group_into_lines(lamps))


@pytest.mark.parametrize(
    ("days", "said"), [(0, r"\w{3} \d\d \d\d:\d\d:\d\d"), (800, r"\w{3} \d\d  \d{4}")]
)
def test_stamps_are_in_one_column(days: int, said: str) -> None:
    """Give the time, and of what is long ago the year, in 15 columns."""
    stamp = change_words.format_stamp(int((time.time() - days * 86400) * 1e6))
    assert re.fullmatch(said, stamp)
    assert len(stamp) <= 15


@pytest.mark.parametrize(
    ("causes_of_rows", "is_whole", "told"),
    [
        ("f" * 2500, True, (2500, False)),
        ("f" * 2500, False, (4, True)),
        ("f" * 2500 + "k", True, (2500, True)),
        ("kkkk" + "f" * 9, True, (4, True)),
        ("kkff", True, (4, False)),
    ],
)
def test_a_first_listing_is_not_cut_in_two(
    causes_of_rows: str, told: tuple[int, bool], *, is_whole: bool
) -> None:
    """Say that there are more changes where those are something else than one first listing."""

    class Rows:
        """Gives rows, the newest first, as a client does."""

        async def changes(self, wanted: dict[str, int], limit: int) -> list[dict[str, Any]]:
            count = len(causes_of_rows)
            rows = [
                {"seq": count - n, "cause": {"f": "first", "k": "kernel"}[letter]}
                for n, letter in enumerate(causes_of_rows)
            ]
            return [row for row in rows if row["seq"] < wanted.get("below", count + 1)][:limit]

    rows, is_cut = asyncio.run(show_history.read_newest(Rows(), {}, 4, is_whole=is_whole))  # type: ignore[arg-type] -- as much of a client as is asked
    assert (len(rows), is_cut) == told


def test_a_first_listing_is_one_line() -> None:
    """Count what a first listing found by its kinds."""
    kinds = [UNIT, UNIT, PORT, "cron/job", UNIT]
    found = [change("appeared", kind, str(n), cause="first") for n, kind in enumerate(kinds)]
    (line,) = change_lines.group_into_lines(found)
    assert line.text == "found 3 units, 1 port, 1 cron job"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (["a", "b"], ["b", "c"], "-a +c"),
        ("ro,a", "rw,a", "-ro +rw"),
        (["a"], None, "a -> none"),
        (["a", "b"], ["b", "a"], "a, b -> b, a"),
        ("Smith, Anna", "Smith, Bob", "Smith, Anna -> Smith, Bob"),
        ([1], [2], "[1] -> [2]"),
    ],
)
def test_of_lists_is_said_what_came_and_left(old: Any, new: Any, said: str) -> None:
    """Tell the difference of lists, unless only their order is other."""
    given = change("changed", "house/lamp", "hall", x=(old, new))
    assert change_words.describe_change(given).detail == f"x {said}"


def test_what_happens_during_a_package_run_need_not_be_its_doing() -> None:
    """Of packages the run is the cause; of anything else it is only said that it went on."""
    run = "dpkg:2026-11-22T07:01:02"
    rows = [change("gone", kind_id, "a", cause=run) for kind_id in (PACKAGE, "users/account", UNIT)]
    rows.append(change("gone", PORT, "tcp 0.0.0.0:80", cause="exit"))
    causes = [run, f"during {run}", f"during {run}", "unit exit"]
    assert [line.cause for line in change_lines.group_into_lines(rows)] == causes


def test_a_first_listing_counts_what_was_observed() -> None:
    """Objects that are only declared are counted apart: nobody found them."""
    real = [change("appeared", "users/account", f"u{n}", cause="first") for n in range(3)]
    wish = [change("appeared", "users/account", f"w{n}", cause="first") for n in range(2)]
    wish = [{**one, "source": "file"} for one in wish]
    texts = [line.text for line in change_lines.group_into_lines([*real, *wish])]
    assert texts == ["found 3 accounts; declared 2 accounts"]
    assert [line.text for line in change_lines.group_into_lines(wish)] == ["declared 2 accounts"]


def test_a_listing_names_each_noun_once() -> None:
    """Kinds of several plugins with one noun are counted together, settings as sets of them."""
    kinds = ["system/settings", PACKAGE, "sysctl/settings", "apt/package"]
    rows = [change("appeared", kind, str(n), cause="first") for n, kind in enumerate(kinds)]
    (line,) = change_lines.group_into_lines([{**row, "source": "file"} for row in rows])
    assert line.text == "declared 2 sets of settings, 2 packages"
    assert change_words.plural("settings", 1) == "set of settings"


def test_who_made_an_object_drift_is_told() -> None:
    """Say when a change was, and who made it; its cause only where nobody is known."""
    one = {"at": 0, "cause": "job:7 stop", "by": "bob with sudo systemctl stop a"}
    stamp = change_words.format_stamp(0)
    said = change_lines.describe_origin(one)
    assert said == f"since {stamp} by bob with sudo systemctl stop a"
    one = {"at": 0, "cause": "", "as_root": [("bob with sudo -i", 0)]}
    said = change_lines.describe_origin(one)
    assert said == (f"since {stamp}, while bob was root since {stamp} (sudo -i)")
    one = {"at": 0, "cause": "exit", "unit": "nginx.service", "failed": True}
    assert change_lines.describe_origin(one) == f"since {stamp} with nginx.service, which failed"
    assert change_lines.describe_origin({"at": 0, "cause": "exit"}) == (
        f"since {stamp} (its own process ended)"
    )


RUN = "job:{} start by a.timer"


def at_times(rows: list[dict[str, Any]], *seconds: float) -> list[dict[str, Any]]:
    """Give rows their times and numbers."""
    return [
        {**row, "at": int(at * 1_000_000), "seq": seq}
        for seq, (row, at) in enumerate(zip(rows, seconds, strict=True))
    ]


def test_runs_of_a_timer_are_one_line() -> None:
    """Count the runs of a unit by its timer, up to its failure, whatever came between."""
    news = change("changed", "files/file", "/etc/x", sha256=("1", "2"))
    failed = unit("a.service", cause=RUN.format(9), active_state=("inactive", "failed"))
    again = unit_event("a.service", RUN.format(10) + ", failed")
    rows = [
        *(unit_event("a.service", RUN.format(n)) for n in (1, 2)),
        news,
        unit_event("b.service", "job:3 start by b.timer"),
        unit_event("a.service", RUN.format(4), folded=9),
        unit("a.service", cause=RUN.format(5), active_state=("inactive", "activating")),
        unit("a.timer", cause=RUN.format(5), sub_state=("waiting", "running")),
        unit("a.service", cause=RUN.format(5), active_state=("activating", "inactive")),
        unit("a.timer", cause=RUN.format(5), sub_state=("running", "waiting")),
        failed,
        again,
        unit_event("a.service", RUN.format(11)),
    ]
    rows = at_times(rows, *range(len(rows)))
    since, of_timer = (change_words.format_stamp(n * 1_000_000) for n in (0, 6))
    assert [str(line) for line in change_lines.group_into_lines(rows)] == [
        "/etc/x changed: its content",
        "b.service ran (job 3 start by b.timer)",
        f"a.service ran 13 times since {since} (job 5 start by a.timer)",
        f"a.timer changed 2 times since {of_timer} (job 5 start by a.timer)",
        "a.service failed: inactive -> failed (job 9 start by a.timer)",
        "a.service failed again (job 10 start by a.timer, failed)",
        "a.service ran (job 11 start by a.timer)",
    ]
    assert len(list(change_lines.group_into_lines(rows, is_narrow=True))) == len(rows)


def login(what: str, uid: int, name: str, session: str) -> list[dict[str, Any]]:
    """Make what history has of a login or of a logout, in an order that was seen."""
    is_begin = what == "appeared"

    def of(kind: str, called: str, cause: str = "", **fields: Any) -> dict[str, Any]:
        sides = {k: (None, v) if is_begin else (v, None) for k, v in fields.items()}
        return change(what, kind, called, cause=cause, **sides)

    return [
        of("login1/session", session, user=name, uid=uid),
        of(UNIT, f"user@{uid}.service", "job:1 start"),
        of(UNIT, f"user-runtime-dir@{uid}.service", "job:2 start"),
        of(UNIT, f"user-{uid}.slice", "job:3 start"),
        of(UNIT, f"session-{session}.scope", "job:4 start", slice=f"user-{uid}.slice"),
        of("login1/user", name, uid=uid),
        of(UNIT, f"run-user-{uid}.mount"),
    ]


def test_a_login_is_one_line() -> None:
    """Put what comes and goes with a user's login in one line each, and what fails in its own."""
    began, ended = (login(what, 1001, "alice", "c6") for what in ("appeared", "gone"))
    closing = change("changed", "login1/user", "alice", state=("active", "closing"))
    ran = note("changed", "journal/user", "alice", ran=([], [STOP]))
    failed = unit("user@1001.service", cause="exit", active_state=("active", "failed"))
    rows = at_times(
        [*began[:3], ran, *began[3:], failed, ended[0], closing, *ended[1:]],
        *[0] * 8, *[20] * 3, *[30] * 6,
    )  # fmt: skip
    lines = list(change_lines.group_into_lines(rows))
    assert [(line.at // 1_000_000, str(line)) for line in lines] == [
        (0, "user alice logged in (session c6)"),
        (0, "user alice ran as root: sudo systemctl stop chrony"),
        (20, "user@1001.service failed: active -> failed (its own process ended)"),
        (20, "user alice logged out (session c6)"),
    ]
    assert [len(line.of) for line in lines] == [7, 1, 1, 8]


def test_logins_of_several_users() -> None:
    """Keep users, and the same session after a boot, apart; give what names no user to the one."""
    alice, bob = (login("appeared", uid, n, "c1") for uid, n in ((1001, "alice"), (1002, "bob")))
    scope = change("event", UNIT, "session-c9.scope", cause="exit, after 1 start", folded=1)
    other = change("gone", "login1/session", "c7", user=("eve", None), uid=(1003, None))
    other_scope = change("gone", UNIT, "session-c7.scope", cause="exit")
    rows = at_times(
        [*alice, *({**row, "boot": "c"} for row in [*bob, scope]), other, other_scope],
        *[0] * 7, *[3] * 8, 60, 60,
    )  # fmt: skip
    assert [line.text for line in change_lines.group_into_lines(rows)] == [
        "user alice logged in (session c1)",
        "user bob logged in (sessions c1, c9)",
        "session c7 of user eve ended",
    ]


def test_what_is_no_login() -> None:
    """Leave a single change, one who lingers, a job of cron and what a command did as they are."""
    by = {"by": "root with loginctl terminate-user alice"}
    lingers = change("appeared", "login1/user", "dave", uid=(None, 1004), linger=(None, True))
    cron = login("appeared", 0, "root", "12")
    cron[0]["fields"].append(("class", "", '"background"'))
    rows = [{**row, **by} for row in login("gone", 1001, "alice", "c6")[:2]]
    rows += [lingers, change("appeared", UNIT, "user-1004.slice")]
    rows += [change("changed", "login1/user", "bob", state=("active", "online"))]
    rows += [cron[0], cron[4]]
    assert [line.text for line in change_lines.group_into_lines(rows)] == [
        "session c6 of alice ended",
        "user@1001.service is gone",
        "user dave appeared",
        "user-1004.slice appeared",
        "user bob changed: state active -> online",
        "units of user root started",
    ]


def test_what_a_user_did_comes_before_what_it_changed() -> None:
    """Show a command at its own time in the journal, unless that was read much later."""
    at = 1_700_000_000.6
    own = datetime.fromtimestamp(at - 0.5, UTC).isoformat(timespec="milliseconds")
    old = datetime.fromtimestamp(at - 60, UTC).isoformat(timespec="milliseconds")
    stop = {**STOP, "at": own}
    rows = at_times(
        [
            change("changed", "files/file", "/etc/a", sha256=("1", "2")),
            change("changed", "files/file", "/etc/b", sha256=("1", "2")),
            note("changed", "journal/user", "bob", ran=([{**STOP, "at": old}], [stop])),
            note("changed", "journal/user", "eve", ran=([], [{**STOP, "at": old}])),
            change("changed", "journal/user", "mal", ran=([], [stop])),
        ],
        at - 1, at, at, at, at,
    )  # fmt: skip
    lines = list(change_lines.group_into_lines(rows))
    assert [line.text.split(maxsplit=2)[:2] for line in lines] == [
        ["/etc/a", "changed:"],
        ["user", "bob"],
        ["/etc/b", "changed:"],
        ["user", "eve"],
        ["published", "by"],
    ]
    assert lines[1].at == round((at - 0.5) * 1e6)
    assert {line.at for line in lines[2:]} == {int(at * 1e6)}
    assert [row["at"] for row in rows][2] == int(at * 1e6)
