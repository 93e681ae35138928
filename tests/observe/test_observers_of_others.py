"""Observers of other packages, as they are installed: named by an entry point."""

import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opdbus.errors import ConfigError
from opdbus.observe import selection
from opdbus.observe.dbus import login1

SOURCE = """
from opdbus.observe.core.report import Observer

async def observe(report):
    report.replace("lamp", {"desk": {}})

async def appears():
    pass

OBSERVER = Observer(
    "another name", "house", observe, {"lamp": frozenset({"watts"})}, appears,
    {"lamp": frozenset({"room"})}, frozenset({"lamp"}),
)
NOT_ONE = "lamps"
"""
ENTRY_POINTS = """
[opdbus.observers]
lamps = lamps:OBSERVER
broken = lamps.missing:OBSERVER
other = lamps:NOT_ONE
"""


@pytest.fixture
def _site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a distribution into a folder, as installers do."""
    info = tmp_path / "lamps-1.0.dist-info"
    info.mkdir()
    (tmp_path / "lamps.py").write_text(SOURCE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lamps\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("lamps", None)


pytestmark = pytest.mark.usefixtures("_site")


def chosen(*names: str) -> list[tuple[str, str]]:
    """Give the observers that are chosen by these names, and their plugins."""
    return [(one.name, one.plugin) for one in selection.select_observers(names, {})]


def test_auto_can_be_one_of_several() -> None:
    """`auto` loads nothing of other packages; those and services on the bus are added once."""
    ours = chosen("auto")
    assert "login1" in dict(ours)
    assert not {"lamps", "broken", "other"} & dict(ours).keys()
    assert "lamps" not in sys.modules
    services = [("org.freedesktop.UDisks2", "udisks2"), ("org.example.A", "a")]
    asked = ("auto", "login1", "lamps", "org.freedesktop.UDisks2", "org.example.A:/a/b")
    # by the name of its entry point, whatever it calls itself
    assert chosen(*asked) == [*ours, ("lamps", "house"), *services]


def test_all_that_an_observer_says_of_itself_counts() -> None:
    """An observer of another package differs from what it says of itself in its name alone."""
    (found,) = selection.select_observers(["lamps"], {})
    own = sys.modules["lamps"].OBSERVER
    fields = {field.name for field in dataclasses.fields(own)} - {"name"}
    assert [getattr(found, each) for each in fields] == [getattr(own, each) for each in fields]
    assert found.appears is own.appears


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("broken", "cannot load 'broken': No module named 'lamps.missing'"),
        ("other", "lamps:NOT_ONE is no opdbus.observe.core.report.Observer"),
        ("lamp", "there is no observer 'lamp': did you mean lamps?"),
        ("org.example.Lamps:path", "'org.example.Lamps:path' is no service: give"),
        ("introspect:Lamps", "'introspect:Lamps' is no service: give"),
        ("org.example.Lamps:/a//b", "'org.example.Lamps:/a//b' is no service"),
        ("org.example.A introspect:org.example.A", "org.example.A is named twice"),
    ],
)
def test_one_that_cannot_be_used_is_an_error(names: str, said: str) -> None:
    """A broken one is told by its name, and one that does not exist by the closest."""
    with pytest.raises(ConfigError, match=re.escape(f"OP_DBUS_OBSERVE: {said}")):
        chosen(*names.split())


def test_the_example_in_the_docs_is_short() -> None:
    """The observer that shows how to write one has at most 60 lines."""
    assert selection.OURS.count(login1.OBSERVER) == 1
    assert len(Path(login1.__file__).read_text().splitlines()) <= 60
