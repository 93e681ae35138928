"""Writes the accuracy gate's check set from state.example.json and the questions about it."""

import json
from pathlib import Path

from opdbus.language.object_text import render
from opdbus.state.file import StateFile

ROOT = Path(__file__).parents[2]
CHECK_SET = ROOT / "opdbus" / "engine" / "check_set.json"


def made() -> str:
    """Give the file's content: texts of objects, and questions with the number of the right one."""
    _, items = StateFile(ROOT / "state.example.json").read()
    texts = {"/".join(item.identity[1:]): render(item).text for item in items}
    numbers = {name: number for number, name in enumerate(texts)}
    asked = json.loads((ROOT / "tests/data/questions.json").read_text())
    questions = [[row["question"], numbers[row["object"]]] for row in asked]
    check_set = {"texts": list(texts.values()), "questions": questions}
    return json.dumps(check_set, ensure_ascii=False, indent=0) + "\n"


if __name__ == "__main__":
    CHECK_SET.write_text(made())
