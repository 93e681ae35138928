"""Manual pages and completion: made from the command, the table of settings and the interfaces."""

import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import pytest
from conftest import ROOT
from harness.running import run_program
from harness.whole_cli import root
from test_installed_files import setup

from opdbus import config

PAGES = ("man1/op-dbus.1", "man5/op-dbus.env.5", "man5/org.opdbus.5")
PATIENCE_SECONDS = 20.0
# How each shell, started without its user's files, is told to look into a folder for completions.
SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], "source {share}/bash-completion/completions/op-dbus"),
    "zsh": (
        ["-f", "-i"],
        "fpath=({share}/zsh/site-functions $fpath); autoload -Uz compinit; compinit -D -u",
    ),
    "fish": (["-i"], ""),
}


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the files, and give the folder of manual pages and completions."""
    folder = tmp_path_factory.mktemp("tree")
    setup("install", folder)
    return folder / "usr/local/share"


def commands(group: click.Group, before: str = "") -> list[tuple[str, click.Command]]:
    """Name every command of a group and of the groups in it."""
    found = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += commands(command, f"{before}{name} ")
        else:
            found.append((before + name, command))
    return found


def shown(page: Path) -> str:
    """Render a page as a reader sees it, without hyphenation or justification."""
    done = run_program(
        ["man", "--nh", "--nj", "-l", "-E", "UTF-8", page],
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "10000", "LC_ALL": "C.UTF-8"},
        check=True,
    )
    return done.stdout


needs_man = pytest.mark.skipif(not shutil.which("man"), reason="no man: apt install man-db")


@needs_man
@pytest.mark.parametrize("page", PAGES)
def test_pages_render_without_a_warning(share: Path, page: str) -> None:
    """Give roff nothing to complain about."""
    done = run_program(
        ["man", "-l", "--warnings=w", "-E", "UTF-8", share / "man" / page],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        check=True,
    )
    assert done.stderr == ""


@needs_man
def test_the_command_page_tells_of_every_command(share: Path) -> None:
    """Describe each command and option, in its own words."""
    text = shown(share / "man" / PAGES[0])
    for name, command in commands(root):
        assert name == "run" or f"   {name}\n" in text
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{name} {option.opts} does not say what it is for"
                assert option.help.replace("`", "") in text


@needs_man
def test_the_settings_page_tells_of_every_setting(share: Path) -> None:
    """Describe each variable in the table's words, with its default."""
    text = shown(share / "man" / PAGES[1])
    for setting in config.SETTINGS:
        assert f"  {setting.variable}\n" in text
        assert setting.doc[1:].replace("`", "") in text
        assert f"Default: {setting.default}." in text or not setting.default


@needs_man
def test_the_interface_page_tells_of_every_member(share: Path) -> None:
    """Describe each interface, method, property and signal, in the words of the XML."""
    text = shown(share / "man" / PAGES[2])
    for file in (ROOT / "opdbus" / "bus" / "interfaces").glob("*.xml"):
        for member in ET.parse(file).iter():  # noqa: S314 -- our own file
            if member.tag in {"method", "property", "signal"}:
                assert member.attrib["name"] in text
            if member.get("name") == "org.gtk.GDBus.DocString":
                said = " ".join(member.attrib["value"].replace("`", "").split())
                assert said in " ".join(text.split())


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands(shell: str, share: Path, tmp_path: Path) -> None:
    """Complete a command's name after a press of the tabulator, without any daemon."""
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell}: apt install {shell}")
    arguments, told = SHELLS[shell]
    environ = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
        "XDG_DATA_DIRS": f"{share}:/usr/share",
    }
    assert "similar" in typed([shell, *arguments], environ, f"{told.format(share=share)}\n", "simi")


def typed(command: list[str], environ: dict[str, str], first: str, begun: str) -> str:
    """Type into a shell on a terminal, and give what the screen was sent until it answers."""
    terminal, end = pty.openpty()
    shell = subprocess.Popen(
        ["setsid", "--ctty", *command], env=environ, stdin=end, stdout=end, stderr=end
    )
    os.close(end)
    os.write(terminal, f"{first}op-dbus {begun}\t".encode())
    screen = ""
    while "similar" not in screen and select.select([terminal], [], [], PATIENCE_SECONDS)[0]:
        screen += os.read(terminal, 4096).decode(errors="replace")
    shell.kill()
    shell.wait()
    os.close(terminal)
    return screen
