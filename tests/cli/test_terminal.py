"""What the command line imports, and what it prints to: terminals, pipes, readers that stop."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.commands import as_json, ok
from harness.running import Running, ask, environment, run_program, state_file

from opdbus.cli.output import width_of

SSHD = "systemd/unit/sshd.service"


@pytest.fixture(scope="module")
def served(shared_daemons: Callable[..., Running]) -> Running:
    """Serve the example."""
    return shared_daemons().start().vectorized()


@pytest.mark.parametrize("arguments", [["--help"], ["search", "sshd"]])
def test_clients_import_no_engine(served: Running, arguments: list[str]) -> None:
    """Start without large libraries, some of which alone take longer than 150 ms."""
    done = run_program(
        [sys.executable, "-X", "importtime", "-m", "opdbus", *arguments],
        env=environment(served.bus, served.state_dir, served.settings),
    )
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "click" in imported
    heavy = {"numpy", "onnxruntime", "onnx", "tokenizers", "rich", "structlog"}
    heavy |= {"huggingface_hub", "safetensors"}
    assert not heavy & imported


def test_a_reader_that_stops_reading_is_no_error(served: Running) -> None:
    """End in silence when the reader of the output has seen enough."""
    command = f"'{sys.executable}' -m opdbus list | head -1; echo ${{PIPESTATUS[0]}} >&2"
    done = run_program(
        ["bash", "-c", command], env=environment(served.bus, served.state_dir, served.settings)
    )
    assert done.stdout.split() == ["plugin", "kind", "name", "declared"]
    assert done.stderr == "0\n"
    closed = run_program(
        ["bash", "-c", f"'{sys.executable}' -m opdbus list >&-"],
        env=environment(served.bus, served.state_dir, served.settings),
    )
    assert "Traceback" not in closed.stderr


def test_a_terminal_gets_a_table(served: Running) -> None:
    """Draw tables with colours on a terminal only."""
    text = on_terminal(served, 120, "list", "-n", "3")
    assert b"\x1b[1m" in text
    assert b"plugin" in text
    assert len(text.splitlines()) == 4


def test_names_stay_whole_on_a_narrow_terminal(served: Running) -> None:
    """Break the text of a hit into lines, but no name of an object that has room in one."""
    names = [
        "/".join((hit["plugin"], hit["kind"], hit["name"]))
        for hit in as_json(served, "search", "who am i", "--all", "-n", "30")
    ]
    text = on_terminal(served, 60, "search", "who am i", "--all", "-n", "30").decode()
    assert [name for name in names if name not in text] == []
    assert text.count("\n") > 2 * len(names)


def test_nothing_is_wider_than_the_terminal(served: Running) -> None:
    """Break what is too long for a line, names too, and count wide characters as two columns."""
    wide, long = "\u6570\u636e\u5e93" * 12, "name-" * 40
    object_ids = [{"plugin": "wide", "kind": "thing", "name": name} for name in (wide, long)]
    paths = json.loads(ok(served, "publish", "t", "--json", stdin=json.dumps(object_ids)))
    for command in (["list", "--plugin", "wide"], ["show", paths[0]], ["show", paths[1]]):
        text = re.sub(r"\x1b\[\d*m", "", on_terminal(served, 60, *command).decode())
        assert max(map(width_of, text.splitlines())) in range(58, 61)
        whole = "".join(text.split())
        assert any(name in whole for name in (wide, long))
        assert any(name in ok(served, *command) for name in (wide, long))
    shown = on_terminal(served, 60, "show", SSHD).decode()
    assert re.search(r"Updated +\x1b\[0m  (\d+ (s|min) ago|just now)", shown)
    assert re.search(r"Fingerprint\x1b\[0m  [0-9a-f]{12}\.\.\.\s", shown)
    ok(served, "withdraw", *paths)


def test_errors_are_no_wider_than_the_terminal(served: Running) -> None:
    """Break what is said on stderr as well, but not a command that is to be pasted."""
    said = on_terminal(served, 60, "show", "no such " * 20, code=1).decode()
    assert max(map(width_of, said.splitlines())) in range(50, 61)
    long = ["search", f"who am i {'x ' * 500}", "--all", "-n", "1"]
    assert " more: add --offset 1\r\n" in on_terminal(served, 60, *long, code=0).decode()
    assert " more: add --offset 1\n" in served.cli(*long).stderr


def on_terminal(served: Running, columns: int, *arguments: str, code: int | None = None) -> bytes:
    """Give what a command prints on a terminal of so many columns; stderr too, with a code."""
    ours, theirs = pty.openpty()
    environ = environment(served.bus, served.state_dir, served.settings)
    environ |= {"TERM": "xterm-256color", "COLUMNS": str(columns)}
    environ.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "opdbus", *arguments],
        env=environ,
        stdout=theirs,
        stderr=None if code is None else theirs,
    ) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:  # how Linux tells that the other side is closed
                break
            if not more:
                break
            text += more
        assert process.wait(60) == (code or 0)
    os.close(ours)
    return text


def test_any_name_can_be_printed(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """Print names that the terminal's encoding lacks, instead of failing on them."""
    file = state_file(tmp_path / "state.json", {"caf\u00e9 \U0001f600 \u4e2d": "mail"})
    with daemons(STATE_FILE=file, VECTOR_LEVEL="none") as daemon:
        ask(daemon, lambda caller: caller.ready())
        done = daemon.cli("list", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\U0001f600" in done.stdout
