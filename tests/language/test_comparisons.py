"""Comparisons with numbers in questions: what they may mean."""

import pytest

from opdbus.index.query.constraints import find_comparisons
from opdbus.state.conditions import Condition


@pytest.mark.parametrize(
    ("question", "meant"),
    [
        ("disks over 90 percent", [("percent", ">", 90)]),
        ("disks above 90% full", [("percent", ">", 90)]),
        ("Less than 10 % free?", [("percent", ">", 90)]),
        ("at least 20% left", [("percent", "<=", 80)]),
        ("packages larger than 2 GB", [("gb", ">", 2), ("mb", ">", 2048)]),
        ("smaller than 512 megabytes", [("gb", "<", 0.5), ("mb", "<", 512)]),
        ("accounts with a uid above 1000", [("uid", ">", 1000)]),
        ("ports below 1024", [("port", "<", 1024)]),
        ("listens above port 8000", [("port", ">", 8000)]),
        ("more than 4 cpus", [("cpus", ">", 4)]),
        ("files over 50 kilobytes", [("size", ">", 51200)]),
        ("mtu above the usual 1500", [("mtu", ">", 1500)]),
        ("at least two members", [("member", ">=", 2)]),
        ("uid over 9 and gid under 5", [("uid", ">", 9), ("gid", "<", 5)]),
    ],
)
def test_words_compare_with_a_number(question: str, meant: list[tuple[str, str, float]]) -> None:
    """The unit of a number names its field, else the word before, or else the word after it."""
    found = [meaning for one in find_comparisons(question) for meaning in one.meanings]
    for field, order, number in meant:
        assert Condition(field, order, f"{number:.6f}") in found


@pytest.mark.parametrize(
    "question",
    [
        "over the network",
        "more than enough",
        "over 192.0.2.1",
        "moreover 5",
        "under tender care",
        "under 10:30",
        "above 4/5",
        "",
    ],
)
def test_other_words_compare_nothing(question: str) -> None:
    """Addresses, times and the like are no numbers to compare with."""
    assert find_comparisons(question) == []


def test_a_document_is_not_full_of_comparisons() -> None:
    """Only the first few comparisons of a text are taken for such, however long it is."""
    assert len(find_comparisons("over 9 percent " * 10_000)) < 5
    assert find_comparisons("over " * 100_000) == []
