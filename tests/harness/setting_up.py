"""Runs `systemd/setup` as a packager does, for tests of what it puts where."""

import subprocess
import sys
from pathlib import Path

SETUP = Path(__file__).parents[2] / "systemd" / "setup"


def try_setup(
    what: str, cwd: Path = SETUP.parent, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Install or uninstall with these variables, and give how it ended."""
    known = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "INTERPRETER": sys.executable}
    return subprocess.run(
        [SETUP, what],
        cwd=cwd,
        env=known | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def setup(what: str, into: Path, prefix: str = "/usr/local") -> str:
    """Install or uninstall all but the environment, which takes a minute; give what is printed."""
    done = try_setup(what, DESTDIR=str(into), PREFIX=prefix, FILES_ONLY="yes")
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_in(folder: Path) -> set[str]:
    """Name all files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
