"""What advice says of pip: the command for the Python that runs op-dbus, not for another one."""

import importlib.util
import shlex
import sys


def install(words: str, *, instead_of: str = "") -> str:
    """Give the commands, to be pasted in this order, that install packages instead of others.

    An environment that `make install` made has no pip; Python brings one.
    """
    commands = [] if importlib.util.find_spec("pip") else ["ensurepip"]
    commands += [f"pip uninstall {instead_of}"] if instead_of else []
    commands.append(f"pip install {shlex.join(words.split())}")
    python = shlex.quote(sys.executable or "python3")
    return ", then ".join(f"`{python} -m {command}`" for command in commands)
