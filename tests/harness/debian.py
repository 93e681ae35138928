"""Packages of dpkg that are built for a test."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

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
