"""Observers of other packages, as they are installed: named by an entry point."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from opdbus.observe import selection
from opdbus.observe.dbus import login1

SOURCE = """
from opdbus.observe.core.report import Observer

async def observe(report):
    report.replace("lamp", {"desk": {}})

OBSERVER = Observer("another name", "house", observe, {"lamp": frozenset({"watts"})})
NOT_ONE = "lamps"
"""
ENTRY_POINTS = """
[opdbus.observers]
lamps = lamps:OBSERVER
broken = lamps.missing:OBSERVER
other = lamps:NOT_ONE
"""
ASK = """
import json, sys
from opdbus.errors import ConfigError
from opdbus.observe import selection
try:
    found = selection.select_observers(json.loads(sys.argv[1]), {})
    print(json.dumps([[o.name for o in found], [o.plugin for o in found], "lamps" in sys.modules]))
except ConfigError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Install a distribution into a folder, as installers do."""
    info = tmp_path / "lamps-1.0.dist-info"
    info.mkdir()
    (tmp_path / "lamps.py").write_text(SOURCE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lamps\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return tmp_path


def chosen(site: Path, *names: str) -> Any:
    """Ask another Python, which has the distribution, for observers."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(names)],
        env={"PYTHONPATH": f"{site}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_auto_neither_runs_nor_loads_it(site: Path) -> None:
    """What another package brings is not even imported by `auto`."""
    names, _, is_loaded = chosen(site, "auto")
    assert "login1" in names
    assert not {"lamps", "broken", "other"} & set(names)
    assert not is_loaded


def test_auto_can_be_one_of_several(site: Path) -> None:
    """Services on the bus and what other packages bring are added to all of ours, each once."""
    asked = ("auto", "login1", "lamps", "org.freedesktop.UDisks2", "org.example.A:/a/b")
    names, plugins, _ = chosen(site, *asked)
    services = ["org.freedesktop.UDisks2", "org.example.A"]
    assert names == [*chosen(site, "auto")[0], "lamps", *services]
    assert plugins[-2:] == ["udisks2", "a"]


def test_a_service_named_twice_is_an_error(site: Path) -> None:
    """It cannot be mirrored in two ways."""
    twice = chosen(site, "org.example.A", "introspect:org.example.A")
    assert twice == "OP_DBUS_OBSERVE: org.example.A is named twice"


def test_it_runs_when_it_is_named(site: Path) -> None:
    """It has the name of its entry point, whatever it calls itself."""
    assert chosen(site, "login1", "lamps") == [["login1", "lamps"], ["login1", "house"], True]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "OP_DBUS_OBSERVE: cannot load 'broken': No module named 'lamps.missing'"),
        ("other", "OP_DBUS_OBSERVE: lamps:NOT_ONE is no opdbus.observe.core.report.Observer"),
        ("lamp", "OP_DBUS_OBSERVE: there is no observer 'lamp': did you mean lamps?"),
        ("org.example.Lamps:path", "OP_DBUS_OBSERVE: 'org.example.Lamps:path' is no service: give"),
        ("introspect:Lamps", "OP_DBUS_OBSERVE: 'introspect:Lamps' is no service: give"),
        ("org.example.Lamps:/a//b", "OP_DBUS_OBSERVE: 'org.example.Lamps:/a//b' is no service"),
    ],
)
def test_one_that_cannot_be_used_is_an_error(site: Path, name: str, said: str) -> None:
    """A broken one is told by its name, and one that does not exist by the closest."""
    assert str(chosen(site, name)).startswith(said)


def test_the_example_in_the_docs_is_short() -> None:
    """The observer that shows how to write one has at most 60 lines."""
    assert selection.OURS.count(login1.OBSERVER) == 1
    assert len(Path(login1.__file__).read_text().splitlines()) <= 60
