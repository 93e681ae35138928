"""What a shell is offered for a word that is begun."""

import os
from collections.abc import Callable

import pytest
from harness.commands import invoke
from harness.running import Running
from harness.whole_cli import root


@pytest.fixture(scope="module")
def served(shared_daemons: Callable[..., Running]) -> Running:
    """Serve the example."""
    return shared_daemons().start().vectorized()


def offered(*typed: str, **environ: str) -> list[str]:
    """Give what bash is offered for the last word, each with its kind."""
    words = {"COMP_WORDS": " ".join(["op-dbus", *typed]), "COMP_CWORD": str(len(typed))}
    done = invoke(os.environ | words | {"_OP_DBUS_COMPLETE": "bash_complete"} | environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "some"),
    [
        (["models", "pull", ""], ["none", "static", "low", "medium", "high"]),
        (["models", "pull", "m"], ["medium"]),
        (["set-provider", "cpu"], ["cpu", "cpu:onnxruntime", "cpu:openvino"]),
        (["--bus", "s"], ["session", "system"]),
        (["list", "--plugin", "us"], ["users"]),
        (["list", "--plugin", "users", "--kind", "a"], ["account"]),
        (["list", "--kind", "inter"], ["interface"]),
    ],
)
def test_known_words_are_offered(typed: list[str], some: list[str]) -> None:
    """Levels, providers, buses, plugins and their kinds are offered, without any daemon."""
    assert sorted(offered(*typed)) == sorted(f"plain,{word}" for word in some)


def test_files_are_offered() -> None:
    """A state file is looked for by the shell itself."""
    assert offered("check", "/etc/o") == ["file,/etc/o"]


def test_names_of_objects_are_offered(served: Running) -> None:
    """A name is offered as it was begun, alone or after plugin and kind, by a daemon that runs."""
    for command in (["show"], ["similar"], ["history"], ["changes", "--around"]):
        assert offered(*command, "sshd", OP_DBUS_BUS=served.bus) == ["plain,sshd.service"]
    whole = ["plain,systemd/unit/sshd.service"]
    assert offered("show", "systemd/unit/ss", OP_DBUS_BUS=served.bus) == whole
    assert offered("show", "nosuch", OP_DBUS_BUS=served.bus) == []


def test_without_a_daemon_no_name_is_offered() -> None:
    """A shell is told nothing where no daemon, or no bus, can be asked."""
    assert offered("show", "ssh", OP_DBUS_BUS="unix:path=/nonexistent") == []
    assert offered("show", "ssh", OP_DBUS_BUS="nonsense") == []


def test_each_command_is_told_in_a_line() -> None:
    """In the list of commands, no summary is cut on a terminal of 80 columns."""
    longest = max(map(len, root.commands))
    for command in root.commands.values():
        assert "..." not in command.get_short_help_str(80 - longest - 6)
