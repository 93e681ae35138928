"""Objects that are declared under another name than they are observed: one of both is enough."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from harness.commands import run
from harness.running import STATE, STATE_PATH, Caller, Running, ask, replace

DECLARED = {
    "systemd": {"units": {"acme": {"active_state": "active"}}},
    "packagekit": {"packages": {"x": {"version": "3.0"}}},
}
ALIASES = ["extra.timer", "extra.service", "Tool.service"]
OBSERVED = [
    ("systemd", "unit", "acme.service", {"active_state": "failed"}),
    ("packages", "package", "x", {"version": "2.0"}),
    ("packages", "package", "gone-tool", {}),
    ("files", "file", "/srv/toolbox", {}),
    ("systemd", "unit", "tools.service", {"aliases": ALIASES}),
    ("net", "interface", "ens3", {"aliases": ["enp0s3", "uplink0"], "addresses": []}),
    ("users", "account", "extra", {}),
    ("users", "account", "bob smith", {}),
    ("users", "group", "bob smith", {}),
]


@pytest.fixture(scope="module")
def daemon(shared_daemons: Callable[..., Running], tmp_path_factory: Any) -> Running:
    """Run a daemon of which two things are other than declared."""
    file = tmp_path_factory.mktemp("declared") / "state.json"
    replace(file, json.dumps({"version": 1, "plugins": DECLARED}))
    daemon = shared_daemons(STATE_FILE=file).start()

    async def fill(caller: Caller) -> None:
        await caller.ready()
        await caller.call(STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "t", OBSERVED, {})
        await caller.until(lambda: caller.get(STATE_PATH, STATE, "Drifted"), 2)

    ask(daemon, fill)
    return daemon


def test_the_status_counts_as_the_list_does(daemon: Running) -> None:
    """Count an object once that is observed under another name than it is declared."""
    total = json.loads(run(daemon, "list", "--json").stdout)["total"]
    assert json.loads(run(daemon, "status", "--json").stdout)["Count"] == total == len(OBSERVED)


def test_the_observed_one_is_meant(daemon: Running) -> None:
    """Take a name that is declared and observed as the observed thing, and tell of both."""

    async def work(caller: Caller) -> None:
        for name, meant in (
            ("acme", "systemd/unit/acme.service"),
            ("x", "packages/package/x"),
            # a name that only a unit's aliases have
            ("extra.timer", "systemd/unit/tools.service"),
            ("unit/tool.service", "systemd/unit/tools.service"),
            # other names of an interface, as `ip link property` gives them
            ("uplink0", "net/interface/ens3"),
            ("net/interface/enp0s3", "net/interface/ens3"),
        ):
            found, close = await caller.call(STATE_PATH, f"{STATE}.Resolve", "sa{sv}", name, {})
            assert (["/".join(row[1:]) for row in found], close) == ([meant], [])

    ask(daemon, work)
    assert "ens3" in run(daemon, "search", "uplink0").stdout.splitlines()[1]
    told = run(daemon, "history", "acme", COLUMNS="80").stdout.splitlines()
    assert [line[17:].split(" (")[0] for line in told] == [
        "acme declared",
        "acme.service published, failed",
        "acme.service is other than declared: active_state is failed, declared active",
    ]
    # what the file declares when it is first read is no change
    assert run(daemon, "changes", "--around", "acme", COLUMNS="80").stdout.splitlines() == told[1:]
    # a declared one is found by its own name, too
    assert run(daemon, "history", "systemd/unit/acme", COLUMNS="80").stdout.splitlines() == told


def test_what_may_be_several_is_listed_to_be_pasted(daemon: Running) -> None:
    """List the full names of different things, quoted for the shell."""
    told = run(daemon, "withdraw", "bob smith")
    heading, *names = told.stderr.splitlines()
    assert (told.returncode, heading.endswith("give the one that is meant")) == (2, True)
    assert names == ["  'users/account/bob smith'", "  'users/group/bob smith'"]


def test_another_name_of_a_unit_counts_beside_other_kinds(daemon: Running) -> None:
    """Take a name that an account has, and a unit as another name, as the unit."""
    told = run(daemon, "show", "extra")
    assert told.stdout == run(daemon, "show", "tools.service").stdout
    assert "others of this name: users/account/extra" in told.stderr
    assert run(daemon, "show", "account/extra").stderr == ""


def test_what_is_named_to_be_forgotten(daemon: Running) -> None:
    """Forget what is gone by its own name, not by a part of it, and say which object that is."""
    gone = ["/org/opdbus/state/packages/package/gone_2dtool"]
    ask(daemon, lambda caller: caller.call(STATE_PATH, f"{STATE}.Withdraw", "aoa{sv}", gone, {}))
    told = run(daemon, "history", "forget", "gone-tool")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == "the values of 0 rows of packages/package/gone-tool were erased\n"
    told = run(daemon, "history", "forget", "gone-tol")
    assert "do you mean packages/package/gone-tool?" in told.stderr
    told = run(daemon, "history", "forget", "toolbox")
    assert (told.returncode, told.stdout) == (2, "")
    assert "part of the name of files/file//srv/toolbox: give all of it" in told.stderr
    for asked in ("", " ", "/"):
        told = run(daemon, "history", "forget", asked)
        assert (told.returncode, told.stdout) == (1, "")
