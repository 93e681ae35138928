"""Reports of benchmarks that README and docs name are committed, and small."""

import re

from conftest import ROOT

RESULTS = ROOT / "benchmarks" / "results"
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]


def test_named_reports_are_committed() -> None:
    """Every report that a page names exists."""
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"benchmarks/results/([\w.-]+\.\w+)", text):
            assert (RESULTS / name).is_file(), f"{path.name}: {name}"


def test_reports_are_summaries() -> None:
    """No report has more than 8 KiB."""
    assert not [path.name for path in RESULTS.iterdir() if path.stat().st_size > 8192]


def test_scripts_that_pages_name_exist() -> None:
    """Every script of benchmarks that a page names exists; decisions name what was there then."""
    for path in TEXTS:
        if path.parent.name != "decisions":
            for name in re.findall(r"benchmarks/[\w/]+\.py", path.read_text(encoding="utf-8")):
                assert (ROOT / name).is_file(), f"{path.name}: {name}"
