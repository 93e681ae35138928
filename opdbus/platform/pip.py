"""Advice on what installs a missing library: commands for the Python that runs op-dbus."""

import importlib.util
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from opdbus.errors import ConfigError

# The environment of the packages, and the packages that bring extras.
_PACKAGED: Final = "/usr/lib/op-dbus"
_DPKG: Final = Path("/var/lib/dpkg/info/op-dbus.list")
_PACKAGES: Final = {
    "op-dbus[http]": "op-dbus-gateway",
    "op-dbus[mcp]": "op-dbus-gateway",
    "op-dbus[fleet]": "op-dbus-fleet",
    "op-dbus[openvino]": "op-dbus-openvino",
}


def install(words: str, *, instead_of: str = "") -> str:
    """Return commands, in order, that install packages and uninstall `instead_of`.

    Beside the .deb or .rpm package of op-dbus, that is the package that brings the extra. An
    environment made by `make install` has no pip: then ensurepip comes first, or where the system
    has none, as Debian without python3-venv, the system's own pip installs for this Python.
    """
    python = shlex.quote(sys.executable or "python3")
    pip = f"{python} -m pip"
    commands = []
    if sys.prefix == _PACKAGED and words in _PACKAGES:
        name, is_deb = _PACKAGES[words], _DPKG.exists()
        return f"`apt install ./{name}_*.deb`" if is_deb else f"`dnf install ./{name}-*.rpm`"
    if not importlib.util.find_spec("pip"):
        if importlib.util.find_spec("ensurepip"):
            commands.append(f"{python} -m ensurepip")
        else:
            commands.append("apt install python3-pip")
            pip = f"python3 -m pip --python {python}"
    if instead_of:
        commands.append(f"{pip} uninstall {instead_of}")
    commands.append(f"{pip} install {shlex.join(words.split())}")
    return ", then ".join(f"`{command}`" for command in commands)


@contextmanager
def required(extra: str) -> Iterator[None]:
    """Turn a module that is missing inside into ConfigError, with what installs the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(is_missing(error, extra)) from None


def is_missing(error: ModuleNotFoundError, extra: str) -> str:
    """Return a sentence that names the missing module and what installs the extra."""
    module = (error.name or "").partition(".")[0]
    return f"{module} is not installed: {install(f'op-dbus[{extra}]')}"
