"""File systems of tests."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """Mount something at a folder, or skip where that cannot be."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", *options, str(folder)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
