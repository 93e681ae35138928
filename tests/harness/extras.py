"""Environments of child processes in which only some extras of op-dbus are installed."""

import os
import sys
import sysconfig
from functools import cache
from pathlib import Path

from harness.running import run_program

ROOT = Path(__file__).parents[2]
_BLOCKER = ROOT / "tests" / "blocked_modules"


def without(*modules: str) -> dict[str, str]:
    """Give variables with which child processes find none of these modules."""
    return {
        "BLOCKED_MODULES": " ".join(modules),
        "PYTHONPATH": f"{_BLOCKER}{os.pathsep}{ROOT}",
    }


@cache
def _lacking(extras: str) -> tuple[str, ...]:
    folder = sysconfig.get_path("purelib")
    command = [sys.executable, str(ROOT / ".ci" / "needed"), "lacking", extras, folder]
    return tuple(run_program(command, check=True).stdout.split())


def only(*extras: str) -> dict[str, str]:
    """Give variables with which child processes find what these extras bring, and no more."""
    return without(*_lacking(",".join(extras)))
