"""`op-dbus models`: pull, list, verify and import, on the command line."""

import json
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from harness.commands import invoke
from harness.hub import FIRST, WEIGHTS, Hub, files_in, nothing_left, visible
from harness.running import PATIENCE_SECONDS, run_program
from harness.tiny import rewrite, write_low_model
from harness.users import NOBODY, as_user

from opdbus.models import folder, level_table, shape
from opdbus.models.level_table import LEVELS

LOW = LEVELS["low"]
SOON = PATIENCE_SECONDS  # a limit for what should take few, not a measurement


@pytest.fixture
def low_hub(tmp_path: Path) -> Iterator[Hub]:
    """Serve a model as that of the level low."""
    running = Hub(LOW.repository, write_low_model(tmp_path / "hub"))
    yield running
    running.close()


MAIN = "import sys\nfrom opdbus.cli import local, main, models, status, top"


def environment(models: Path, **more: str) -> dict[str, str]:
    """Give an environment with a home and a model directory of its own, and no proxies."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OP_DBUS_", "HF_")) and not name.lower().endswith("_proxy")
    }
    home = models.parent.parent / "home"
    home.mkdir(exist_ok=True)
    return kept | {"HOME": str(home), "OP_DBUS_MODEL_DIR": str(models)} | more


def start(
    models: Path, *arguments: str, program: list[str] | None = None, **more: str
) -> subprocess.Popen[str]:
    """Start `op-dbus models ...`."""
    return subprocess.Popen(
        [*(program or [sys.executable, "-m", "opdbus"]), "models", *arguments],
        env=environment(models, **more),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def cli(models: Path, *arguments: str, **more: Any) -> tuple[int, str, str]:
    """Run `op-dbus models ...` and give its exit code, output and errors.

    What downloads is a process of its own, as its library reads variables when it is imported.
    """
    if arguments[0] != "pull":
        done = invoke(environment(models, **more), "models", *arguments)
        return done.returncode, done.stdout, done.stderr
    with start(models, *arguments, **more) as process:
        output, errors = process.communicate(timeout=SOON)
    return process.returncode, output, errors


def test_pull_on_the_command_line(low_hub: Hub, models: Path) -> None:
    """Tell a line for each file, and ask nobody but the hub, which is asked for files alone."""
    low_hub.xet = True
    elsewhere = Hub("no/body", models.parent)  # a proxy would be asked for all other hosts
    proxy = {"HTTP_PROXY": elsewhere.address, "HTTPS_PROXY": elsewhere.address}
    more = {"HF_ENDPOINT": low_hub.address, "NO_PROXY": "127.0.0.1,localhost", **proxy}
    try:
        code, output, errors = cli(models, "pull", "low", **more)
    finally:
        elsewhere.close()
    assert code == 0, errors
    assert f"low: {LOW.repository}@{FIRST[:12]} is in {models / LOW.folder}" in output
    assert [line.split()[0] for line in errors.splitlines()] == list(level_table.TRANSFORMER.files)
    assert elsewhere.asked == []
    assert all(asked.endswith(level_table.TRANSFORMER.files) for asked in low_hub.asked[1:])
    assert files_in(models.parent.parent / "home") == {}


def test_pull_on_a_terminal(low_hub: Hub, models: Path) -> None:
    """Draw a bar for each file."""
    reading, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    process = subprocess.Popen(
        [sys.executable, "-m", "opdbus", "models", "pull", "low"],
        env=environment(models, HF_ENDPOINT=low_hub.address),
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        cwd=ROOT,
    )
    os.close(terminal)
    drawn = b""
    try:
        while more := os.read(reading, 65536):
            drawn += more
    except OSError:
        pass  # how a terminal ends
    os.close(reading)
    assert process.wait(SOON) == 0
    assert b"model.safetensors: 100%" in drawn


def test_list_and_verify(low_hub: Hub, models: Path) -> None:
    """Show each level's status, commit and checksum, and check every file."""
    cli(models, "pull", "low", HF_ENDPOINT=low_hub.address)
    target = models / LOW.folder
    digest = folder.sha256(target / WEIGHTS)
    rows = {row["level"]: row for row in json.loads(cli(models, "list", "--json")[1])}
    assert rows["high"]["status"] == "missing"
    assert "op-dbus models pull high" in rows["high"]["where"]
    assert rows["low"] | {"model": ""} == {
        "level": "low",
        "model": "",
        "status": "verified",
        "revision": FIRST,
        "sha256": digest,
        "where": str(target),
    }
    code, output, _ = cli(models, "verify", "low")
    assert code == 0
    assert output.count("  verified  ") == len(level_table.TRANSFORMER.files)
    rewrite(target / shape.LIMIT, more=1)
    rows = {row["level"]: row for row in json.loads(cli(models, "list", "--json")[1])}
    assert rows["low"]["status"] == "wrong"
    assert shape.LIMIT in rows["low"]["where"]
    code, output, errors = cli(models, "verify", "low")
    assert (code, output) == (3, "")
    assert errors.startswith(f"op-dbus: {shape.LIMIT} in {target} changed since {LOW.repository}@")


def test_import_on_the_command_line(models: Path, tmp_path: Path) -> None:
    """Take a folder's name for its level, and an official model only as it is."""
    source = write_low_model(tmp_path / LOW.folder)
    code, output, _ = cli(models, "import", str(source))
    assert code == 0
    assert output.startswith(f"low: {source} is in {models / LOW.folder}")
    code, _, errors = cli(models, "import", str(source), "medium")
    assert code == 3
    assert "is not the official file of sentence-transformers/all-MiniLM-L6-v2" in errors


@pytest.mark.parametrize(
    ("code", "arguments", "variables", "sentence"),
    [
        (3, ["pull", "low"], {"HF_ENDPOINT": "http://127.0.0.1:9"}, ": Connection refused; check"),
        (3, ["import", "/nosuch"], {}, "there is no folder /nosuch: give the one that has the"),
        (3, ["pull", "low"], {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids it"),
        (2, ["pull", "low"], {"HF_ENDPOINT": "http://[::"}, "HF_ENDPOINT is no address"),
        (2, ["pull", "huge"], {}, "there is no level 'huge'"),
        (2, ["import"], {}, "Missing argument 'DIR'"),
    ],
)
def test_what_is_refused(
    models: Path, code: int, arguments: list[str], variables: dict[str, str], sentence: str
) -> None:
    """Fail with design.md's exit code and one sentence on stderr, and nothing on stdout."""
    found, output, errors = cli(models, *arguments, **variables)
    assert (found, output) == (code, "")
    assert sentence in errors
    assert errors.startswith("op-dbus: ")
    assert len(errors.splitlines()) == 1


def test_full_disk(low_hub: Hub, models: Path) -> None:
    """Say that there is no room, and leave nothing; a limit on files stands for the disk."""
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    program = [sys.executable, "-c", f"{MAIN}\n{limited}\nmain()"]
    code, _, errors = cli(models, "pull", "low", program=program, HF_ENDPOINT=low_hub.address)
    assert code == 3
    assert "make room there" in errors.splitlines()[-1]
    assert visible(models) == []
    assert nothing_left(models)


def test_directory_of_root(low_hub: Hub, models: Path) -> None:
    """Tell a user that may not write the model directory to be root or to choose another."""
    models.mkdir(parents=True)
    imports = (
        "from opdbus import cli\nfrom opdbus.models import model_store, pull_hub\ncli.modules()"
    )
    program = as_user(NOBODY, f"{MAIN}\n{imports}")
    code, _, errors = cli(models, "pull", "low", program=program, HF_ENDPOINT=low_hub.address)
    assert code == 3
    assert f"cannot write {models}: Permission denied; run as root, or set OP_DBUS_MODEL" in errors


def test_killed_pull_leaves_no_model(low_hub: Hub, models: Path) -> None:
    """Leave nothing that looks like a model when killed, and start again cleanly."""
    low_hub.faults[WEIGHTS] = "stalled"
    with start(models, "pull", "low", HF_ENDPOINT=low_hub.address) as process:
        assert low_hub.stalled.wait(SOON)
        process.send_signal(signal.SIGKILL)
    assert visible(models) == []
    assert not nothing_left(models)  # it was in the middle
    assert cli(models, "path", "low")[0] == 3
    low_hub.faults.clear()
    assert cli(models, "pull", "low", HF_ENDPOINT=low_hub.address)[0] == 0
    assert visible(models) == [LOW.folder]
    assert nothing_left(models)


def test_two_pulls_at_once(low_hub: Hub, models: Path) -> None:
    """Let the second wait for the first, and then find its model there."""
    low_hub.faults[WEIGHTS] = "stalled"
    with start(models, "pull", "low", HF_ENDPOINT=low_hub.address) as first:
        assert low_hub.stalled.wait(SOON)
        with start(models, "pull", "low", HF_ENDPOINT=low_hub.address) as second:
            assert second.stderr
            assert select.select([second.stderr], [], [], SOON)[0]
            assert second.stderr.readline().startswith("waiting for another op-dbus")
            low_hub.go.set()
            for process in (first, second):
                assert f"is in {models / LOW.folder}" in process.communicate(timeout=SOON)[0]
    assert (first.returncode, second.returncode) == (0, 0)
    assert low_hub.asked.count(f"GET /large/{FIRST}/{WEIGHTS}") == 1


# start-up, and the daemon


def imported(program: str) -> set[str]:
    """Give the libraries and modules that a program of ours imports."""
    ran = run_program(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"], check=True, cwd=ROOT
    )
    return set(ran.stdout.split())


def test_daemon_has_no_downloader() -> None:
    """Import nothing that downloads with the daemon, all its rooms, and its model folder."""
    found = imported("import opdbus.daemon, opdbus.models.build, opdbus.models.folder")
    assert {"opdbus.daemon", "opdbus.models.folder"} <= found
    assert not {"huggingface_hub", "opdbus.models.pull_hub", "opdbus.models.model_store"} & found
