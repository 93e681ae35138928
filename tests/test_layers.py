"""The shape of the package: what import-linter's contracts in pyproject.toml do not say."""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
from conftest import ROOT
from harness.running import run_program

PACKAGE = ROOT / "opdbus"
FILES = sorted(PACKAGE.rglob("*.py"))


def test_contracts_are_kept() -> None:
    """Import one way through rooms and parts, and some libraries and rooms in few places."""
    done = run_program([Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_imports_make_no_circle() -> None:
    """Import no module that imports the importer again, also in a function or for its types.

    The package `opdbus` itself is left out: it gets its one name from `api` on demand.
    """
    graph = grimp.build_graph("opdbus", cache_dir=None)
    modules = graph.modules - {"opdbus"}
    imports = {m: graph.find_modules_directly_imported_by(m) & modules for m in modules}
    TopologicalSorter(imports).prepare()


def test_every_file_is_installed() -> None:
    """Install with the package whatever it holds besides Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["opdbus"]
    found = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".py"}
    listed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert {path for path in found if "__pycache__" not in path.parts} == listed


def test_no_name_stands_for_many_functions() -> None:
    """Define a name of a function of modules at most five times, so that it can be searched for."""
    defined = Counter(
        node.name
        for path in FILES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert {name: count for name, count in defined.items() if count > 5} == {}


def test_no_two_modules_have_one_name() -> None:
    """Give each module a name of its own."""
    modules = Counter(path.stem for path in FILES if not path.stem.startswith("__"))
    assert [name for name, count in modules.items() if count > 1] == []


def test_no_room_is_crowded() -> None:
    """Have at most twenty modules in a room."""
    rooms = Counter(path.parent for path in FILES if path.stem != "__init__")
    assert {str(room): count for room, count in rooms.items() if count > 20} == {}


BLOCKED = """
import importlib, pkgutil, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"there is no {name} on this system")

sys.meta_path.insert(0, Blocker())
for room in ("opdbus.models", "opdbus.engine"):
    package = importlib.import_module(room)
    for module in pkgutil.iter_modules(package.__path__, room + "."):
        importlib.import_module(module.name)
        print(module.name)
"""


@pytest.mark.parametrize(
    "missing",
    [("dbus_fast", "dbus_next", "asyncinotify", "systemd"), ("onnxruntime", "openvino")],
    ids=["bus", "runtime"],
)
def test_engine_needs_neither_bus_nor_runtime(missing: Sequence[str]) -> None:
    """Import models and engine without D-Bus library, inotify and systemd, or without a runtime."""
    ran = run_program([sys.executable, "-c", BLOCKED, *missing], cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert {"opdbus.engine.embedder", "opdbus.models.build"} <= set(ran.stdout.split())
