"""The bus tests once more, with dbus-next in place of dbus-fast."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from conftest import ROOT
from harness.extras import without
from harness.running import run_program

# on all of them in `make test-all`
FILES = "connection properties replies".split()
if os.environ.get("OP_DBUS_TEST_BUSES") == "all":
    FILES += "all_properties descriptors dispatch limits programs".split()
needs_dbus_next = pytest.mark.skipif(
    find_spec("dbus_next") is None, reason="needs dbus-next (extra dbus-next)"
)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where there is no dbus-fast."""
    return run_program(
        [sys.executable, *arguments], env=os.environ | without("dbus_fast"), cwd=ROOT
    )


@needs_dbus_next
def test_dbus_next_takes_the_place_of_dbus_fast() -> None:
    """Take the names of the library from dbus-next where only that is installed."""
    ran = python(
        "-c", "from opdbus.bus.transport.library import Message; print(Message.__module__)"
    )
    assert ran.stdout == "dbus_next.message\n", ran.stderr


@needs_dbus_next
def test_the_bus_tests_pass_on_dbus_next() -> None:
    """Pass every test of the bus with the library that dbus-fast is a fork of."""
    files = [f"tests/bus/test_{name}.py" for name in FILES]
    ran = python("-m", "pytest", "-p", "no:cacheprovider", *files)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr
    assert " passed" in ran.stdout or "%]" in ran.stdout


def test_without_either_library_it_is_said() -> None:
    """Name the library that is missing where there is neither."""
    blocked = "import sys; sys.modules['dbus_next'] = None; import opdbus.bus.transport.library"
    ran = python("-c", blocked)
    assert ran.returncode
    assert "dbus_next" in ran.stderr
