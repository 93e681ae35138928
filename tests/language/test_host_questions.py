"""The check set of questions about a whole host; benchmarks/host/questions.py asks them."""

import json
from collections import Counter

from conftest import ROOT

from opdbus.state import conditions

QUESTIONS = json.loads((ROOT / "tests/data/host_questions.json").read_text(encoding="utf-8"))
KINDS = {"value", "what", "where", "identifier"}


def test_there_are_enough_questions_of_each_kind() -> None:
    """At least 130 questions are asked, 60 of them about values."""
    kinds = Counter(question["about"] for question in QUESTIONS)
    assert kinds.keys() == KINDS
    assert kinds.total() >= 130
    assert kinds["value"] >= 60


def test_no_question_is_asked_twice() -> None:
    """No two questions differ in nothing but case and punctuation."""
    asked = Counter(question["question"].lower().rstrip("?") for question in QUESTIONS)
    assert [text for text, count in asked.items() if count > 1] == []


def test_every_question_has_right_answers() -> None:
    """Each question names objects, or conditions that can be read, or both."""
    for question in QUESTIONS:
        objects, rules = question.get("objects", []), question.get("where", [])
        assert objects or rules, question
        assert all(name.count("/") >= 2 for name in objects), question
        assert all(conditions.parse(rule) for rule in rules), question


def test_half_of_each_kind_is_held_back() -> None:
    """Of each kind one half is looked at, and the other is held back."""
    halves = Counter((question["about"], question["set"]) for question in QUESTIONS)
    for kind in KINDS:
        assert 0 <= halves[kind, "held"] - halves[kind, "dev"] <= 1
