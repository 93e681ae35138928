"""Each verdict of doctor flips when its cause is broken."""

import asyncio
import errno
import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLE
from harness.commands import run
from harness.running import Bus, Caller, Running, ask, environment, run_program, state_file
from safetensors.numpy import save_file

from opdbus.config import Config
from opdbus.doctor import (
    Verdict,
    _check_drift,
    _check_files,
    _check_observer,
    _check_served,
    _check_state_folder,
    examine,
)
from opdbus.engine.host import HERE
from opdbus.engine.providers import cpu_engines
from opdbus.settings import parsing
from opdbus.settings.parsing import ProviderRequest


@pytest.fixture
def healthy(settings: Config, bus_address: str) -> Config:
    """Give settings that nothing is wrong with."""
    return replace(settings, bus=bus_address)


def look(settings: Config, subject: str, **more: Any) -> Verdict:
    """Give the one verdict on a subject."""
    verdicts = asyncio.run(examine(lambda _: settings, **more))
    (found,) = [verdict for verdict in verdicts if verdict.subject == subject]
    return found


def test_all_is_well(healthy: Config) -> None:
    """Find nothing wrong where nothing is, and say what to do about no daemon."""
    verdicts = asyncio.run(examine(lambda _: healthy))
    assert {v.subject: v.status for v in verdicts if v.status != "ok"} == {"daemon": "warning"}
    assert look(healthy, "daemon").advice


@pytest.mark.parametrize("module", ["numpy", "tokenizers", "dbus_fast"])
def test_a_missing_library(healthy: Config, module: str) -> None:
    """Name the library that is missing, and the command that installs it."""
    missing = {module, "dbus_next"}
    verdict = look(healthy, f"library {module}", is_installed=lambda name: name not in missing)
    assert verdict.status == "wrong"
    assert " -m pip install " in verdict.advice
    assert look(healthy, "libraries").status == "ok"


def test_no_runtime(healthy: Config) -> None:
    """Name the extra to install where nothing runs a model, unless the level needs nothing."""
    verdict = look(healthy, "runtime", is_installed=lambda _: False)
    assert (verdict.status, "'op-dbus[cpu]'" in verdict.advice) == ("wrong", True)
    lexical = replace(healthy, vector_level="none")
    assert look(lexical, "runtime", is_installed=lambda _: False).status == "ok"
    only = look(healthy, "runtime", is_installed=lambda name: name == "openvino")
    assert only.status == "ok"


VNNI = frozenset({"avx2", "avx512_vnni"})


@pytest.mark.parametrize(
    ("level", "provider", "features", "status"),
    [
        ("high", "cpu", VNNI, "warning"),
        ("high", "cuda,cpu", {"avx512_bf16"}, "warning"),
        ("high", "auto", {"avx512_vnni", "avx512_bf16"}, "warning"),
        ("low", "cpu", {"amx_tile", "amx_bf16"}, "warning"),
        ("high", "cpu", {"amx_bf16"}, "warning"),
        ("medium", "cpu", VNNI, "ok"),
        ("high", "cpu", {"avx2", "avx512f"}, "ok"),
        ("high", "cpu", frozenset(), "ok"),
        ("high", "cpu:onnxruntime", VNNI, "ok"),
        ("static", "cpu", {"amx_tile"}, "ok"),
        ("none", "cpu", {"amx_tile"}, "ok"),
    ],
)
def test_openvino_where_it_is_faster(
    healthy: Config, level: str, provider: str, features: set[str], status: str
) -> None:
    """Say that OpenVINO would be faster, by level and processor, and how to install it."""
    request = parsing.providers(provider)
    settings = replace(healthy, vector_level=level, execution_provider=request)
    more = {"features": lambda: frozenset(features)}
    verdict = look(settings, "runtime", is_installed=lambda name: name != "openvino", **more)
    assert verdict.status == status
    assert ("op-dbus[openvino]" in verdict.advice) == (status == "warning")
    assert ("texts a second" in verdict.finding) == (status == "warning" and level == "high")
    assert look(settings, "runtime", **more).status == "ok"


def test_auto_without_accelerators(healthy: Config) -> None:
    """Find nothing wrong with `auto` where the machine has no accelerator."""
    if HERE.vendors():
        pytest.skip("there is an accelerator here")
    verdicts = asyncio.run(
        examine(lambda _: replace(healthy, execution_provider=parsing.providers("auto")))
    )
    found = [v for v in verdicts if v.subject.startswith("provider ")]
    assert found
    assert {v.status for v in found} == {"ok"}


def test_dbus_next_in_place_of_dbus_fast(healthy: Config) -> None:
    """Miss neither library of D-Bus while the other is installed."""
    for missing in ("dbus_fast", "dbus_next"):
        found = look(healthy, "libraries", is_installed=lambda name, lacks=missing: name != lacks)
        assert found.status == "ok"


def test_a_provider_that_is_not_there(healthy: Config) -> None:
    """Call a strict provider that is missing wrong, and one of a chain a warning."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")
    strict = replace(healthy, execution_provider=ProviderRequest(("cuda",)))
    verdict = look(strict, "provider cuda")
    assert (verdict.status, "cuda cannot run" in verdict.finding) == ("wrong", True)
    assert verdict.advice
    chain = replace(healthy, execution_provider=ProviderRequest(("cuda", "cpu")))
    assert look(chain, "provider cuda").status == "warning"
    for engine in cpu_engines():
        assert look(chain, f"provider {engine}").status == "ok"


@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer.json", "modules.json", "model.safetensors"]
)
@pytest.mark.parametrize("damage", ["missing", "garbled"])
def test_a_damaged_model(healthy: Config, tmp_path: Path, file: str, damage: str) -> None:
    """Name the model's file that is missing or cannot be read, and how to get it."""
    assert healthy.model
    copy = tmp_path / "copy"
    shutil.copytree(healthy.model, copy)
    broken = replace(healthy, model=copy)
    assert look(broken, "model").status == "ok"
    if damage == "missing":
        (copy / file).unlink()
    else:
        (copy / file).write_text("{ garbled")
    verdict = look(broken, "model")
    assert verdict.status == "wrong"
    assert file in verdict.finding
    assert "pip install" in verdict.finding + verdict.advice


def test_a_model_that_is_another(healthy: Config, tmp_path: Path) -> None:
    """Refuse files in the model folder that are not the official ones."""
    assert healthy.model
    home = tmp_path / "models" / "all-MiniLM-L6-v2"
    shutil.copytree(healthy.model, home)
    verdict = look(replace(healthy, model=None, model_dir=tmp_path / "models"), "model")
    assert (verdict.status, "not the official file" in verdict.finding) == ("wrong", True)


def test_no_model_folder_and_no_model_wanted(healthy: Config) -> None:
    """Call a model that is nowhere wrong, but not a level that has none."""
    nowhere = replace(healthy, model=None, vector_level="high", model_dir=Path("/nonexistent"))
    assert look(nowhere, "model").status == "wrong"
    assert look(replace(healthy, vector_level="none"), "model").status == "ok"


def test_weights_of_another_kind(healthy: Config, tmp_path: Path) -> None:
    """Leave a file that can be opened to the daemon, which proves what is in it."""
    assert healthy.model
    copy = tmp_path / "copy"
    shutil.copytree(healthy.model, copy)
    save_file({}, copy / "model.safetensors")
    assert look(replace(healthy, model=copy), "model").status == "ok"


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null/state"])
def test_a_state_folder_that_cannot_be_written(healthy: Config, folder: str) -> None:
    """Say that the state folder cannot be written, or is none, and what to set."""
    assert look(healthy, "state dir").status == "ok"
    verdict = look(replace(healthy, state_dir=Path(folder)), "state dir")
    assert verdict.status == "wrong"
    assert verdict.advice


def test_a_state_folder_on_a_full_disk(healthy: Config) -> None:
    """Say that nothing can be written where an empty file still can be made."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # as a full disk does, the limit refuses what a file would hold, and not the file
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        verdict = _check_files(_check_state_folder, "state dir", healthy, "wrong")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert verdict.status == "wrong"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_wants_room(healthy: Config, code: int) -> None:
    """Where a disk or a quota is full, the advice is to make room, not another setting."""

    def full(_: Config) -> Verdict:
        raise OSError(code, os.strerror(code), "/var/lib/op-dbus")

    verdict = _check_files(full, "state dir", healthy, "wrong")
    assert (verdict.status, verdict.advice) == ("wrong", "make room on its file system")


def test_failed_units_are_named(
    healthy: Config, daemons: Callable[..., Running], bus_address: str
) -> None:
    """Warn of the units that have failed, with the first names, as `status` does."""
    # one of them is declared, too; the state file declares another one failed, which is no fault
    names = ["sshd.service", *(f"u{number}.service" for number in range(1, 5))]
    unit = {"plugin": "systemd", "kind": "unit", "properties": {"active_state": "failed"}}
    with daemons(bus=bus_address, VECTOR_LEVEL="none", OBSERVE="none") as daemon:
        ask(daemon, lambda caller: caller.ready())
        assert look(healthy, "units").finding == "none has failed"
        for name in names:
            items = json.dumps({**unit, "name": name})
            assert daemon.cli("publish", "seen", stdin=items).returncode == 0
        verdict = look(healthy, "units")
        assert verdict.status == "warning"
        assert verdict.finding == "5 have failed: sshd.service, u1.service, u2.service and 2 more"
        assert verdict.advice == "`systemctl status sshd.service` says why"
        said = daemon.cli("status").stdout
        assert re.search(r"Failed +5 units: sshd.service, u1.service, u2.service and 2 more", said)
        assert json.loads(daemon.cli("status", "--json").stdout)["FailedUnits"] == names


def test_nothing_is_declared() -> None:
    """Nothing is said to be as declared where nothing is declared."""
    found = [_check_drift(count, declared).finding for count, declared in ((0, 0), (0, 5), (1, 5))]
    other = "other than declared"
    assert found == ["nothing is declared", f"nothing is {other}", f"an object is {other}"]


NAMES = {"STATE_FILE": "state file", "STATE_DIR": "state dir", "MODEL": "model"}
PLACES = ("below a closed folder", "too long", "below a file", "a loop")


def without_root(*command: str) -> list[str]:
    """Give the command that runs without root's right to look everywhere."""
    if os.geteuid():
        return list(command)
    if not shutil.which("setpriv"):
        pytest.skip("there is no setpriv: `apt install util-linux`")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]


@pytest.mark.parametrize(
    ("place", "variables"),
    [
        *((place, ("STATE_FILE", "STATE_DIR", "MODEL")) for place in PLACES),
        *((place, ("MODEL_DIR",)) for place in PLACES[:2]),
    ],
)
def test_a_path_that_cannot_be_looked_at(
    daemons: Callable[..., Running],
    bus_address: str,
    tmp_path: Path,
    place: str,
    variables: tuple[str, ...],
) -> None:
    """Call a path wrong that nothing can be seen at, with a sentence and never a traceback."""
    closed, loop = tmp_path / "closed", tmp_path / "loop"
    closed.mkdir(mode=0)
    loop.symlink_to(loop)
    paths = {
        "below a closed folder": closed / "a" / "b",
        "too long": Path("/" + "a" * 300, "b"),
        "below a file": Path("/dev/null/a/b"),
        "a loop": loop / "a",
    }
    daemon = daemons(bus=bus_address)
    set_to = {"OP_DBUS_MODEL": "", **{f"OP_DBUS_{name}": str(paths[place]) for name in variables}}
    done = run_program(
        without_root(sys.executable, "-m", "opdbus", "doctor"),
        env=environment(daemon.bus, daemon.state_dir, daemon.settings)
        | {"OP_DBUS_CONFIG": "", **set_to},
    )
    assert (done.returncode, done.stderr) == (1, "")
    for name in variables:
        assert f"wrong    {NAMES.get(name, 'model')}: " in done.stdout
    closed.chmod(0o700)


def test_the_state_file(healthy: Config, tmp_path: Path) -> None:
    """Call a bad state file wrong, with its place, and a missing one no fault."""
    file = state_file(tmp_path / "state.json", {"a": "network"})
    settings = replace(healthy, state_file=file)
    assert look(settings, "state file").finding == f"1 object in {file}"
    file.write_text("{ bad")
    verdict = look(settings, "state file")
    assert (verdict.status, "line 1 column 3" in verdict.finding) == ("wrong", True)
    file.unlink()
    assert look(settings, "state file") == Verdict(
        "state file", "ok", f"there is no {file}, and none is needed"
    )


def test_a_bus_that_is_not_there(healthy: Config) -> None:
    """Say that the bus cannot be reached, and ask whether it runs."""
    verdict = look(replace(healthy, bus="unix:path=/nonexistent"), "message bus")
    assert verdict.status == "wrong"
    assert verdict.advice.startswith("is it, or the `make run` that started it, running")
    assert look(healthy, "message bus").status == "ok"


def test_a_name_that_may_not_be_owned(healthy: Config) -> None:
    """Say that the bus's policy does not let this user own the name."""
    strict = Bus('<allow send_destination="*"/><allow receive_sender="*"/><allow user="*"/>')
    try:
        verdict = look(replace(healthy, bus=strict.address), "daemon")
    finally:
        strict.kill()
    assert verdict.status == "wrong"
    assert "does not let this user own org.opdbus" in verdict.finding


def test_each_observer_is_told_of(daemons: Callable[..., Running], healthy: Config) -> None:
    """Say how each observer of the daemon is; that a host lacks its source is no fault."""
    with daemons(OBSERVE="login1") as daemon:
        ask(daemon, Caller.ready)
        assert look(replace(healthy, bus=daemon.bus), "observer login1").status == "ok"


@pytest.mark.parametrize(
    ("state", "status"), [("up", "ok"), ("starting", "ok"), ("absent", "ok"), ("failed", "warning")]
)
def test_only_a_failed_observer_is_a_warning(state: str, status: str) -> None:
    """Warn of an observer that failed, with its reason."""
    verdict = _check_observer("users", state, 3, "it took too long")
    assert (verdict.status, "it took too long" in verdict.finding) == (status, True)
    assert bool(verdict.advice) == (status == "warning")


@pytest.mark.parametrize(
    ("state", "fault", "status", "said"),
    [
        ("ready", "", "ok", "it is ready"),
        ("loading", "", "ok", "it is loading"),
        (
            "ready",
            "the file was damaged; it is kept",
            "warning",
            "it is ready: the file was damaged",
        ),
        ("degraded", "the disk is full; make room", "wrong", "it is degraded: the disk is full"),
        ("failed", "", "warning", "it is failed"),
    ],
)
def test_what_a_daemon_says_of_itself(state: str, fault: str, status: str, said: str) -> None:
    """A fault is told of, also that of a database that was replaced while all is well now."""
    verdict = _check_served(state, fault)
    assert (verdict.status, verdict.finding.partition("; ")[2]) == (status, said)
    assert bool(verdict.advice) == (status != "ok")


def test_a_daemon_that_serves(daemons: Callable[..., Running], healthy: Config) -> None:
    """See a running daemon, leave it its name, and exit 1 only where something is wrong."""
    with daemons() as daemon:
        ask(daemon, Caller.ready)
        assert look(replace(healthy, bus=daemon.bus), "daemon").status == "ok"
        good = run(daemon, "doctor", OP_DBUS_STATE_FILE="/not/the/daemon's")
        assert f"objects in {EXAMPLE}" in good.stdout
        assert (good.returncode, "daemon: org.opdbus is served" in good.stdout) == (0, True)
        bad = run(daemon, "doctor", OP_DBUS_STATE_DIR="/proc/nowhere")
        assert (bad.returncode, "wrong    state dir" in bad.stdout) == (1, True)
        assert '"status": "wrong"' in run(daemon, "doctor", "--json", OP_DBUS_MODEL="/no").stdout
        ask(daemon, Caller.ready)
