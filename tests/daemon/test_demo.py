"""`make run`, as a newcomer has it: what it prints can be pasted, and what it writes stays here."""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import EXAMPLE, ROOT
from harness.running import PATIENCE_SECONDS, read_lines, run_program


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a checkout of what the demo needs, in a folder whose name needs quotes."""
    if not shutil.which("dbus-daemon"):
        pytest.skip("there is no dbus-daemon: `apt install dbus-daemon`")
    folder = tmp_path / "a b"
    (folder / ".venv" / "bin").mkdir(parents=True)
    program = folder / ".venv" / "bin" / "op-dbus"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m opdbus \"$@\"\n")
    program.chmod(0o755)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "demo", folder / ".ci")
    shutil.copy(EXAMPLE, folder)
    (folder / "home").mkdir()
    return folder


@pytest.fixture
def environ(checkout: Path) -> dict[str, str]:
    """Give an environment with a home of its own and the model that is always there."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OP_DBUS_", "XDG_"))}
    static = {"OP_DBUS_VECTOR_LEVEL": "static"}
    return kept | {"HOME": str(checkout / "home"), "PYTHONPATH": str(ROOT)} | static


def test_once_ends_in_order(checkout: Path, environ: dict[str, str]) -> None:
    """End after the searches without a fault, with no command for a bus that is gone.

    One of them is about this machine, and is answered with it.
    """
    before = set(Path("/var/lib/op-dbus").glob("*"))
    # as a shell has it in which an earlier run's line was pasted
    environ["OP_DBUS_BUS"] = f"unix:path={quote(str(checkout))}/.run/bus.sock"
    done = subprocess.run(
        [checkout / ".ci" / "demo", "once"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("score  object") == 4
    assert re.search(r"^Observed +[1-9].* host [1-9]", done.stdout, re.MULTILINE), done.stdout
    about = done.stdout.partition("which operating system is this?")[2].partition("which disk")[0]
    assert "system/fact/os " in about
    assert platform.freedesktop_os_release()["NAME"] in about
    assert "stopped" in done.stdout
    assert not any(word in done.stdout for word in ("bus lost", "busctl", "export", "Traceback"))
    assert list((checkout / "home").iterdir()) == []
    assert set(Path("/var/lib/op-dbus").glob("*")) == before


@pytest.fixture
def demo(checkout: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start the demo that serves until Ctrl-C, as the leader of a terminal's job."""
    with subprocess.Popen(
        [checkout / ".ci" / "demo"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_another_shell_asks_the_same_daemon(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    """Print one line that makes another shell find the command and the daemon; end by Ctrl-C.

    A second demo ends at once and leaves the first its bus.
    """
    text = read_lines(demo, lambda text: "Serving until Ctrl-C" in text)
    (line,) = [line for line in text.splitlines() if line.startswith("export ")]
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = run_program(
        ["sh", "-c", f"{line}\n'{demo.args[0]}'; op-dbus show systemd/unit/sshd.service"],
        env=bare,
        cwd=tmp_path,
    )
    assert "org/opdbus/state/systemd/unit/sshd_2eservice" in done.stdout, done.stderr
    assert "op-dbus already serves here: stop it with Ctrl-C first" in done.stderr
    os.killpg(demo.pid, signal.SIGINT)
    rest = demo.communicate(timeout=PATIENCE_SECONDS)[0]
    assert (demo.returncode, "bus lost" in rest, "stopped" in rest) == (130, False, True), rest
