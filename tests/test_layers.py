"""Rooms: imports between and inside them go one way, and some libraries have one importer."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

from opdbus.platform import lines

PACKAGE = ROOT / "opdbus"
# Packages and modules in the order of imports: a room may import itself and the rooms before it.
ROOMS = (
    "errors platform settings state config language log history"
    " models engine api serving index insight drift wording bus observe bench"
    " picture systemd daemon doctor client publishers fleet gateway cli"
).split()
# The same inside a room that has parts.
PARTS = {
    "bus": "names paths async_cache transport admission authorization service".split(),
    "index": (
        "ranking database catalogue storage fields fulltext state_store vectors query"
        " changes search health"
    ).split(),
    "observe": "core packages systemd kernel network dbus host selection supervisor".split(),
}
# Clients of the daemon, which import little of it.
MAY_IMPORT = {
    "client": {
        "opdbus.client",
        "opdbus.errors",
        "opdbus.config",
        "opdbus.bus.transport.connection",
        "opdbus.bus.names",
        "opdbus.bus.paths",
    },
    "publishers": {
        "opdbus.publishers",
        "opdbus.errors",
        "opdbus.platform.accounts",
        "opdbus.platform.lines",
        "opdbus.platform.regular_files",
        "opdbus.platform.tasks",
        "opdbus.platform.timestamps",
        "opdbus.bus.paths",
        "opdbus.client",
        "opdbus.history.acts",
        "opdbus.state.object",
        "opdbus.state.redact",
    },
    "gateway": {
        "opdbus.gateway",
        "opdbus.client",
        "opdbus.errors",
        "opdbus.bus.paths",
        "opdbus.fleet.host_overview",
        "opdbus.fleet.questions",
        "opdbus.picture.layout",
        "opdbus.picture.page",
        "opdbus.picture.scene",
        "opdbus.picture.svg",
        "opdbus.platform.lines",
        "opdbus.platform.name_lists",
        "opdbus.platform.pip",
        "opdbus.platform.tasks",
        "opdbus.platform.timestamps",
        "opdbus.state.conditions",
        "opdbus.state.object",
        "opdbus.wording",
        "opdbus.systemd.notify",
    },
    "cli": {
        "opdbus.cli",
        "opdbus.client",
        "opdbus.wording",
        "opdbus.systemd.unit",
        "opdbus.systemd.notify",
        "opdbus.platform.timestamps",
        "opdbus.language.routes",
        "opdbus.errors",
        "opdbus.config",
        "opdbus.settings.parsing",
        "opdbus.platform.pip",
        "opdbus.models.level_table",
        "opdbus.models.folder",
        "opdbus.bus.paths",
        "opdbus.drift.versions",
        "opdbus.history.jobs",
        "opdbus.platform.lines",
        "opdbus.platform.metrics",
        "opdbus.platform.name_lists",
        "opdbus.platform.regular_files",
        "opdbus.picture.scene",
        "opdbus.state.conditions",
        "opdbus.state.object",
        "opdbus.platform.tasks",
        "opdbus.platform.token_files",
    },
}
# ... but for what one command needs, imported when that command runs, or to name its types.
IN_FUNCTIONS = {
    "gateway": {"opdbus.fleet.postgres"},
    "cli": {
        "opdbus.daemon",
        "opdbus.doctor",
        "opdbus.drift.observed_kinds",
        "opdbus.bench",
        "opdbus.state.file",
        "opdbus.state.judge",
        "opdbus.state.flatten",
        "opdbus.state.document_edit",
        "opdbus.engine.accelerators",
        "opdbus.engine.provider_survey",
        "opdbus.fleet",
        "opdbus.gateway",
        "opdbus.log",
        "opdbus.history.checkpoint",
        "opdbus.history.verify",
        "opdbus.index.database.database",
        "opdbus.models.pull_hub",
        "opdbus.models.model_store",
        "opdbus.models.pull_packages",
        "opdbus.platform.lean_imports",
        "opdbus.picture",
    },
}

FILES = sorted(PACKAGE.rglob("*.py"))


class Imports(ast.NodeVisitor):
    """Collects (module, inside a function, for type checking only) of all imports of a file."""

    def __init__(self, path: Path) -> None:
        self.found: list[tuple[str, bool, bool]] = []
        self._function = self._types = False
        self.visit(ast.parse(path.read_text(encoding="utf-8")))

    def visit_Import(self, node: ast.Import) -> None:
        """Collect `import a.b`."""
        self._add(*(alias.name for alias in node.names))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Collect `from a import b`, where b may be a module."""
        assert not node.level, "relative imports hide which room is meant"
        module = node.module or ""
        for alias in node.names:
            inner = f"{module}.{alias.name}"
            self._add(inner if is_module(inner) else module)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Remember that what follows is imported when the function runs."""
        before, self._function = self._function, True
        self.generic_visit(node)
        self._function = before

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 -- ast's name

    def visit_If(self, node: ast.If) -> None:
        """Remember that what follows is not imported at run time."""
        before = self._types
        self._types = before or ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in node.body:
            self.visit(child)
        self._types = before
        for child in node.orelse:
            self.visit(child)

    def _add(self, *modules: str) -> None:
        self.found += [(module, self._function, self._types) for module in modules]


@cache
def imports_of(path: Path) -> tuple[tuple[str, bool, bool], ...]:
    """Give what a file of ours imports; many rules ask."""
    return tuple(Imports(path).found)


@cache
def is_module(name: str) -> bool:
    """Tell whether a dotted name is a module or package of ours."""
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def room_of(module: str) -> str:
    """Give the room of a module of ours."""
    return module.split(".")[1] if "." in module else ""


def name_of(path: Path) -> str:
    """Give the dotted name of a file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def is_backwards(name: str, module: str) -> bool:
    """Tell whether a module imports a later part of its own room."""
    _, room, *rest = name.split(".")
    parts, other = PARTS.get(room), module.split(".")[2:]
    if parts is None or not rest or not other:
        return False
    return parts.index(other[0]) > parts.index(rest[0])


def violations(path: Path) -> Iterator[str]:
    """Yield what a file imports and may not."""
    room = room_of(name_of(path))
    for module, in_function, types in imports_of(path):
        other = room_of(module)
        if not module.startswith("opdbus."):
            continue
        if other == room:
            if is_backwards(name_of(path), module):
                yield f"{name_of(path)} imports {module}"
            continue
        if room in MAY_IMPORT:
            late = IN_FUNCTIONS.get(room, set()) if in_function or types else set()
            allowed = MAY_IMPORT[room] | late
            wrong = not any(module == a or module.startswith(a + ".") for a in allowed)
        else:
            wrong = ROOMS.index(other) > ROOMS.index(room)
        if wrong:
            yield f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    """Import only the own room and part and those before it, also for type checking."""
    if path.name != "__main__.py" and path != PACKAGE / "__init__.py":
        assert room_of(name_of(path)) in ROOMS
        assert list(violations(path)) == []


@pytest.mark.parametrize(
    ("module", "backwards"),
    [
        ("opdbus.bus.service.job1", True),
        ("opdbus.bus.authorization", True),
        ("opdbus.bus.admission.replies", False),
        ("opdbus.bus.names", False),
        ("opdbus.bus", False),
    ],
)
def test_imports_inside_a_room_go_one_way(module: str, *, backwards: bool) -> None:
    """Import a part of the own room only if it comes before: transport is below service."""
    assert is_backwards("opdbus.bus.admission.limits", module) == backwards
    assert not is_backwards("opdbus.models.folder", "opdbus.models.folder")


def test_wrong_import_is_found(tmp_path: Path) -> None:
    """Find an import of any spelling, so that the rule above is one."""
    path = tmp_path / "x.py"
    path.write_text(
        "import opdbus.daemon\nfrom opdbus import client\nfrom opdbus.bus import paths\n"
        "def f():\n    from opdbus.cli import main\n"
        "if TYPE_CHECKING:\n    from opdbus.http import x\nelse:\n    import dbus_fast.aio\n"
    )
    assert Imports(path).found == [
        ("opdbus.daemon", False, False),
        ("opdbus.client", False, False),
        ("opdbus.bus.paths", False, False),
        ("opdbus.cli", True, False),
        ("opdbus.http", False, True),
        ("dbus_fast.aio", False, False),
    ]


def importers(library: str, *, at_run_time: bool) -> set[str]:
    """List the modules of ours that import a library."""
    return {
        name_of(path)
        for path in FILES
        for module, _, types in imports_of(path)
        if module.split(".")[0] == library and not (at_run_time and types)
    }


def test_dbus_fast_has_one_door() -> None:
    """Import dbus-fast, and dbus-next in its place, in one module."""
    for library in ("dbus_fast", "dbus_next"):
        assert importers(library, at_run_time=False) == {"opdbus.bus.transport.library"}


def test_onnxruntime_has_one_room() -> None:
    """Import ONNX Runtime where models run, and where that is measured."""
    found = importers("onnxruntime", at_run_time=False)
    assert found
    assert {room_of(name) for name in found} <= {"engine", "bench"}


def test_only_the_command_line_downloads() -> None:
    """Import the hub's library in one module, which nothing but the command line imports."""
    assert importers("huggingface_hub", at_run_time=False) == {"opdbus.models.pull_hub"}
    users = {
        name_of(path)
        for path in FILES
        for module, _, _ in imports_of(path)
        if module == "opdbus.models.pull_hub"
    }
    assert users == {"opdbus.cli.models"}


def reads_environment(node: ast.AST) -> bool:
    """Tell whether a node names os.environ or its like, or hides where they come from."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) in {"os.environ", "os.environb", "os.getenv", "os.putenv"}
    if isinstance(node, ast.Import):
        return any(alias.name == "os" and alias.asname for alias in node.names)
    return isinstance(node, ast.ImportFrom) and node.module == "os"


def test_environment_is_read_at_the_entry_only() -> None:
    """Name os.environ at the two doors only: all else is given what it needs."""
    excused = {
        # ONNX Runtime can be told only so, also where it was not the command line that began
        'os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")',
        # what a child inherits is no setting: all of it, less what is ours alone
        "return {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}",
    }
    users = set()
    for path in FILES:
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if reads_environment(node) and lines[node.lineno - 1].strip() not in excused:
                users.add(room_of(name_of(path)))
    assert users == {"cli", "api"}


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("os.environ['A']", True),
        ("os.getenv('A')", True),
        ("import os as o", True),
        ("from os import environ", True),
        ("import os", False),
        ("self.environ", False),
    ],
)
def test_reading_the_environment_is_found(code: str, *, reads: bool) -> None:
    """Find os.environ under every spelling, and nothing else that has its name."""
    assert any(map(reads_environment, ast.walk(ast.parse(code)))) == reads


def test_every_file_is_installed() -> None:
    """Install with the package whatever it holds besides Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["opdbus"]
    found = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".py"}
    listed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert {path for path in found if "__pycache__" not in path.parts} == listed


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Give each circle once, as the trail of imports that leads back to its start."""
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            found.append(" imports ".join([*trail[trail.index(name) :], name]))
        elif name in graph and name not in done:
            for other in sorted(graph[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    return found


def test_imports_make_no_circle() -> None:
    """Import no module that imports the importer again, also in a function or for its types.

    The package `opdbus` itself is left out: it gets its one name from `api` on demand.
    """
    graph = {name_of(p): {m for m, _, _ in imports_of(p) if m != "opdbus"} for p in FILES}
    assert circles(graph) == []


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


def test_circles_are_found() -> None:
    """Find a circle wherever the search begins, and none where two ways lead to one module."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b imports c imports b"]
    assert circles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []


def test_the_daemon_imports_no_benchmark() -> None:
    """Import nothing of `bench` from the daemon or any module that it imports."""
    graph = {name_of(p): {m for m, _, types in imports_of(p) if not types} for p in FILES}
    reached, ahead = set[str](), ["opdbus.daemon"]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += graph.get(name, ())
    assert "opdbus.engine.sessions" in reached
    assert {name for name in reached if room_of(name) == "bench"} == set()


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
    ran = subprocess.run(
        [sys.executable, "-c", BLOCKED, *missing],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stderr
    assert {"opdbus.engine.embedder", "opdbus.models.build"} <= set(ran.stdout.split())


# Methods of texts that know a dozen characters besides blank, tab and newline, which names of
# files, units and packages may have: `opdbus/platform/lines.py` has others.
OF_ALL_SPACES = {"split", "rsplit", "splitlines", "strip", "lstrip", "rstrip"}
OF_STR = {f"str.{method}" for method in OF_ALL_SPACES}
# Rooms that read what others wrote on the host: files, programs, the kernel, the bus.
READING = (
    "observe/",
    "settings/env_file.py",
    "systemd/unit.py",
    "engine/cpus.py",
    "history/checkpoint.py",
)
# These have the syntax of systemd, with lines of its own.
APART = ("observe/systemd/unit_files.py", "observe/systemd/unit_syntax.py")
# What of these is our own text, or a format that takes them all for blanks.
EXCUSED = {
    # five fields of a schedule, joined by blanks
    "observe/host/crontab.py: when.split()",
    # names in a table of ours
    "observe/dbus/mirror_table.py: names.split()",
    # lines of our own tables and texts, of what we print, or of which one is shown to a person
    "cli/measure_engine.py: captured.get().splitlines()",
    "cli/models.py: file.read_text(encoding='utf-8').splitlines()",
    "cli/top/terminal.py: text.splitlines()",
    "engine/provider.py: str(error).strip().splitlines()",
    "history/change_sentence.py: text.splitlines()",
    "models/child.py: stderr.decode(errors='replace').strip().splitlines()",
    "models/pull_hub.py: (str(error).strip() or type(error).__name__).splitlines()",
    "models/pull_packages.py: said.splitlines()",
    "picture/scene.py: tensors['objects'].tobytes().splitlines()",
    "language/tables.py: _file(name).read_text('utf-8').splitlines()",
}
# Patterns may have such a class where it stands for what the format itself takes for blanks.
EXCUSED_PATTERNS = {
    "observe/packages/documents.py",  # roff
    "observe/dbus/mirror.py",  # XML
}


def reads_the_host(name: str) -> bool:
    """Tell whether a file of ours reads what others wrote on the host."""
    return name.startswith(READING) and not name.startswith(APART)


def splits(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield how a text is split or stripped at every white space there is, with the method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            separator = node.args[0] if node.args else ast.Constant(None)
            is_all = node.func.attr == "splitlines" or (
                isinstance(separator, ast.Constant) and separator.value is None
            )
            is_ours = isinstance(node.func.value, ast.Constant)
            if node.func.attr in OF_ALL_SPACES and is_all and not is_ours:
                yield node.func.attr, ast.unparse(node)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in OF_STR:
            yield node.attr, ast.unparse(node)


def spaces_in_patterns(tree: ast.AST) -> Iterator[str]:
    """Yield the texts, but docstrings, that have the class of all white space."""
    statements = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    prose = {id(node) for node in statements if isinstance(node, ast.Constant)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in prose and re.search(r"\\[sS]", node.value):
            yield node.value


def test_what_others_wrote_is_split_at_blanks_and_newlines_alone() -> None:
    """Split no text of the host at characters that are part of names; no text at all at lines."""
    found = set()
    for path in FILES:
        name = str(path.relative_to(PACKAGE))
        for method, call in splits(ast.parse(path.read_text(encoding="utf-8"))):
            if reads_the_host(name) or (method == "splitlines" and name not in APART):
                found.add(f"{name}: {call}")
    assert found - EXCUSED == set()
    assert {call for call in EXCUSED if reads_the_host(call)} <= found


def test_patterns_have_no_class_of_all_white_space() -> None:
    """Name blanks and tabs in a pattern for what others wrote: a name may have the others."""
    found = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if reads_the_host(str(path.relative_to(PACKAGE)))
        and any(spaces_in_patterns(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == EXCUSED_PATTERNS


def test_text_files_of_the_host_are_read_as_they_are() -> None:
    """Decode bytes: reading as text makes lines of returns, which are part of names, too."""
    found = set()
    for path in FILES:
        name = str(path.relative_to(PACKAGE))
        calls = (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call))
        for call in map(ast.unparse, calls):
            is_text = ".read_text(" in call or re.search(r"\.open\((?!'rb'|os\.|[^)]*os\.O_)", call)
            if name.startswith("observe/") and name not in APART and is_text:
                found.add(f"{name}: {call}")
    assert found == set()


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("text.split()", True),
        ("text.split(None, 1)", True),
        ("text.split(maxsplit=1)", True),
        ("text.splitlines()", True),
        ("text.splitlines(True)", True),
        ("map(str.strip, rows)", True),
        ("f(x)[0].strip()", True),
        ("text.split(',')", False),
        ("'a b'.split()", False),
        ("text.strip(BLANKS)", False),
    ],
)
def test_splitting_is_found(code: str, *, is_found: bool) -> None:
    """Find each way to split or strip at all white space, so that the rule above is one."""
    assert any(splits(ast.parse(code))) == is_found


ODD = "a\x0bb\x0cc\x1cd\x85e\u2028f\xa0g\rh"


def test_lines_and_words_are_those_of_the_kernel() -> None:
    """Split at newlines, and at blanks and tabs, and at nothing else."""
    assert lines.split_lines(f"{ODD}\n\n{ODD}\n") == [ODD, "", ODD]
    assert lines.split_lines("") == []
    assert lines.split_words(f" \t{ODD} \t {ODD}\n") == [ODD, ODD]
    assert lines.split_words(f"a\t b  {ODD} c \n", 2) == ["a", "b", f"{ODD} c"]
    assert lines.split_words(" \n") == lines.split_words("", 2) == []
    assert lines.strip_blanks(f"\t{ODD}\xa0 \n") == f"{ODD}\xa0"
    assert lines.join_words(f" {ODD}\n\t x") == f"{ODD} x"
