"""The rules of questions that `benchmarks/answers/ablation.py` leaves out."""

import subprocess
import sys

from conftest import ROOT

PROGRAM = """
import ablation

rules = ablation.every_rule()
for rule in rules:
    with ablation.left_out(rule):
        pass
print(len({(rule.part, rule.name) for rule in rules}) > 200)
"""


def test_every_rule_can_be_left_out() -> None:
    """Each rule is found in the program under the name that the benchmark has for it."""
    folders = [ROOT, ROOT / "tests", ROOT / "benchmarks", ROOT / "benchmarks" / "answers"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": ":".join(map(str, folders)), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
