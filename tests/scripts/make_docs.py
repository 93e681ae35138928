"""Write the tables of docs/ that code decides; `make docs` runs it."""

import re
from pathlib import Path

from docs_parts import bus, limits, observers
from docs_parts.tables import ROOT, table

from opdbus import config
from opdbus.platform.metrics import PREFIX, definitions

FILES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
FILES += sorted((ROOT / "docs").glob("*.md"))


def settings() -> str:
    """Make a row of each setting."""
    rows = (
        (f"`{s.variable}`", f"`{s.default}`" if s.default else "", s.doc) for s in config.SETTINGS
    )
    return table(("variable", "default", "meaning"), rows)


def metrics() -> str:
    """Make a row of each metric."""
    rows = (
        (f"`{PREFIX}{name}`", one.kind, ", ".join(one.labels), one.help)
        for name, one in definitions().items()
    )
    return table(("metric", "type", "labels", "is"), rows)


PARTS = {
    "settings": settings,
    "metrics": metrics,
    "interfaces": bus.interfaces,
    "errors": bus.error_names,
    "limits": limits.limit_rows,
    "volatile": observers.volatile,
    "example_of_observers": observers.example,
}


def generated() -> dict[Path, str]:
    """Return each file with its generated parts, each of which is in one file."""
    left = set(PARTS)

    def part(match: re.Match[str]) -> str:
        left.remove(match[1])
        return f"<!-- {match[1]} -->\n{PARTS[match[1]]()}\n<!-- /{match[1]} -->"

    pattern = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", re.DOTALL)
    texts = {path: pattern.sub(part, path.read_text(encoding="utf-8")) for path in FILES}
    if left:
        raise ValueError(f"no file has the parts {', '.join(sorted(left))}")
    return texts


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
