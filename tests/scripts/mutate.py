"""Change random lines of opdbus, one at a time, and count the changes that a test catches.

`python tests/scripts/mutate.py --tree DIR --json REPORT` works on a copy of DIR, a checkout with
its `.venv`. The copy and the map of its tests stay in `--work`; a second run goes on with them.

- The map: each test runs once, and the functions of opdbus that it calls in its own process are
  noted. Left out are tests that start a daemon of their own or boot systemd, that a marker keeps
  for other machines, that fail, or that take longer than SLOWEST.
- A mutant: a line is drawn from all lines that can be changed, then one of its changes. Imports,
  annotations, docstrings, log calls, dataclass(...), `__all__` and `__slots__` are not changed.
- Its tests: those that call the function around the line or, outside functions, any function of
  its file or of a file that imports it. Test files that name the module come first, then quick
  tests, up to BUDGET seconds as measured for the map. One that fails or hangs catches the mutant.
"""

import argparse
import ast
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

LEFT_OUT = ("system", "gpu", "fuzz", "robustness")
MARKERS = "not (model or torch or gpu or gpu_package or system)"
SLOWEST = 20.0  # seconds of one test
BUDGET = 20.0  # seconds of the tests of one mutant
HANG = 60.0  # seconds at least, and five times what the tests take unmutated
MEMORY = 1 << 34  # bytes of address space: a size may be what was changed
UNSEEN = re.compile(r"log\.|dataclass\(|cast\(|__(all|slots)__ =|if TYPE_CHECKING|import |from ")
SWAPS = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.Add: "-",
    ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.BitAnd: "|",
}  # fmt: skip
# a path, the first line of the function or 0, a line, the bytes to replace from and to, and by what
Change = tuple[str, int, int, int, int, str]


def find_changes(root: Path, path: str) -> Iterator[Change]:
    """Yield every change of a file."""
    source = (root / path).read_bytes()
    starts = [0]
    for row in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    waiting: list[tuple[Any, int]] = [(ast.parse(source), 0)]
    while waiting:
        node, function = waiting.pop()
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if text or (isinstance(node, ast.stmt | ast.Call) and UNSEEN.match(ast.unparse(node))):
            continue
        if new := replace(node):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            yield path, function, node.lineno, begin, end, new
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = min(n.lineno for n in (node, *node.decorator_list))
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            waiting += [(n, function) for n in (*node.decorator_list, *defaults)]
            waiting += [(n, inside) for n in node.body]
        elif isinstance(node, ast.AnnAssign):
            waiting += [(node.value, function)] if node.value else []
        elif not isinstance(node, ast.JoinedStr):  # whose parts have no position of their own
            waiting += [(n, function) for n in ast.iter_child_nodes(node)]


def replace(node: Any) -> str | None:  # noqa: C901 -- one case a kind of node
    """Return what stands instead of a node."""
    match node:
        case ast.Compare(left=left, ops=[swap], comparators=[right]) if type(swap) in SWAPS:
            return f"(({ast.unparse(left)}) {SWAPS[type(swap)]} ({ast.unparse(right)}))"
        case ast.BinOp(left=left, op=swap, right=right) if type(swap) in SWAPS:
            return f"(({ast.unparse(left)}) {SWAPS[type(swap)]} ({ast.unparse(right)}))"
        case ast.BoolOp():
            word = " or " if isinstance(node.op, ast.And) else " and "
            return "(" + word.join(f"({ast.unparse(value)})" for value in node.values) + ")"
        case ast.UnaryOp(op=ast.Not()):
            return f"({ast.unparse(node.operand)})"
        case ast.Constant(value=int() | float() as value):
            return str(not value) if isinstance(value, bool) else f"({value + 1!r})"
        case ast.Constant(value=str() as value):
            return repr(value + "X")
        case ast.JoinedStr():
            return f"('X' + {ast.unparse(node)})"
        case ast.IfExp():
            return f"({ast.unparse(node.orelse)})"
        case ast.Return(value=ast.expr()) if ast.unparse(node) != "return None":
            return "return None"
        case ast.Expr() | ast.Raise() | ast.AugAssign() | ast.Delete():
            return "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return "pass"
        case ast.Continue():
            return "break"
    return None


class CallMap:
    """The pytest plugin: notes how long each test takes and which functions of opdbus it calls."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._tests = json.loads(report.read_text()) if report.exists() else {}
        self._codes: dict[int, Any] = {}

    def _trace(self, frame: Any, _event: str, _arg: Any) -> None:
        self._codes[id(frame.f_code)] = frame.f_code

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:  # noqa: D102
        daemons, known = {"daemons", "shared_daemons"}, self._tests
        items[:] = [i for i in items if i.nodeid not in known and not daemons & {*i.fixturenames}]
        threading.settrace(self._trace)

    def pytest_runtest_logstart(self) -> None:  # noqa: D102
        self._codes, self._passed, self._began = {}, True, time.monotonic()
        sys.settrace(self._trace)

    def pytest_runtest_logreport(self, report: Any) -> None:  # noqa: D102
        self._passed = self._passed and report.passed
        if report.when == "teardown":
            places = {(c.co_filename, c.co_firstlineno) for c in list(self._codes.values())}
            own = {f"opdbus{f.split('/opdbus', 1)[1]}:{n}" for f, n in places if "/opdbus/" in f}
            took = time.monotonic() - self._began if self._passed else math.inf
            self._tests[report.nodeid] = took, sorted(own)

    def pytest_sessionfinish(self) -> None:  # noqa: D102
        self._report.write_text(json.dumps(self._tests))


def pytest_configure(config: Any) -> None:
    """Note what tests call."""
    config.pluginmanager.register(CallMap(Path(os.environ["MUTATE_MAP"])))


class Tree:
    """A copy of a checkout and the map of its tests."""

    def __init__(self, source: Path, work: Path) -> None:
        self.root, self._log, report = work / "tree", work / "pytest.log", work / "map.json"
        unwanted = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", ".hypothesis")
        # also over the copy of a run that was killed, which left its last change there
        shutil.copytree(source, self.root, symlinks=True, ignore=unwanted, dirs_exist_ok=True)
        if not (self.root / ".venv").exists():
            (self.root / ".venv").symlink_to(source.resolve() / ".venv")
        others = [f"--ignore=tests/{name}" for name in LEFT_OUT]
        self._pytest("-p", "mutate", "-m", MARKERS, "tests", *others, MUTATE_MAP=str(report))
        every = json.loads(report.read_text())
        self._tests = {test: row for test, row in every.items() if row[0] <= SLOWEST}
        self.files = sorted(str(f.relative_to(self.root)) for f in self.root.glob("opdbus/**/*.py"))
        read = {*self.files, *(test.split("::")[0] for test in self._tests)}
        self._texts = {file: (self.root / file).read_text() for file in read}

    def _pytest(self, *arguments: str, limit: float | None = None, **variables: str) -> int:
        """Run tests in the copy; return pytest's exit status, or -1 if it hangs."""
        path = f"{self.root}:{self.root}/tests:{Path(__file__).resolve().parent}"
        command = ["prlimit", f"--as={MEMORY}", ".venv/bin/python", "-m", "pytest", *arguments]
        environment = {**os.environ, "PYTHONPATH": path, **variables}
        settings: Any = {"cwd": self.root, "env": environment, "start_new_session": True}
        with self._log.open("wb") as log:
            child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **settings)
        try:
            return child.wait(limit)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def choose(self, path: str, function: int) -> tuple[list[str], float, int]:
        """Return the tests to run, how long they take unmutated, and how many there are in all."""
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        package, _, name = module.rpartition(".")
        imports = rf"from {package} import (\([^)]*|[^\n]*)\b{name}\b|(from|import) {module}\b"
        naming = {file for file, text in self._texts.items() if re.search(imports, text)}
        able = []
        for test, (took, called) in self._tests.items():
            is_first, files = test.split("::")[0] in naming, {c.split(":")[0] for c in called}
            outside = is_first or files & {path, *naming}
            if f"{path}:{function}" in called if function else outside:
                able.append((not is_first, took, test))
        chosen, total = [], 0.0
        for _, took, test in sorted(able):
            if chosen and total + took > BUDGET:
                break
            chosen.append(test)
            total += took
        return chosen, total, len(able)

    def judge(self, change: Change) -> dict[str, Any]:
        """Change the file, run its tests, restore it."""
        path, function, line, begin, end, new = change
        chosen, total, able = self.choose(path, function)
        file = self.root / path
        before, times = file.read_bytes(), file.stat()
        row: dict[str, Any] = {"at": f"{path}:{line}", "old": before[begin:end].decode()}
        row |= {"new": new, "tests": len(chosen), "of": able, "outcome": "not covered"}
        if not chosen:
            return row
        try:
            file.write_bytes(before[:begin] + new.encode() + before[end:])
            limit = max(HANG, 5 * total)
            code = self._pytest("-x", "--tb=no", *chosen, limit=limit, PYTHONDONTWRITEBYTECODE="1")
        finally:
            file.write_bytes(before)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        if code == 0:
            return row | {"outcome": "survived"}
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", self._log.read_text(), re.MULTILINE)
        return row | {"outcome": "caught", "by": failed[1] if failed else f"exit status {code}"}


def share(caught: int, count: int) -> list[float]:
    """Return a share in percent and its 95 % interval (Wilson)."""
    count, z = max(count, 1), 1.96
    p = caught / count
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count**2)) / (1 + z * z / count)
    return [round(100 * number, 1) for number in (p, middle - half, middle + half)]


def main() -> None:
    """Measure one checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--work", type=Path, help="a folder for the copy and the map; default: new")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after that long")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tree = Tree(given.tree, given.work or Path(tempfile.mkdtemp(prefix="mutate-")))
    lines: dict[tuple[str, int], list[Change]] = {}
    for path in tree.files:
        for change in find_changes(tree.root, path):
            lines.setdefault((path, change[2]), []).append(change)
    draw, rows, began = random.Random(given.seed), [], time.monotonic()  # noqa: S311
    for place in draw.sample(sorted(lines), given.count):
        if time.monotonic() - began > 60 * given.minutes:
            break
        rows.append(tree.judge(draw.choice(lines[place])))
        print(json.dumps(rows[-1]), flush=True)
    outcomes = Counter(row["outcome"] for row in rows)
    caught, covered = outcomes["caught"], len(rows) - outcomes["not covered"]
    report = {"lines": len(lines), "mutants": len(rows), **outcomes}
    report |= {"caught of covered, %": share(caught, covered)}
    report |= {"caught of all, %": share(caught, len(rows))}
    print(json.dumps(report))
    if given.json:
        report["not caught"] = [row for row in rows if row["outcome"] != "caught"]
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
