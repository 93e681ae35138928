"""Objects that are declared under another name than they are observed: one of both is enough."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.running import (
    STATE,
    STATE_PATH,
    Caller,
    Running,
    calling,
    replace,
)

DECLARED = {
    "systemd": {"units": {"acme": {"active_state": "active"}}},
    "packagekit": {"packages": {"x": {"version": "3.0"}}},
}
OBSERVED = [
    ("systemd", "unit", "acme.service", {"active_state": "failed"}),
    ("packages", "package", "x", {"version": "2.0"}),
    ("packages", "package", "gone-tool", {}),
    ("files", "file", "/srv/toolbox", {}),
    (
        "systemd",
        "unit",
        "tools.service",
        {"aliases": ["extra.timer", "extra.service", "Tool.service"]},
    ),
    ("net", "interface", "ens3", {"aliases": ["enp0s3", "uplink0"], "addresses": []}),
    ("users", "account", "extra", {}),
    ("users", "account", "bob smith", {}),
    ("users", "group", "bob smith", {}),
]


@pytest.fixture
def served(daemons: Callable[..., Running], tmp_path: Path) -> Callable[..., Any]:
    """Run something with a client of a daemon of which two things are other than declared."""

    def run(work: Callable[[Caller, Callable[..., Any]], Awaitable[None]]) -> None:
        async def live() -> None:
            daemon = daemons(STATE_FILE=declare(tmp_path, DECLARED))
            async with calling(daemon.bus) as caller:
                daemon.start()
                await caller.ready()
                await caller.call(
                    STATE_PATH, f"{STATE}.Publish", "sa(sssa{sv})a{sv}", "t", OBSERVED, {}
                )
                await caller.until(lambda: caller.get(STATE_PATH, STATE, "Drifted"), 2)

                def command(*words: str) -> Any:
                    return asyncio.to_thread(daemon.cli, *words, TZ="UTC", COLUMNS="80")

                await work(caller, command)

        asyncio.run(live())

    return run


def declare(folder: Path, plugins: dict[str, Any]) -> Path:
    """Write the state file."""
    return replace(folder / "state.json", json.dumps({"version": 1, "plugins": plugins}))


def test_the_observed_one_is_meant(served: Callable[..., Any]) -> None:
    """Take a name that is declared and observed as the observed thing, and tell of both."""

    async def work(caller: Caller, command: Callable[..., Any]) -> None:
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
        found = await command("search", "uplink0")
        assert "ens3" in found.stdout.splitlines()[1]
        told = await command("history", "acme")
        assert [line[17:].split(" (")[0] for line in told.stdout.splitlines()] == [
            "acme declared",
            "acme.service published, failed",
            "acme.service is other than declared: active_state is failed, declared active",
        ]
        around = await command("changes", "--around", "acme")
        # what the file declares when it is first read is no change
        assert around.stdout.splitlines() == told.stdout.splitlines()[1:]
        # a declared one is found by its own name, too
        assert (await command("history", "systemd/unit/acme")).stdout == told.stdout

    served(work)


def test_what_may_be_several_is_listed_to_be_pasted(served: Callable[..., Any]) -> None:
    """List the full names of different things, quoted for the shell."""

    async def work(_caller: Caller, command: Callable[..., Any]) -> None:
        told = await command("withdraw", "bob smith")
        assert told.returncode == 2
        heading, *names = told.stderr.splitlines()
        assert heading.endswith("give the one that is meant")
        assert names == ["  'users/account/bob smith'", "  'users/group/bob smith'"]

    served(work)


def test_another_name_of_a_unit_counts_beside_other_kinds(served: Callable[..., Any]) -> None:
    """Take a name that an account has, and a unit as another name, as the unit."""

    async def work(_caller: Caller, command: Callable[..., Any]) -> None:
        told = await command("show", "extra")
        assert told.stdout == (await command("show", "tools.service")).stdout
        assert "others of this name: users/account/extra" in told.stderr
        assert (await command("show", "account/extra")).stderr == ""

    served(work)


def test_what_is_named_to_be_forgotten(served: Callable[..., Any]) -> None:
    """Forget what is gone by its own name, not by a part of it, and say which object that is."""

    async def work(caller: Caller, command: Callable[..., Any]) -> None:
        gone = ["/org/opdbus/state/packages/package/gone_2dtool"]
        await caller.call(STATE_PATH, f"{STATE}.Withdraw", "aoa{sv}", gone, {})
        told = await command("history", "forget", "gone-tool")
        assert (told.returncode, told.stderr) == (0, "")
        assert told.stdout == "the values of 0 rows of packages/package/gone-tool were erased\n"
        told = await command("history", "forget", "gone-tol")
        assert "do you mean packages/package/gone-tool?" in told.stderr
        told = await command("history", "forget", "toolbox")
        assert (told.returncode, told.stdout) == (2, "")
        assert "part of the name of files/file//srv/toolbox: give all of it" in told.stderr
        for asked in ("", " ", "/"):
            told = await command("history", "forget", asked)
            assert (told.returncode, told.stdout) == (1, "")

    served(work)
