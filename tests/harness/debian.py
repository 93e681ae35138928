"""A small host of dpkg's in a folder, with packages that are built for a test."""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from opdbus.observe.packages.documents import Places

needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="there is no dpkg")


def build(
    folder: Path,
    name: str,
    *,
    version: str = "1.0",
    files: Mapping[str, str],
    scripts: Mapping[str, str] = {},
) -> Path:
    """Build a package whose files below /etc are its configuration."""
    tree = folder / f"{name}-{version}"
    for path, content in files.items():
        (tree / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tree / path.lstrip("/")).write_text(content)
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: a <a@example.org>\n"
        f"Section: misc\nInstalled-Size: 2048\nDescription: {name} of a test\n and more words\n"
    )
    conffiles = "".join(f"{path}\n" for path in files if path.startswith("/etc/"))
    (tree / "DEBIAN" / "conffiles").write_text(conffiles)
    for script, text in scripts.items():
        (tree / "DEBIAN" / script).write_text(text)
        (tree / "DEBIAN" / script).chmod(0o755)
    package = folder / f"{tree.name}.deb"
    command = ["dpkg-deb", "--build", "--root-owner-group", str(tree), str(package)]
    subprocess.run(command, check=True, capture_output=True)
    return package


@dataclass(frozen=True)
class Root:
    """A folder that dpkg installs into."""

    folder: Path

    @property
    def places(self) -> Places:
        """Where its documents are."""
        dpkg = self.folder / "var" / "lib" / "dpkg"
        return Places(self.folder, dpkg, self.folder / "usr" / "share" / "man", "no-rpm", ())

    def prepare(self) -> None:
        """Make it a host without packages, but with one that is no package of ours."""
        for name in ("info", "updates"):
            (self.places.dpkg / name).mkdir(parents=True)
        status = "Package: first\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n\n"
        (self.places.dpkg / "status").write_text(status)
        (self.places.dpkg / "info" / "first.list").write_text("")

    def dpkg(self, *command: str, stdin: str = "") -> None:
        """Run dpkg inside."""
        options = [f"--root={self.folder}", "--force-not-root", "--force-bad-path"]
        options += ["--log=/dev/null", f"--admindir={self.places.dpkg}"]
        done = subprocess.run(
            ["dpkg", *options, *command], input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
