"""Rules of alerts: which changes they choose, and what is wrong with a file of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from opdbus.cli.alerts.alert import may_have_recovered, read_alert, was_failed
from opdbus.cli.alerts.alert_rules import Rules, read_rules
from opdbus.cli.alerts.delivery import Cursor
from opdbus.errors import ConfigError
from opdbus.wording.change_words import format_stamp

EXECUTABLES = ("journal", "mail")
EXAMPLE = ROOT / "etc" / "op-dbus" / "notify.toml"


def row(what: str = "changed", **given: Any) -> dict[str, Any]:
    """Make a change of a unit as History1 returns it; fields by name as (before, after)."""
    fields = given.pop("fields", {})
    sides = [
        (path, *("" if side == "" else json.dumps(side) for side in both))
        for path, both in fields.items()
    ]
    usual = {"source": "live:systemd", "plugin": "systemd", "kind": "unit", "name": "web.service"}
    return {
        "seq": 7,
        "at": 0,
        "what": what,
        "cause": "",
        "folded": 0,
        **usual,
        "fields": sides,
        **given,
    }


def rules(tmp_path: Path, text: str) -> Rules:
    """Read rules from a text."""
    path = tmp_path / "notify.toml"
    path.write_text(text)
    return read_rules(path, EXECUTABLES)


FAILED = row(fields={"active_state": ("active", "failed")})
FAILED_AGAIN = row("event", cause="job:4711 start, failed")
LOOP = row(fields={"restart_loop": (False, True)})
FOUND_FAILED = row("appeared", cause="first", fields={"active_state": ("", "failed")})
STOPPED = row(fields={"active_state": ("active", "inactive")})
FOUND = row("appeared", cause="first", fields={"active_state": ("", "active")})
DECLARED = row(source="file", fields={"active_state": ("active", "failed")})
DRIFT = row("drift", severity="warning", source="file", fields={"enabled": (True, False)})
HEALED = row("healed", severity="notice", source="file", fields={"shell": ("a", "b")})
# of an earlier version, or with erased values
UNGRADED = row("drift", source="file")
ALL = {
    "FAILED": FAILED,
    "FAILED_AGAIN": FAILED_AGAIN,
    "LOOP": LOOP,
    "FOUND_FAILED": FOUND_FAILED,
    "STOPPED": STOPPED,
    "FOUND": FOUND,
    "DECLARED": DECLARED,
    "DRIFT": DRIFT,
    "HEALED": HEALED,
    "UNGRADED": UNGRADED,
}


@pytest.mark.parametrize(
    ("rule", "chosen"),
    [
        ('on = "failed"', "FAILED FAILED_AGAIN LOOP FOUND_FAILED"),
        ('on = "drift"', "DRIFT HEALED UNGRADED"),
        ('on = "drift"\nseverity = "warning"', "DRIFT UNGRADED"),
        ('on = "drift"\nwhat = ["healed"]', "HEALED"),
        ('on = "change"', "FAILED FAILED_AGAIN LOOP FOUND_FAILED STOPPED DECLARED"),
        ('on = "change"\nwhere = "after.active_state=inactive"', "STOPPED"),
        ('on = "change"\nwhere = "name~web, source=file"', "DECLARED"),
        ('on = "change"\nwhere = "kind=mount"', ""),
        ('on = "drift"\nwhere = "kind!=unit"', ""),
    ],
)
def test_a_rule_chooses_changes(tmp_path: Path, rule: str, chosen: str) -> None:
    """Choose by kind, least severity, what happened, and conditions; never a first listing."""
    found = rules(tmp_path, f'[[rule]]\nname = "x"\n{rule}\n')
    alerts = {name: read_alert(each) for name, each in ALL.items()}
    matched = [name for name, alert in alerts.items() if alert and found.match("mail", alert)]
    assert matched == chosen.split()


def test_rules_name_their_executables(tmp_path: Path) -> None:
    """Run all executables that a rule does not name otherwise, once, with all rules that apply."""
    text = '[[rule]]\nname="a"\non="failed"\n[[rule]]\nname="b"\non="change"\nrun=["mail"]\n'
    found, alert = rules(tmp_path, text), read_alert(FAILED)
    assert alert
    assert (found.match("mail", alert), found.match("journal", alert)) == (["a", "b"], ["a"])


def test_an_alert_says_all_that_is_known() -> None:
    """Give the documented keys, in which declared values stand apart from observed ones."""
    fields = {"active_state": ("active", "failed"), "declared.active_state": ("", "active")}
    known = {"by": "bob with sudo halt", "as_root": [("eve with su", 0)]}
    known |= {"why": "no disk", "lines": ["no disk"]}
    drift = row("drift", severity="error", cause="job:9 stop", fields=fields, **known)
    alert = read_alert(drift)
    assert alert
    assert json.loads(alert.to_json("h", ["x"])) == {
        "format_version": "1.1",
        "kind": "drift",
        "what": "drift",
        "sequence": 7,
        "time": "1970-01-01T00:00:00+00:00",
        "host": "h",
        "object": "systemd/unit/web.service",
        "severity": "error",
        "before": {"active_state": "active"},
        "after": {"active_state": "failed"},
        "declared": {"active_state": "active"},
        "causes": ["job:9 stop"],
        "by": "bob with sudo halt",
        "as_root": [{"by": "eve with su", "since": "1970-01-01T00:00:00+00:00"}],
        "why": "no disk",
        "lines": ["no disk"],
        "rules": ["x"],
        "text": "web.service is other than declared: active_state is failed, declared active"
        f" (job 9 stop), by bob with sudo halt, while eve was root since {format_stamp(0)} (su),"
        " why: no disk",
    }


BAD = [
    ("[[rule]\n", r"notify.toml is not TOML: .*\(at line 1, column 7\)"),
    ("# nothing\n", r":1: there is no rule: each begins with the line \[\[rule\]\]"),
    ("tiemout = 3\n", r":1: there is no setting 'tiemout', only timeout and"),
    ("timeout = 0\n", r":1: timeout is a number of seconds up to 3600"),
    ('[[rule]]\non = "failed"\n[[rule]]\nname = "b"\n', ":1: a rule needs a name"),
    (
        'rule = [{name = "a", on = "fail"}]\n',
        ":1: `on` of rule 'a' is one of drift, failed, recovered, change",
    ),
    (
        '[[rule]]\nname = "a"\non = "fail"\n',
        ":3: `on` of rule 'a' is one of drift, failed, recovered, change",
    ),
    ('[[rule]]\nname = "a"\non = "drift"\nseverty = "error"\n', ":4: a rule has no 'severty', on"),
    ('[[rule]]\nname = "a"\non = "drift"\nseverity = "bad"\n', ":4: severity is one of info, not"),
    ('[[rule]]\nname = "a"\non = "change"\nwhere = "x"\n', ":4: 'x' is no condition"),
    ('[[rule]]\nname = 1\non = "change"\n', ":2: name is a text in quotes"),
    ('[[rule]]\nname = "a"\non = "drift"\nwhat = ["gone"]\n', ":4: what has 'gone', and there are"),
    ('[[rule]]\nname = "a"\non = "drift"\nrun = "mail"\n', ":4: run is a list of texts"),
    # of the second rule, not of the first
    (
        (
            '[[rule]]\nname = "a"\non = "drift"\nrun = ["mail"]\n'
            '[[rule]]\nname = "b"\non = "drift"\nrun = ["page"]\n'
        ),
        ":8: run has 'page', and there are journal, mail",
    ),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """Say in which line what is wrong; no rule of such a file is used."""
    with pytest.raises(ConfigError, match=said):
        rules(tmp_path, text)


def test_the_installed_rules_are_accepted(tmp_path: Path) -> None:
    """Accept the file that is installed, also with its comments removed."""
    assert len(read_rules(EXAMPLE, EXECUTABLES).rules) == 3
    text = EXAMPLE.read_text()
    last = text[text.index("# [[rule]]") :]
    lines = [line.removeprefix("# ") for line in last.splitlines()]
    (rule,) = rules(tmp_path, "\n".join(lines)).rules
    assert (rule.kind, rule.run) == ("change", ["mail"])
    assert "#timeout = 30\n" in text


def test_a_cursor_is_one_number(tmp_path: Path) -> None:
    """Keep the last number, nothing of a write that was not finished, and refuse other content."""
    cursor = Cursor(tmp_path, "mail")
    assert cursor.read() is None
    for number in (9, 10):
        cursor.write(number)
    (tmp_path / ".mail.new").write_text("1")
    assert Cursor(tmp_path, "mail").read() == 10
    (tmp_path / "mail").write_text("1x")
    with pytest.raises(
        ConfigError, match="mail is no number of a change: without the file, alerts"
    ):
        cursor.read()


def test_a_failed_unit_that_works_again() -> None:
    """Tell a unit that is failed no longer from one that starts, by what it was before."""

    def state(before: str, after: str, **more: Any) -> dict[str, Any]:
        return row(fields={"active_state": (before, after)}, **more)

    def found(change: dict[str, Any]) -> bool | None:
        alert = read_alert(change)
        return alert and may_have_recovered(alert)

    assert found(state("failed", "active")) is True
    assert found(state("failed", "inactive")) is True
    assert found(row("gone", fields={"active_state": ("failed", "")})) is True
    assert found(row(fields={"restart_loop": (True, "")})) is True
    # the states before say whether it was failed
    assert found(state("activating", "active")) is None
    assert found(state("activating", "inactive")) is None
    for change in (
        state("inactive", "active"),
        state("failed", "activating"),
        state("activating", "failed"),
        state("active", "inactive"),
        state("failed", "active", source="file"),
        state("failed", "active", plugin="app"),
        row("drift", severity="error", fields={"active_state": ("failed", "active")}),
    ):
        assert not found(change)
    moving, failed = state("failed", "activating"), state("active", "failed")
    assert was_failed([row(fields={"user": ("a", "b")}), moving, failed, state("", "active")])
    assert not was_failed([moving, state("activating", "inactive"), failed])
    assert not was_failed([DRIFT, moving])


def test_the_text_says_that_a_unit_works_again() -> None:
    """Say in the text of a recovery that the unit works again, and by whom."""
    known = {"cause": "job:9 restart", "by": "carol with sudo systemctl restart web"}
    alert = read_alert(row(fields={"active_state": ("failed", "active")}, **known))
    assert alert
    text = json.loads(replace(alert, kind="recovered").to_json("h", []))["text"]
    assert text == (
        "web.service works again: failed -> active (job 9 restart)"
        " by carol with sudo systemctl restart web"
    )
