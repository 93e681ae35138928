"""Write the README's generated parts: settings, figures and the map of modules."""

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path

from opdbus import config

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"


def generated() -> str:
    """Give the README with its generated parts as they must be."""
    text = README.read_text(encoding="utf-8")
    for name, make in (("settings", settings), ("figures", figures), ("map", module_map)):
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        part = make()
        text, count = re.subn(
            pattern, lambda m, part=part: m[1] + part + "\n" + m[2], text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"README.md must have one part marked {name}")
    return text


def settings() -> str:
    """Make a row of each setting."""
    rows = [
        f"| `{s.variable}` | {f'`{s.default}`' if s.default else ''} | {s.doc} |"
        for s in config.SETTINGS
    ]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


_FIGURES = """\
From `benchmarks/results/{file}`; `make bench` makes such a report. Measured on {processors}
processors of {processor} ({features}), Python {python}, {packages}.

Search quality on the check set: {questions} questions about `state.example.json`, more than half of
which share no content word with their object; mean reciprocal rank. The example's descriptions, the
texts and the weight were chosen with this set in view, so new questions will do worse.

| lexical (BM25) | vector (cosine) | hybrid | hybrid, no shared word |
|---|---|---|---|
| {lexical:.3f} | {vector:.3f} | **{hybrid:.3f}** | {unshared:.3f} |

What is embedded decides; by vector alone, on the same questions:

| text | mean reciprocal rank |
|---|---|
{texts}

With {objects:,} objects and the medium model:

| | |
|---|---|
{rows}"""


def figures() -> str:
    """Make the tables of the newest committed benchmark report."""
    newest = max(RESULTS.glob("*.json"))
    report = json.loads(newest.read_text(encoding="utf-8"))
    quality, scale, machine = report["quality"], report["scale"], report["machine"]
    return _FIGURES.format(
        file=newest.name,
        processors=machine["processors"],
        processor=machine["processor"],
        features=", ".join(machine["features"]),
        python=machine["python"],
        packages=", ".join(f"{name} {version}" for name, version in machine["packages"].items()),
        questions=quality["questions"],
        lexical=quality["lexical"],
        vector=quality["vector"],
        hybrid=quality["hybrid"],
        unshared=quality["hybrid, no shared word"],
        texts=_rows((name, f"{mrr:.3f}") for name, mrr in quality["vector by text"].items()),
        objects=scale["objects"],
        rows=_rows(_scale_rows(scale)),
    )


def _rows(cells: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"| {left} | {right} |" for left, right in cells)


def _scale_rows(scale: dict) -> list[tuple[str, str]]:
    search, change = scale["search"], scale["one change"]
    command = scale["command line"]
    return [
        ("first start, all vectors computed", f"{scale['first start s']} s"),
        ("restart, nothing computed, until ready", f"{scale['restart s']} s"),
        ("`Search` over D-Bus", f"p50 {search['p50 ms']} ms, p99 {search['p99 ms']} ms"),
        ("one object changed in the file, until `Vectorized`", f"{change['median ms']} ms"),
        ("resident memory", f"{scale['steady memory MiB']} MiB"),
        ("SIGTERM until gone", f"{scale['stop s']} s"),
        ("`op-dbus --help`, whole process", f"{command['help median ms']} ms"),
        ("`op-dbus status`, whole process", f"{command['status median ms']} ms"),
    ]


def module_map() -> str:
    """List every module with its first line."""
    lines = []
    for path in sorted((ROOT / "opdbus").rglob("*.py")):
        first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[
            0
        ]
        name = path.relative_to(ROOT).as_posix().removesuffix("__init__.py")
        lines.append(f"    {name:<32} {first}")
    return "\n".join(lines)


if __name__ == "__main__":
    README.write_text(generated(), encoding="utf-8")
