"""What advice says of pip."""

import importlib.util
import shlex
import sys

import pytest

from opdbus.platform import pip


@pytest.mark.parametrize(
    ("has_pip", "first"), [(True, ""), (False, "`PYTHON -m ensurepip`, then ")]
)
def test_the_command_is_that_of_our_own_python(
    monkeypatch: pytest.MonkeyPatch, first: str, *, has_pip: bool
) -> None:
    """Name the Python that runs op-dbus, and bring a pip where that has none, as the service's."""
    found = importlib.util.find_spec("json") if has_pip else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)
    python = shlex.quote(sys.executable)
    said = pip.install("--no-deps a[b] c>=1,<2", instead_of="d").replace(python, "PYTHON")
    commands = (
        "`PYTHON -m pip uninstall d`, then `PYTHON -m pip install --no-deps 'a[b]' 'c>=1,<2'`"
    )
    assert said == first + commands
