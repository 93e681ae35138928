"""The command line: what each command prints, with which exit code, on what it prints to."""

import json
import math
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from conftest import EXAMPLE
from harness.commands import as_json, fails, ok, run
from harness.running import (
    PATIENCE_SECONDS,
    Caller,
    Running,
    ask,
    environment,
    read_lines,
    state_file,
)
from harness.tiny import write_tiny_model

from opdbus.cli import drifting, find_objects, modules
from opdbus.cli.root import root
from opdbus.engine import gate
from opdbus.engine.providers import candidates, cpu_engines
from opdbus.models.level_table import LEVELS

SSHD = "systemd/unit/sshd.service"


@pytest.fixture(scope="module")
def served(
    shared_daemons: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Running:
    """Serve the example; the level high is there too, low is not."""
    models = tmp_path_factory.mktemp("models")
    write_tiny_model(models / LEVELS["high"].folder, seed=5, family="mpnet")
    given = {"MODEL_DIR": models, "PRECISION": "auto", "EXECUTION_PROVIDER": "cpu:onnxruntime"}
    return shared_daemons(**given).start().vectorized()


# short names


def test_a_unique_name_is_enough(served: Running) -> None:
    """Every command that takes an object takes a short name, where it is unique."""
    assert as_json(served, "show", "sshd") == as_json(served, "show", SSHD)
    assert as_json(served, "show", "unit/sshd")["Name"] == "sshd.service"
    assert as_json(served, "similar", "sshd") == as_json(served, "similar", SSHD)
    ok(served, "publish", "t", stdin='{"plugin": "t", "kind": "t", "name": "short-lived"}')
    assert ok(served, "withdraw", "short-lived") == "1 withdrawn\n"


def test_an_ambiguous_name_lists_what_it_may_be(served: Running) -> None:
    """A name of several objects is a unit's; what changes something refuses it, with full names."""
    other = "systemd/socket/sshd.service"
    object_id = '{"plugin": "systemd", "kind": "socket", "name": "sshd.service"}'
    ok(served, "publish", "t", stdin=object_id)
    for command in ("show", "history"):
        told = run(served, command, "sshd")
        assert told.stdout == ok(served, command, SSHD)
        assert told.stderr == f"'sshd' is taken for {SSHD}; others of this name: {other}\n"
    said = fails(served, 2, "withdraw", "sshd")
    first = "op-dbus: 'sshd' may be any of these: give the one that is meant"
    assert said.splitlines() == [first, f"  {other}", f"  {SSHD}"]
    ok(served, "withdraw", "socket/sshd")


def test_an_account_comes_before_its_group(served: Running) -> None:
    """A name of an account and its group is the account's, for show as for history."""
    petra = {
        kind: {"plugin": "users", "kind": kind, "name": "petra"} for kind in ("group", "account")
    }
    for object_id in petra.values():
        ok(served, "publish", "t", stdin=json.dumps(object_id))
    # between two of the commands, the object would get its vector
    served.vectorized()
    for command in ("show", "history"):
        told = run(served, command, "petra")
        assert told.stdout == ok(served, command, "users/account/petra")
        others = "others of this name: users/group/petra"
        assert told.stderr == f"'petra' is taken for users/account/petra; {others}\n"
    ok(served, "withdraw", "account/petra")
    ok(served, "withdraw", "group/petra")


def test_a_wrong_name_is_told_the_closest(served: Running) -> None:
    """A name of no object is refused with those that are close."""
    assert SSHD in fails(served, 1, "show", "shsd")
    assert f"do you mean {SSHD}?" in fails(served, 1, "similar", "systemd/unit/shsd.service")
    assert "`op-dbus list` shows all" in fails(served, 1, "show", "zzzzzzzzzzz")


# what is printed


def test_status(served: Running) -> None:
    """Show what the daemon does, and the proof of what it does it on."""
    values = as_json(served, "status")
    assert (values["State"], values["Provider"], values["Pending"]) == (
        "ready",
        next(row["provider"] for row in as_json(served, "levels", "--detail") if row["chosen"]),
        0,
    )
    assert values["Count"] == values["Vectorized"] > 60
    shown = ok(served, "status")
    seen = "vectors off by" if values["Precision"] == "fp32" else "cosine to fp32"
    assert re.search(rf"Proof +\d+ nodes on \w+.*, {seen}", shown)
    assert re.search(r"Provider +cpu", shown)
    assert not re.search(r"Fallbacks|Jobs|LastError", shown)


def test_levels(served: Running) -> None:
    """List the levels, and say how to get those that are missing."""
    rows = {row["level"]: row for row in as_json(served, "levels")}
    assert rows.keys() == {"none", "static", "low", "medium", "high"}
    assert (rows["medium"]["status"], rows["none"]["dimension"]) == ("loaded", 0)
    assert "medium" in ok(served, "levels")


def test_what_the_gate_measured(served: Running) -> None:
    """Show what was measured of each precision, why it is refused, and which of them serves."""
    status = as_json(served, "status")
    rows = [row for row in as_json(served, "levels", "--detail") if row["level"] == "medium"]
    engines = candidates(["cpu:onnxruntime"])
    offered = {(row.name, precision) for row in engines for precision in row.dialects}
    assert {(row["provider"], row["precision"]) for row in rows} == offered
    (chosen,) = [row for row in rows if row["chosen"]]
    assert (chosen["provider"], chosen["precision"]) == (status["Provider"], status["Precision"])
    passed = [row for row in rows if not row["refused"]]
    fastest = max(passed, key=lambda row: row["texts_per_second"])
    # of those that are equally fast, the one with the smaller error is chosen
    assert chosen["texts_per_second"] * gate.TIE >= fastest["texts_per_second"]
    shown = ok(served, "levels", "--detail").splitlines()
    assert re.match(r"medium, measured 20\d\d-", shown[0])
    assert shown[1].split()[:3] == ["on", "in", "texts/s"]
    table = shown[2 : 2 + len(rows)]
    assert {line.split()[0] for line in table} <= {"chosen", "passed", "refused"}
    assert max(map(len, shown[: 2 + len(rows)])) <= 80
    assert sum(line.startswith("chosen") for line in table) == 1


def test_search_in_another_level_s_order(served: Running) -> None:
    """Print what was found in the order of the level that was asked for."""
    asked = ("search", "who am i", "-n", "24", "--mode", "vector", "--all")
    plain, hits = as_json(served, *asked), as_json(served, *asked, "--rerank", "high")
    assert {hit["path"] for hit in hits} == {hit["path"] for hit in plain}
    assert [hit["path"] for hit in hits] != [hit["path"] for hit in plain]
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
    levels = {row["level"]: row["status"] for row in as_json(served, "levels")}
    assert (levels["medium"], levels["high"], levels["low"]) == ("loaded", "loaded", "missing")


def test_set_provider(daemons: Callable[..., Running]) -> None:
    """Have another provider serve, and say in one sentence why one cannot."""
    with daemons() as daemon:
        ask(daemon, lambda caller: caller.ready())
        for name in reversed(cpu_engines()):
            said = ok(daemon, "set-provider", name)
            assert said.startswith(f"100 objects, state file {EXAMPLE}, level medium on {name} in ")
            assert as_json(daemon, "status")["Provider"] == name
        degraded = ok(daemon, "set-provider", "migraphx,cpu")
        assert re.search(r"level medium on cpu.*, degraded; migraphx cannot run", degraded)
        assert "migraphx cannot run" in fails(daemon, 3, "set-provider", "migraphx")
        assert "psychic" in fails(daemon, 2, "set-provider", "psychic")
        assert as_json(daemon, "status")["Provider"] == cpu_engines()[0]


@pytest.mark.parametrize("level", ["none", "static"])
def test_a_level_that_needs_no_provider(daemons: Callable[..., Running], level: str) -> None:
    """Say that the level has no model for a provider to run."""
    with daemons(VECTOR_LEVEL=level, MODEL="") as daemon:
        ask(daemon, lambda caller: caller.ready())
        said = fails(daemon, 3, "set-provider", "cpu")
        assert f"the level is {level}, which has no model for a provider to run: set OP" in said


def test_search(served: Running) -> None:
    """Print hits with score, name and text; all of it as JSON."""
    hits = as_json(served, "search", "sshd", "-n", "3", "--mode", "lexical")
    assert hits[0]["name"] == "sshd.service"
    assert hits[0].keys() >= {"path", "score", "plugin", "kind", "source", "snippet", "vector"}
    # cosines of a tiny model say nothing: all hits may be weak
    who = ("search", "who am i", "--all")
    lines = run(served, *who, "-n", "4").stdout.splitlines()
    assert lines[0].split() == ["score", "object", "text"]
    assert len(lines) == 5
    names = ok(served, *who, "-n", "4", "-q").splitlines()
    # without quotes
    assert (
        ok(served, "search", *"who am i".split(), *who[2:], "-n", "4", "-q").splitlines() == names
    )
    assert names == [line.split()[1] for line in lines[1:]]
    only = as_json(
        served, "search", "x", "--all", "--plugin", "systemd", "--kind", "unit", "-n", "100"
    )
    assert {(hit["plugin"], hit["kind"]) for hit in only} == {("systemd", "unit")}
    rest = as_json(served, *who, "-n", "2", "--offset", "2")
    assert rest == as_json(served, *who, "-n", "4")[2:]


def test_why_a_hit_was_found(served: Running) -> None:
    """Say of a hit which fields matched, and with --explain all that ranked it."""
    asked = ("search", "OpenSSH xylophone", "-n", "1", "--where", "kind=unit", "--mode", "lexical")
    shown = ok(served, *asked, "--explain", "--all").splitlines()
    assert shown[1].split()[1] == SSHD
    labels = [line.split()[0] for line in shown[3:]]
    assert labels == ["words", "raised", "in", "matched", "conditions"]
    assert "not here: xylophone" in shown[3]
    assert shown[4].endswith("for its kind, name and term overlap")
    assert shown[6].split(maxsplit=1)[1] == "description: OpenSSH server (openssh)"
    (hit,) = as_json(served, *asked, "--explain", "--all")
    assert hit["why"]["fields"] == [["description", "OpenSSH server", ["openssh"]]]
    assert "why" not in as_json(served, *asked, "--all")[0]


def test_a_no_in_a_text_is_not_that_of_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    """Show a field that is no, also beside a text with that word in it."""
    fields = [["enabled", "no", ["disabled"]], ["kind", "unit", ["services"]]]
    hit = {
        "plugin": "systemd",
        "kind": "unit",
        "name": "check-no-failures.service",
        "score": 0.8,
        "weak": False,
        "snippet": "systemd service check-no-failures",
        "why": {"fields": fields, "glosses": [], "corrected": []},
    }
    find_objects.print_hits([hit], is_explained=False)
    assert "enabled: no" in capsys.readouterr().out


def test_a_corrected_word_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Say which word was looked for instead of one that nothing has, once for all hits."""
    why = {"fields": [], "glosses": [], "corrected": [["postgers", "postgres"]]}
    hit = {
        "plugin": "systemd",
        "kind": "unit",
        "score": 0.8,
        "weak": False,
        "snippet": "",
        "why": why,
    }
    find_objects.print_hits([{**hit, "name": "a"}, {**hit, "name": "b"}], is_explained=False)
    assert capsys.readouterr().err == "postgers was looked for as postgres\n"


def test_a_page_past_the_last_hit(served: Running) -> None:
    """Say that the page is past the last hit, not that the host has nothing of the kind."""
    for asked in (("search", "state:failed"), ("similar", SSHD, "--where", "kind=account")):
        done = run(served, *asked, "--offset", "500")
        assert (done.returncode, done.stdout) == (12, "")
        assert done.stderr == "there are no more than 500 hits: give a smaller --offset\n"


def test_weak_hits_come_only_with_all(served: Running) -> None:
    """Find nothing where no hit is good enough, and say how to see the weak ones, marked."""
    asked = "search", "quokka banana lib", "--mode", "lexical"
    done = run(served, *asked)
    assert (done.returncode, done.stdout) == (12, "")
    assert done.stderr.startswith("nothing here is about that; --all lists")
    hits = as_json(served, *asked, "--all")
    assert hits
    assert all(hit["weak"] for hit in hits)
    assert "  (weak) " in run(served, *asked, "--all").stdout


def test_conditions(served: Running) -> None:
    """Take conditions as options, several of them, and inside of a question."""
    failed = as_json(served, "list", "--where", "active_state=failed")
    assert [o["name"] for o in failed["objects"]] == ["clamav-daemon.service"]
    shown = ok(served, "list", "--where", "active_state=failed and kind=unit").splitlines()
    assert [line.split() for line in shown] == [
        ["plugin", "kind", "name", "active_state"],
        ["systemd", "unit", "clamav-daemon.service", "declared", "failed"],
    ]
    both = ("--where", "kind=account", "--where", "groups=wheel and groups=adm")
    assert as_json(served, "list", *both)["total"] < as_json(served, "list", *both[:2])["total"]
    hits = as_json(served, "search", "scanner", "--where", "state=failed", "-n", "100")
    assert [hit["name"] for hit in hits] == ["clamav-daemon.service"]
    assert [hit["name"] for hit in as_json(served, "search", "state:failed")] == [
        "clamav-daemon.service"
    ]
    accounts = as_json(served, "search", "kind:account", "-n", "100")
    names = [hit["name"] for hit in accounts]
    assert names == sorted(names)
    assert len(names) > 3
    assert as_json(served, "search", "kind:account", "-n", "2", "--offset", "1") == accounts[1:3]
    like = as_json(served, "similar", SSHD, "--where", "kind=account", "-n", "100")
    assert {hit["name"] for hit in like} == set(names)


def test_conditions_that_nothing_meets(served: Running) -> None:
    """Find nothing, and say which field was meant if there is none of that name."""
    listed = run(served, "list", "--where", "active_state=unheard-of")
    assert (listed.returncode, listed.stdout) == (0, "")
    assert listed.stderr.startswith("nothing to list\nno object has active_state unheard-of; there")
    for field, there in (("enabled=masked", "yes"), ("groups=nosuch", "")):
        listed = run(served, "list", "--where", field)
        assert f"no object has {field.replace('=', ' ')}; there are {there}" in listed.stderr
    done = run(served, "search", "anything", "--where", "active_state=actve, enabled=true")
    assert "no object has active_state actve; there are active" in done.stderr
    for asked in (["search", "plugin:nosuch x"], ["list", "--where", "plugin=nosuch"]):
        assert "there is no plugin 'nosuch'; there are " in run(served, *asked).stderr
    listed = run(served, "list", "--kind", "account", "--offset", "1000")
    assert listed.stderr.startswith("there are ")
    assert listed.stderr.endswith(" such objects, and none of them is on this page\n")
    done = run(served, "search", "anything", "--where", "activ_state=failed")
    assert (done.returncode, done.stdout) == (12, "")
    assert done.stderr.splitlines() == [
        "no object has a field activ_state; did you mean active_state?",
        "nothing here is about that",
    ]
    silent = run(served, "search", "anything", "--where", "active_state=unheard-of", "-q")
    assert (silent.returncode, silent.stdout, silent.stderr) == (12, "", "")
    assert "'failed' is no condition" in fails(served, 2, "list", "--where", "failed")
    assert "'x' is not one" in fails(served, 2, "search", "q", "--where", "used_percent>x")


def test_fields(served: Running) -> None:
    """List the fields that conditions may name, the most frequent first."""
    found = as_json(served, "fields", "--plugin", "systemd")
    assert found["active_state"] > 10
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert "uid" not in found
    assert "uid" in ok(served, "fields", "--kind", "account")


def test_similar_and_show(served: Running) -> None:
    """Name an object as PLUGIN/KIND/NAME or by its path, and print all about it."""
    shown = as_json(served, "show", SSHD)
    assert (shown["Name"], shown["Source"], shown["Observed"]) == ("sshd.service", "file", None)
    assert shown["Declared"]["description"]
    assert as_json(served, "show", shown["Path"]) == shown
    assert shown["Distance"] is None
    text = ok(served, "show", SSHD)
    assert re.search(r"^Updated +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+$", text, re.MULTILINE)
    assert not re.search(r"^(Distance|Observed)|\bnan\b|\bnull\b", text, re.MULTILINE)
    assert len(as_json(served, "similar", SSHD, "-n", "3")) == 3
    assert SSHD not in run(served, "similar", SSHD).stdout
    assert SSHD not in ok(served, "similar", SSHD, "-q")


def test_topics(served: Running) -> None:
    """Show what the objects are about, and the objects of one topic."""
    first, *_ = found = as_json(served, "topics", "-n", "64")
    assert sum(topic["size"] for topic in found) > 50
    assert f"  1  {first['name']}: " in ok(served, "topics", "-n", "64")
    less = served.cli("topics", "-n", "1")
    assert less.stderr == f"1 of {len(found)} topics: -n {len(found)} shows all\n"
    said = ok(served, "topics", first["name"], "-n", "99")
    assert len(said.splitlines()) == first["size"] + 2


def test_odd(served: Running) -> None:
    """Show what is unlike its kind, with the field that makes it so, or say that nothing is."""
    done = run(served, "odd", "--kind", "account")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "nothing is unlike its kind\n"
    lamps = [
        {"plugin": "t", "kind": "lamp", "name": f"lamp{n}", "properties": {"color": color}}
        for n, color in enumerate(["red", *["white"] * 19])
    ]
    ok(served, "publish", "t", stdin=json.dumps(lamps))
    said = ok(served, "odd", "--kind", "lamp")
    assert said == "lamp lamp0\n  color is red, 19 of 19 others have white\n"
    (found,) = as_json(served, "odd", "--kind", "lamp")
    assert (found["name"], found["objects"]) == ("lamp0", 20)
    usual = [{"value": "white", "having": 19}]
    assert found["fields"] == [{"field": "color", "value": "red", "having": 1, "usual": usual}]
    ok(served, "withdraw", *(f"t/lamp/lamp{n}" for n in range(20)))


def test_list(served: Running) -> None:
    """List all objects, some of them, or a page of them."""
    everything = as_json(served, "list")
    assert everything["total"] == len(everything["objects"]) > 60
    page = as_json(served, "list", "-n", "5", "--offset", "3")
    assert page["objects"] == everything["objects"][3:8]
    units = as_json(served, "list", "--plugin", "systemd", "--name", "sshd.service")
    assert [o["name"] for o in units["objects"]] == ["sshd.service"]
    assert as_json(served, "list", "--source", "publish:none") == {"total": 0, "objects": []}
    done = run(served, "list", "-n", "5")
    more = f"{everything['total'] - 5:,} more: op-dbus list -n 5 --offset 5\n"
    assert (len(done.stdout.splitlines()), done.stderr) == (6, more)
    done = run(served, "list", "--offset=5", "-n", "5", "-q")
    names = ["/".join((o["plugin"], o["kind"], o["name"])) for o in everything["objects"]]
    assert (done.stdout.splitlines(), done.stderr) == (names[5:10], "")


def test_columns(served: Running) -> None:
    """Print the columns that were asked for: of the hits themselves, and fields of objects."""
    of = ("--columns", "object,active_state,unheard_of", "--plugin", "systemd", "--kind", "unit")
    done = run(served, "list", *of, "--name", "sshd.service")
    assert done.stdout.splitlines() == [
        "object                     active_state     unheard_of",
        f"{SSHD}  declared active",
    ]
    assert done.stderr == "no object has a field unheard_of\n"
    (hit,) = as_json(served, "search", "sshd", "-n", "1", *of)
    assert hit == {"object": SSHD, "active_state": {"declared": "active"}, "unheard_of": None}
    listed = as_json(served, "list", "--where", "groups=sudo", "--columns", "groups")["objects"]
    assert listed[0]["groups"] == {"declared": ["sudo", "adm", "op-dbus"]}


def test_vectorize(served: Running) -> None:
    """Print the vectors of arguments or of lines, however many, and say what was cut."""
    (row,) = as_json(served, "vectorize", "network mail")
    assert (len(row["vector"]), row["truncated"]) == (32, False)
    assert len(ok(served, "vectorize", "one", "two").splitlines()) == 2
    lines = "".join(f"line {number}\n" for number in range(300))
    assert len(ok(served, "vectorize", stdin=lines).splitlines()) == 300
    cut = run(served, "vectorize", "mail " * 100)
    assert (cut.returncode, cut.stderr) == (0, "op-dbus: 1 of 1 texts were cut at 48 tokens\n")


def _until_drifted(served: Running, path: str) -> dict[str, Any]:
    """Wait for the one drift that there is."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        found = as_json(served, "drift")
        assert found["format_version"] == "1.2"
        if [row["path"] for row in found["drifts"]] == [path]:
            return dict(found["drifts"][0])
        time.sleep(0.1)
    raise AssertionError(found)


def test_publish_drift_and_withdraw(served: Running) -> None:
    """Publish from JSON, see the drift, and withdraw it all again."""
    items = [
        {"plugin": "systemd", "kind": "unit", "name": "sshd.service",
         "properties": {"description": "other", "nothing": None}},
        {"plugin": "test", "kind": "thing", "name": "x y\u202e\x1b[2Jz"},
    ]  # fmt: skip
    before = as_json(served, "status")["Count"]
    assert ok(served, "publish", "cli", stdin=json.dumps(items)).splitlines() == [
        SSHD,
        r"test/thing/x y\u202e\x1b[2Jz",
    ]
    described = ("--describe", "description", "--json")
    paths = json.loads(ok(served, "publish", "cli", *described, stdin=json.dumps(items)))
    assert ok(served, "show", paths[0]).count("described_by") == 1
    refused = run(served, "publish", "cli", "--describe", "a, state", stdin=json.dumps(items))
    assert refused.returncode == 2
    assert "describe names 'a', which no object has" in refused.stderr
    assert paths[0] == "/org/opdbus/state/systemd/unit/sshd_2eservice"
    drift = _until_drifted(served, paths[0])
    assert [field["path"] for field in drift["fields"]] == ["description"]
    assert (drift["class"], drift["severity"]) == ("drift", "info")
    (field,) = drift["fields"]
    assert field["cause"].startswith("bus:")
    assert datetime.now(UTC) - datetime.fromisoformat(field["since"]) < timedelta(minutes=5)
    said = "info     sshd.service: description declared OpenSSH server, observed other, since "
    found = run(served, "drift")
    assert (found.returncode, found.stdout[: len(said)]) == (0, said)
    assert re.fullmatch(r"\w+ \d+ [\d:]+ \(by \S+ \(\S+\)\)\n", found.stdout[len(said) :])
    accounts = "not observed: users/account deploy, jonas, mira and 3 more"
    assert f"{accounts}: OP_DBUS_OBSERVE leaves out the observer users\n" in found.stderr
    none = run(served, "drift", "--severity", "notice", "--plugin", "systemd", "--kind", "unit")
    assert none.stdout == ""
    assert none.stderr.endswith("nothing of what is observed is other than declared\n")
    assert run(served, "drift", "--exit-code").returncode == 10
    assert run(served, "drift", "--severity", "error", "--exit-code").returncode == 0
    assert as_json(served, "status")["Count"] == before + 1
    # a name cannot command the terminal, nor what reads the pipe
    assert r"x y\u202e\x1b[2Jz" in ok(served, "list", "--plugin", "test")
    assert r"\x1b[2J" in ok(served, "show", paths[1])
    assert ok(served, "withdraw", *paths) == "2 withdrawn\n"
    assert as_json(served, "status")["Count"] == before


def test_config_says_that_the_service_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show this shell's settings, and say where the service's are, to every user."""
    monkeypatch.setattr("opdbus.systemd.unit.SETTINGS", str(tmp_path / "op-dbus.env"))
    done = CliRunner().invoke(root, ["config"])
    assert f"settings of its own in {tmp_path}/op-dbus.env, which are not shown" in done.output
    monkeypatch.setattr("opdbus.systemd.unit.SETTINGS", str(tmp_path / "none" / "op-dbus.env"))
    assert "of its own" not in CliRunner().invoke(root, ["config"]).output


def test_reload_config_and_models(served: Running) -> None:
    """Say what is served after a reload, and show settings and models without the daemon."""
    count, on = as_json(served, "status")["Count"], "level medium on cpu:onnxruntime in "
    assert ok(served, "reload").startswith(f"{count} objects, state file {EXAMPLE}, {on}")
    settings = as_json(served, "config")
    assert settings["OP_DBUS_STATE_FILE"] == {"value": str(EXAMPLE), "source": "environment"}
    assert settings["OP_DBUS_VECTOR_LEVEL"]["source"] == "default"
    assert "OP_DBUS_BUS" in ok(served, "config")
    rows = {row["level"]: row for row in as_json(served, "models", "list")}
    assert rows["medium"]["status"] == "present"
    assert ok(served, "models", "path", "medium").strip() == rows["medium"]["where"]


def test_help_and_version(served: Running) -> None:
    """Explain every command."""
    listed = ok(served, "--help").partition("Commands:")[2]
    commands = re.findall(r"^  ([\w-]+) ", listed, re.MULTILINE)
    assert {"status", "search", "doctor", "daemon", "run", "set-provider"} <= set(commands)
    modules()
    for command in commands:
        # in this process: each start takes a quarter of a second
        done = CliRunner().invoke(root, [command, "--help"], prog_name="op-dbus")
        assert (done.exit_code, f"Usage: op-dbus {command} " in done.output) == (0, True)
    assert ok(served, "--version").startswith("op-dbus")
    alone = run(
        served,
    )
    assert (alone.returncode, alone.stderr.startswith("Usage: op-dbus [OPTIONS]")) == (2, True)
    assert "op-dbus: " not in alone.stderr


def test_each_command_has_the_modules_that_make_it() -> None:
    """Import for a command all modules that add it, or a command of its group, and no others."""

    def made_in(command: click.Command) -> set[str]:
        own = {command.callback.__module__} if command.callback else set[str]()
        inside = command.commands.values() if isinstance(command, click.Group) else ()
        return own.union(*map(made_in, inside))

    modules()
    for name, command in root.commands.items():
        assert {module.__name__ for module in modules(name)} == made_in(command)


# what is refused


@pytest.mark.parametrize(
    ("code", "arguments", "sentence"),
    [
        (2, ["nonsense"], "No such command"),
        (2, ["search"], "Missing argument"),
        (2, ["search", "x", "--mode", "psychic"], "psychic"),
        (2, ["search", "x", "-n", "-1"], "-1"),
        (2, ["list", "--plugn", "x"], ", '--plugin'? See `op-dbus list --help`\n"),
        (2, ["search", "x", "-n", "99999999999"], "99999999999"),
        (2, ["search", "x", "-n", "0"], "'0' is not a number from 1 to 10000"),
        (2, ["similar", "x", "-n", "10001"], "'10001' is not a number from 1 to 10000"),
        (2, ["list", "-n", "0"], "'0' is not a number from 1 to 10000"),
        (2, ["search", "x", "--offset", "-1"], "-1"),
        (2, ["search", "half a pair: \udc80"], "cannot be sent"),
        (2, ["list", "-n", "x"], "x"),
        (2, ["list", "--columns", "a,"], "lacks a name"),
        (2, ["list", "--columns", "..."], "must be names of fields"),
        (2, ["list", "-q", "--json"], "leave out --columns and --json"),
        (1, ["show", "a//b"], "there is no object a//b;"),
        (2, ["show", "/org/opdbus/state/not a/path/x"], "cannot be sent"),
        (2, ["withdraw", "/org/opdbus/state/a/b/c/"], "cannot be sent"),
        (1, ["show", "a/b/c"], "there is no object a/b/c;"),
        (1, ["show", "/org/opdbus/state/a/b"], "no object"),
        (1, ["similar", "a/b/c"], "there is no object a/b/c"),
        (5, ["withdraw", SSHD], "the state file declares it"),
        (2, ["vectorize", "x", "--level", "huge"], "there is no level 'huge'"),
        (3, ["vectorize", "x", "--level", "low"], "run `op-dbus models pull low`"),
        (3, ["search", "x", "--rerank", "low"], "run `op-dbus models pull low`"),
        (3, ["vectorize", "x", "--level", "LOW"], "run `op-dbus models pull low`"),
        (3, ["search", "x", "--rerank", "Low"], "run `op-dbus models pull low`"),
        (2, ["models", "path", "hihg"], "did you mean high?"),
        (2, ["search", "x", "--rerank", "huge"], "there is no level 'huge'"),
        (2, ["search", "x", "--rerank", "high", "--mode", "lexical"], "not with lexical"),
        (2, ["publish", "bad name!", "/dev/null"], "not JSON"),
        (2, ["publish", "x", "/nonexistent"], "/nonexistent"),
        (2, ["models", "path", "huge"], "there is no level 'huge'"),
        (3, ["models", "verify", "low"], "paraphrase-MiniLM-L3-v2"),
        (2, ["--bus", "nowhere", "status"], "--bus nowhere is not accepted: give system"),
        (4, ["--bus", "unix:path=/nonexistent", "status"], "there is none; is it, or"),
    ],
)
def test_what_is_refused(served: Running, code: int, arguments: list[str], sentence: str) -> None:
    """Fail with design.md's exit code and one sentence on stderr, and nothing on stdout."""
    assert sentence in fails(served, code, *arguments)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not JSON"),
        ('{\n"plugin" 1}', "line 2 column 10"),
        ("[]", "nothing to publish"),
        ("3", "object 1 is no object to publish: it has none of plugin, kind and name;"),
        ('[{"plugin": "a", "kind": "b", "name": "c"}, {"plugin": "a", "kind": "b"}]',
         "object 2 has no string name;"),
        ('{"plugin": "a", "kind": "b", "name": "c", "more": 1}', "the unknown key more"),
        ('{"plugin": "a", "kind": "b", "name": "c", "properties": []}', "not a JSON object"),
        ('{"plugin": "a", "kind": "b", "name": ""}', "is empty: give one"),
        ('{"plugin": "a", "kind": "b", "name": "c\\u0000"}', "NUL"),
        ('{"plugin": "a", "kind": "b", "name": "c\\ud800"}', "cannot be sent"),
        ('{"plugin": "a", "kind": "b", "name": "c", "properties": {"n": 99999999999999999999}}',
         "64 bits"),
    ],
)  # fmt: skip
def test_what_cannot_be_published(served: Running, text: str, sentence: str) -> None:
    """Exit 2 with one sentence for what is not an object to publish."""
    assert sentence in fails(served, 2, "publish", "test", stdin=text)


def test_no_daemon(daemons: Callable[..., Running]) -> None:
    """Exit 4 and say how to start the daemon where no daemon serves the bus."""
    nobody = daemons()
    for command in (["status"], ["search", "x"], ["list"], ["show", SSHD], ["reload"]):
        assert "op-dbus is not running" in fails(nobody, 4, *command)


def test_a_stopped_daemon(daemons: Callable[..., Running]) -> None:
    """Say soon that the daemon's process is stopped, and how it goes on; then it does."""
    stopped = daemons(VECTOR_LEVEL="none").start()
    ask(stopped, Caller.ready)
    status = ok(stopped, "status")
    stopped.send(signal.SIGSTOP)
    for command in (["status"], ["search", "x"], ["reload"]):
        assert f"`kill -CONT {stopped.pid}` lets" in fails(stopped, 4, *command)
    stopped.send(signal.SIGCONT)
    assert ok(stopped, "status").splitlines()[0] == status.splitlines()[0]


def test_bad_settings(served: Running) -> None:
    """Exit 2 with all that is wrong with the settings."""
    done = run(served, "status", OP_DBUS_THREADS="x", OP_DBUS_GPU_DEVICE="-1")
    assert done.returncode == 2
    assert "OP_DBUS_THREADS='x'" in done.stderr
    assert "OP_DBUS_GPU_DEVICE='-1'" in done.stderr


def test_many_objects_are_listed_over_pages(
    daemons: Callable[..., Running], tmp_path: Path
) -> None:
    """List 2,500 objects, each once, though no reply holds them all."""
    names = {f"unit {number:04} {'x' * 150}": "mail" for number in range(2500)}
    file = state_file(tmp_path / "state.json", names)
    with daemons(STATE_FILE=file, VECTOR_LEVEL="none") as daemon:
        ask(daemon, lambda caller: caller.ready())
        listed = as_json(daemon, "list")
        assert [o["name"] for o in listed["objects"]] == sorted(names)
        assert len(ok(daemon, "list").splitlines()) == 2501
        tail = as_json(daemon, "list", "--offset", "1200", "-n", "1100")["objects"]
        assert tail == listed["objects"][1200:2300]


def test_what_ends_of_an_object_is_watched(capsys: pytest.CaptureFixture[str]) -> None:
    """Print which fields ended where others go on, unless less bad ones are not wanted."""
    path = "/org/opdbus/state/packagekit/package/p"
    fields = [["ensure", '"installed"', '"absent"', "error"], ["version", '"2"', '"1"', "warning"]]
    before, after = (
        (path, "drift", bad, 0, math.nan, some)
        for bad, some in (("error", fields[:1]), ("warning", fields[1:]))
    )
    for rows in ((before, after), (before, before)):
        drifting._show_ended(*rows, {}, drifting._print_transition)
    drifting._show_ended(after, before, {"severity": "error"}, drifting._print_transition)
    assert capsys.readouterr().out[17:] == "ended    package p: ensure\n"


def test_drift_is_watched(served: Running) -> None:
    """Follow what drifts and heals as JSON, the first line with the version of the format."""
    items = [{"plugin": "systemd", "kind": "unit", "name": "sshd.service",
              "properties": {"active_state": "failed"}}]  # fmt: skip
    command = [sys.executable, "-m", "opdbus", "drift", "--watch", "--json"]
    env = environment(served.bus, served.state_dir, served.settings)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as watching:
        first = read_lines(watching, lambda text: text.endswith("\n"))
        assert json.loads(first)["format_version"] == "1.2"
        (path,) = json.loads(ok(served, "publish", "cli", "--json", stdin=json.dumps(items)))
        drift = json.loads(read_lines(watching, lambda text: text.endswith("\n")))
        assert (drift["path"], drift["class"], drift["severity"]) == (path, "drift", "error")
        assert drift["fields"] == [
            {
                "path": "active_state",
                "declared": "active",
                "observed": "failed",
                "severity": "error",
            }
        ]
        now = "error    sshd.service: declared active, observed failed, since "
        assert run(served, "drift").stdout.startswith(now)
        items[0]["properties"] = {"active_state": "active"}
        ok(served, "publish", "cli", stdin=json.dumps(items))
        healed = json.loads(read_lines(watching, lambda text: text.endswith("\n")))
        assert (healed["path"], healed["class"], healed["fields"]) == (path, "healed", [])
        watching.terminate()
    with subprocess.Popen(command[:-1], stdout=subprocess.PIPE, text=True, env=env) as watching:
        said = ""
        # it does not say when it listens; nothing is held back in the pipe
        while not said.endswith("healed   sshd.service: active_state\n"):
            for state in ("failed", "active"):
                items[0]["properties"] = {"active_state": state}
                ok(served, "publish", "cli", stdin=json.dumps(items))
                if select.select([watching.stdout], [], [], 2)[0]:
                    said += read_lines(watching, lambda text: text.endswith("\n"))
        at = r"[A-Z]\w\w \d\d \d\d:\d\d:\d\d  "
        lines = r"healed   sshd.service.*|error    sshd.service: declared active, observed failed"
        assert all(re.fullmatch(at + f"(?:{lines})", line) for line in said.splitlines())
        watching.terminate()
    ok(served, "withdraw", path)
    refused = run(served, "drift", "--watch", "--exit-code")
    assert (refused.returncode, refused.stdout) == (2, "")
