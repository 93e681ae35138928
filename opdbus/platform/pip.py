"""Advice on pip: commands for the Python that runs op-dbus."""

import importlib.util
import shlex
import sys


def install(words: str, *, instead_of: str = "") -> str:
    """Return commands, in order, that install packages and uninstall `instead_of`.

    An environment made by `make install` has no pip: then ensurepip comes first.
    """
    commands = [] if importlib.util.find_spec("pip") else ["ensurepip"]
    commands += [f"pip uninstall {instead_of}"] if instead_of else []
    commands.append(f"pip install {shlex.join(words.split())}")
    python = shlex.quote(sys.executable or "python3")
    return ", then ".join(f"`{python} -m {command}`" for command in commands)
