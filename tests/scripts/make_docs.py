"""Write the generated parts of README.md and docs/; `make docs` runs it."""

import ast
import re
from functools import partial
from pathlib import Path

from docs_parts import (
    answers,
    atlas,
    bus,
    cascade,
    endurance,
    engine,
    figures,
    fleet,
    forward_pass,
    host,
    http_servers,
    insight,
    limits,
    many,
    modules,
    observers,
    openapi,
    pipeline,
    plan,
    precisions,
    questions,
    rules,
)
from docs_parts.tables import ROOT

from opdbus import config
from opdbus.platform.metrics import PREFIX, definitions

FILES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
FILES += sorted((ROOT / "docs").glob("*.md"))


def settings() -> str:
    """Make a row of each setting."""
    rows = [
        f"| `{s.variable}` | {f'`{s.default}`' if s.default else ''} | {s.doc} |"
        for s in config.SETTINGS
    ]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def metrics() -> str:
    """Make a row of each metric."""
    rows = [
        f"| `{PREFIX}{name}` | {one.kind} | {', '.join(one.labels)} | {one.help} |"
        for name, one in definitions().items()
    ]
    return "\n".join(["| metric | type | labels | is |", "|---|---|---|---|", *rows])


def quoted(name: str, function: str) -> str:
    """Quote a function of ours."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    )
    return f"[`{name}`]({name}):\n\n```py\n{ast.get_source_segment(text, found)}\n```"


PARTS = {
    "cost": figures.cost,
    "settings": settings,
    "metrics": metrics,
    "figures": figures.figures,
    "host": host.host,
    "busy_day": host.busy_day,
    "day_questions": questions.day_questions,
    "host_questions": questions.host_questions,
    "install": figures.install,
    "packages": figures.packages,
    "endurance": endurance.endurance,
    "two_stages": cascade.two_stages,
    "fleet": fleet.fleet,
    "map": atlas.map_figures,
    "insight": insight.insight,
    "many": many.many,
    "answers": answers.answers,
    "exams": answers.exams,
    "rules": rules.rules,
    "pipeline": pipeline.pipeline,
    "engine": engine.engine,
    "peers": engine.peers,
    "http_servers": http_servers.http_servers,
    "forward_pass": forward_pass.forward_pass,
    "precisions": precisions.precisions,
    "interfaces": bus.interfaces,
    "errors": bus.error_names,
    "limits": limits.limit_rows,
    "rooms": modules.rooms,
    "modules": modules.modules,
    "example_of_lifetimes": partial(quoted, "opdbus/platform/tasks.py", "until_first_ends"),
    "example_of_observers": observers.example,
    "volatile": observers.volatile,
    "example_of_rules": partial(quoted, "opdbus/index/query/query_terms.py", "terms"),
}


def generated() -> dict[Path, str]:
    """Return each file with its generated parts, each of which is in one file, and whole files."""
    left = set(PARTS)

    def part(match: re.Match[str]) -> str:
        left.remove(match[1])
        return f"<!-- {match[1]} -->\n{PARTS[match[1]]()}\n<!-- /{match[1]} -->"

    pattern = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", re.DOTALL)
    texts = {path: pattern.sub(part, path.read_text(encoding="utf-8")) for path in FILES}
    if left:
        raise ValueError(f"no file has the parts {', '.join(sorted(left))}")
    return texts | {plan.FILE: plan.plan(), openapi.FILE: openapi.openapi()}


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
