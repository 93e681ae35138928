"""`op-dbus check`: what a state file would come to, said without a daemon and without secrets."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLE
from harness.commands import run
from harness.running import Running

from opdbus.drift import observed_kinds
from opdbus.state.file import StateFile
from opdbus.state.judge import Judgement, judge
from opdbus.state.object import MAX_NAME

CANARY = "hunter2-yellowfeather"
Check = Callable[..., subprocess.CompletedProcess[str]]


def rating(plugins: dict[str, Any], **more: Any) -> Judgement:
    """Judge a file with these plugins."""
    return judge({"version": 1, "plugins": plugins, **more})


def test_objects_are_those_of_the_daemon() -> None:
    """The objects are counted by plugin and kind as the daemon makes them."""
    present, _ = StateFile(EXAMPLE).read()
    counts = judge(json.loads(EXAMPLE.read_text())).objects
    assert sum(counts.values()) == len(present)
    for (plugin, kind), count in counts.items():
        assert count == sum((item.plugin, item.kind) == (plugin, kind) for item in present)


def test_names_of_content_and_cut_names() -> None:
    """Names made from content, cut names and redacted names are told apart."""
    long = "n" * (MAX_NAME["name"] + 1)
    url = f"postgres://user:{CANARY}@host/base"
    found = rating({"net": {"routes": [{"to": "default"}], "links": {long: {}, url: {}, "a": {}}}})
    assert [(object_id.kind, object_id.name[0]) for object_id in found.made] == [("route", "~")]
    assert [object_id.name[:9] for object_id in found.cut] == ["n" * 9]
    (hidden,) = found.redacted
    assert hidden.name[:-8] == "postgres://user:[redacted]@host/base~"


def test_hidden_fields_are_named_without_values() -> None:
    """Each field in which a secret is replaced is named and counted, and its value never shown."""
    unit = {"environment": {"DB_PASSWORD": CANARY}, "exec": ["x", "--password", CANARY]}
    found = rating({"systemd": {"units": {"a": unit, "b": unit}}})
    assert found.hidden["systemd", "unit", "environment.DB_PASSWORD"] == 2
    assert found.hidden["systemd", "unit", "exec[]"] == 2
    assert CANARY not in repr(found)


@pytest.mark.parametrize(
    ("plugins", "more", "warning"),
    [
        ({}, {}, "the file declares nothing"),
        ({"net": {}}, {}, 'the plugin "net" is empty'),
        ({"net": {"links": {}}}, {}, 'the plugin "net" is empty'),
        ({}, {"plugin": {}}, 'the key "plugin" beside "plugins" is not read'),
        ({"a": {"bs": [{"id": 1, "x": 1}, {"id": 1, "x": 2}]}}, {}, "a/b/1 is declared 2 times"),
        ({"a": {"bs": [{"x": 1}] * 3}}, {}, "is declared 3 times"),
        ({"a": {"bs": {"": {"x": 1}}}}, {}, "a/b/ is without a name"),
        ({"a": {"bs": {"c": {}, "d": {}}}}, {}, "a/b/c and 1 more are without properties"),
        ({"a": {"bs": [{"id": 1}, 2]}}, {}, '"a"."bs" lists objects and other values'),
    ],
)
def test_what_is_probably_not_meant(
    plugins: dict[str, Any], more: dict[str, Any], warning: str
) -> None:
    """What is allowed but hardly meant is warned of."""
    assert [text for text in rating(plugins, **more).warnings if warning in text]


def test_words_that_mean_nothing() -> None:
    """Name what is declared in words that no host has, with the word that may be meant."""
    units = {
        "a": {"active_state": "activ", "enabled": "maybe"},
        "b": {"ActiveState": "activ"},
        "c.timer": {"state": "waiting", "enabled": "masked", "masked": False},
    }
    ensured = ("absnt", ">=2", "1:2.3-4", "held", True, "")
    packages = [{"name": f"p{n}", "ensure": value} for n, value in enumerate(ensured)]
    content = {"version": 1, "plugins": {"systemd": {"units": units}, "apt": {"package": packages}}}
    states = "a and 1 more: active_state: 'activ' is not a known value; did you mean active?"
    assert judge(content, observed_kinds.puzzles).warnings == [
        f"systemd/unit/{states}",
        "systemd/unit/a: enabled: 'maybe' is not a known value",
        "apt/package/p0: ensure: 'absnt' is not a known value; did you mean absent?",
    ]


def test_fields_that_are_misspelled() -> None:
    """Name what is declared of a field that is much like one that is compared."""
    accounts = {"a": {"group": "x", "groups": ["x"], "shel": "/bin/sh"}}
    plugins = {"system": {"hostnme": "a", "timezone": "UTC"}, "users": {"accounts": accounts}}
    assert judge({"version": 1, "plugins": plugins}, observed_kinds.puzzles).warnings == [
        "system/settings/system: hostnme: did you mean hostname?",
        "users/account/a: shel: did you mean shell?",
    ]


def test_a_good_file_has_no_warning() -> None:
    """The example, in which all is meant, is not warned of."""
    assert judge(json.loads(EXAMPLE.read_text()), observed_kinds.puzzles).warnings == []


def test_a_complete_list_may_be_empty() -> None:
    """Accept that a list claims to have all objects and has none, or has only their names."""
    none = {"listeners": {}, "exclusive": ["listeners"]}
    names = {"accounts": {"a": {}}, "exclusive": True}
    assert rating({"net": none, "users": names}).warnings == []


def test_an_ordinal_of_the_files_own_is_a_name() -> None:
    """A name that ends like an ordinal and stands in the file is no repetition."""
    assert rating({"a": {"bs": {"c": {"x": 1}, "c#2": {"x": 1}}}}).warnings == []


# the command


@pytest.fixture
def check(daemons: Callable[..., Running]) -> Check:
    """Run `op-dbus check` where there is no bus."""
    nowhere = daemons(bus="unix:path=/nonexistent")
    return lambda *arguments, **more: run(nowhere, "check", *arguments, **more)


def test_a_good_file(check: Check) -> None:
    """A file that the daemon takes is judged with exit code 0, from a path and from a pipe."""
    done = check(str(EXAMPLE))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{EXAMPLE}: the daemon takes it, with 100 objects\n")
    assert "monitoring/settings notify_url (1)" in done.stdout
    piped = check("-", "--json", stdin=EXAMPLE.read_text())
    values = json.loads(piped.stdout)
    assert (values["file"], values["valid"]) == ("standard input", True)
    assert sum(row["count"] for row in values["objects"]) == 100


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("{ bad", "line 1 column 3", "a name in double quotes"),
        ('{"version": 1,\n "plugins": {"a": }}', "line 2 column 19", "a value must begin"),
        ('{"version": 7, "plugins": {}}', "line 1 column 13", "version 7 is unknown"),
        ('{"version": 1, "plugins": {"a": {}, "a": {}}}', "line 1 column 37", "given twice"),
        ("", "line 1 column 1", "the file is empty"),
    ],
)
def test_a_bad_file(check: Check, text: str, place: str, problem: str) -> None:
    """A file that the daemon refuses is refused in the same words, with exit code 1."""
    done = check("-", stdin=text)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"op-dbus: standard input: {place} ")
    assert problem in done.stderr
    again = check("-", "--json", stdin=text)
    assert (again.returncode, json.loads(again.stdout)["valid"]) == (1, False)
    assert json.loads(again.stdout)["error"] == done.stderr.strip().removeprefix("op-dbus: ")


def test_a_file_that_cannot_be_read(check: Check, tmp_path: Path) -> None:
    """A missing file and a folder are refused with a sentence."""
    for path in (tmp_path, tmp_path / "none"):
        done = check(str(path))
        assert done.returncode == 1
        assert done.stderr.startswith(f"op-dbus: cannot read the state file {path}: ")


def test_secrets_are_not_shown(check: Check) -> None:
    """No value, and no secret in a key or a name, is printed, whether the file is good or bad."""
    url = f"postgres://user:{CANARY}@host/base"
    object_ids = {url: {"password": CANARY, url: 1}}
    good = json.dumps({"version": 1, "plugins": {"a": {"bs": object_ids}, url: {}}, url: 1})
    for text in (good, good[:-1], good.replace(": 1}}", ": NaN}}")):
        for more in ([], ["--json"]):
            done = check("-", *more, stdin=text)
            assert CANARY not in done.stdout + done.stderr
