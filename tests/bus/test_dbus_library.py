"""The names of dbus-fast that are not public, and that the bus depends on."""

import ast
import re
from functools import reduce
from importlib import import_module
from importlib.metadata import version

import pytest
from conftest import ROOT

LIBRARY = "opdbus/bus/transport/library.py"
# Module and name of all that LIBRARY uses, each of which a new major version may remove.
PRIVATE = {
    "dbus_fast._private.address:get_bus_address",
    "dbus_fast._private.address:parse_address",
    "dbus_fast._private.unmarshaller:Unmarshaller",
    "dbus_fast._private.unmarshaller:Unmarshaller.unmarshall",
    "dbus_fast._private.unmarshaller:Unmarshaller.message",
    "dbus_fast.message:Message._marshall",
}


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_private_names_of_dbus_fast_are_there(name: str) -> None:
    """Say which private name is missing from the installed dbus-fast, and what uses it."""
    pytest.importorskip("dbus_fast")
    module, _, path = name.partition(":")
    try:
        reduce(getattr, path.split("."), import_module(module))
    except (ImportError, AttributeError):
        pytest.fail(
            f"dbus-fast {version('dbus-fast')} has no {path} in {module}, which {LIBRARY} uses:"
            " change that module, or bound the version in pyproject.toml"
        )


def test_no_other_private_name_is_used() -> None:
    """Name every private module and attribute of dbus-fast that is used in the list above."""
    tree = ast.parse((ROOT / LIBRARY).read_text())
    imported = {
        f"{node.module}:{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dbus_fast._")
        for alias in node.names
    }
    attributes = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert imported == {n for n in PRIVATE if "._private" in n and "." not in n.partition(":")[2]}
    assert {name for name in attributes if name.startswith("_")} == {"_marshall"}


def test_dbus_fast_is_bounded() -> None:
    """Allow no major version of dbus-fast that these names were not checked with."""
    assert re.search(r'"dbus-fast>=[\d.]+,<6[;"]', (ROOT / "pyproject.toml").read_text())
