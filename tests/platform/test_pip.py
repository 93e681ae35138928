"""Advice on what installs a missing library."""

import importlib.util
import shlex
import sys
from pathlib import Path

import pytest

from opdbus.errors import ConfigError
from opdbus.platform import pip

WANTED = "--no-deps a[b] c>=1,<2"


@pytest.mark.parametrize(
    ("modules", "first", "program"),
    [
        (("pip", "ensurepip"), "", "PYTHON -m pip"),
        (("ensurepip",), "`PYTHON -m ensurepip`, then ", "PYTHON -m pip"),
        ((), "`apt install python3-pip`, then ", "python3 -m pip --python PYTHON"),
    ],
)
def test_the_command_is_that_of_our_own_python(
    monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...], first: str, program: str
) -> None:
    """Name the Python that runs op-dbus, and a pip for it where it has none, as on Debian."""
    found = importlib.util.find_spec("json")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: found if name in modules else None
    )
    said = pip.install(WANTED, instead_of="d").replace(shlex.quote(sys.executable), "PYTHON")
    assert said == (
        f"{first}`{program} uninstall d`, then `{program} install --no-deps 'a[b]' 'c>=1,<2'`"
    )


@pytest.mark.parametrize(
    ("extra", "package"),
    [("http", "gateway"), ("mcp", "gateway"), ("fleet", "fleet"), ("openvino", "openvino")],
)
@pytest.mark.parametrize("is_deb", [True, False])
def test_beside_a_package_the_other_package_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: str, package: str, *, is_deb: bool
) -> None:
    """Name the .deb or .rpm package of an extra where op-dbus itself came as one."""
    monkeypatch.setattr(sys, "prefix", "/usr/lib/op-dbus")
    monkeypatch.setattr(pip, "_DPKG", tmp_path if is_deb else tmp_path / "none")
    command = f"apt install ./op-dbus-{package}_*.deb"
    if not is_deb:
        command = f"dnf install ./op-dbus-{package}-*.rpm"
    assert pip.install(f"op-dbus[{extra}]") == f"`{command}`"
    assert "pip" in pip.install("op-dbus[pull]")


def test_a_missing_module_is_named_with_its_extra() -> None:
    """Turn an import that fails into one sentence: the module's package, and the command."""
    with pytest.raises(ConfigError) as raised, pip.required("http"):
        import no_such_module.part  # type: ignore[import-not-found]  # noqa: F401
    assert str(raised.value) == f"no_such_module is not installed: {pip.install('op-dbus[http]')}"
