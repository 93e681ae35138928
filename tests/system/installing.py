"""What `make install` makes, once for each state of the sources, as a tree to lay over a host."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (".ci", "opdbus", "systemd", "etc", "Makefile", "pyproject.toml", "state.example.json")
INSTALL_SECONDS = 900
_OUR_OWN = ("MAKE", "MFLAGS", "OP_DBUS_", "PYTHON", "VIRTUAL_ENV")
_NO_REGISTRY = re.compile("No matching distribution|Failed to fetch|Temporary failure resolving")


@contextmanager
def installed(cache: Path) -> Iterator[Path]:
    """Give the tree of this checkout, made now unless it was; nobody changes it meanwhile."""
    cache.mkdir(parents=True, exist_ok=True)
    tree, made_of, wanted = cache / "tree", cache / "made-of", _digest()
    with (cache / "making").open("w") as making, (cache / "lock").open("w") as lock:
        # one makes it while the others wait, who then use it together
        fcntl.flock(making, fcntl.LOCK_EX)
        if not made_of.exists() or made_of.read_text() != wanted:
            fcntl.flock(lock, fcntl.LOCK_EX)
            made_of.unlink(missing_ok=True)
            shutil.rmtree(tree, ignore_errors=True)
            _make(tree)
            made_of.write_text(wanted)
        fcntl.flock(lock, fcntl.LOCK_SH)
        fcntl.flock(making, fcntl.LOCK_UN)
        yield tree


def _digest() -> str:
    """Tell one state of what is installed from another."""
    digest = hashlib.sha256()
    for name in SOURCES:
        top = ROOT / name
        files = (
            [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file())
        )
        for path in files:
            if "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(ROOT)} {path.stat().st_mode}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _make(tree: Path) -> None:
    # nothing of the tests' own environment, whose Python may be another than the system's
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OUR_OWN)}
    chosen = subprocess.run([ROOT / ".ci" / "choose-extras"], stdout=subprocess.PIPE, check=True)
    extras = f"EXTRAS={chosen.stdout.decode().strip()},http,fleet"
    make = ["make", "install", f"DESTDIR={tree}", "PREFIX=/usr/local", extras]
    done = subprocess.run(
        ["timeout", str(INSTALL_SECONDS), *make],
        cwd=ROOT,
        env=kept | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and _NO_REGISTRY.search(done.stderr):
        pytest.skip(f"no packages can be fetched here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, f"make install failed:\n{done.stdout}\n{done.stderr}"
