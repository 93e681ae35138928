"""Words that name a sort of things."""

import numpy as np
import pytest

from opdbus import kinds
from opdbus.index.search import KIND_WEIGHT, Raised, named_kinds, rank
from opdbus.state.object import Thing


@pytest.mark.parametrize(
    ("question", "thing", "is_named"),
    [
        ("open ports", ("net", "listener", "tcp 0.0.0.0:22"), True),
        ("which file systems are full?", ("mounts", "mount", "/srv"), True),
        ("which file systems are full?", ("files", "file", "/etc/fstab"), False),
        ("configuration files", ("files", "file", "/etc/fstab"), True),
        ("services that failed", ("systemd", "unit", "a.service"), True),
        ("services that failed", ("systemd", "unit", "a.timer"), False),
        ("units that failed", ("systemd", "unit", "a.timer"), True),
        ("which version of it", ("packages", "package", "libc6:amd64"), True),
        ("how much memory", ("system", "fact", "hardware"), True),
        ("how much memory", ("system", "fact", "time"), False),
        ("keeps the clock right", ("printers", "printer", "office"), False),
    ],
)
def test_words_name_sorts_of_things(
    question: str, thing: tuple[str, str, str], *, is_named: bool
) -> None:
    """A question names things by words of their sort, the longest phrase counts."""
    of_thing, _ = kinds.of_thing(Thing(*thing))
    assert bool(of_thing & kinds.asked(question)) == is_named


def test_what_others_have_comes_after_them() -> None:
    """A group or a file loses a little where nobody asks for it, and only there."""
    service = kinds.of_thing(Thing("systemd", "unit", "web.service"))
    group = kinds.of_thing(Thing("users", "group", "web"))
    known, less = np.array([service[0], group[0]]), np.array([service[1], group[1]], np.float32)
    nobody = named_kinds(kinds.asked("the web"), known, less, None)
    assert nobody[0] == 0 > nobody[1]
    assert named_kinds(kinds.asked("group of the web"), known, less, None)[1] > 0


def test_the_rare_value_of_the_sort_comes_first() -> None:
    """What is of the sort and has the value that a question names comes before both others."""
    known, less = np.array([1, 1, 0]), np.zeros(3, np.float32)
    values = np.array([0.9, 0, 0.9], np.float32)
    raised = Raised(values, named_kinds(1, known, less, values))
    scores = np.array([0.3, 0.3, 0.5], np.float32)
    assert next(rank(scores, np.zeros(3, np.float32), raised=raised))[0] == 0
    assert named_kinds(1, known, less, None).tolist() == pytest.approx([KIND_WEIGHT] * 2 + [0])


def test_the_table_fits() -> None:
    """Keep one bit for each row, in a signed number of 64."""
    assert len(kinds.rows()) <= 63
