"""A text says what an object is, in words, and nothing that means nothing."""

import pytest

from opdbus.state.flatten import Reader
from opdbus.state.object import FILE, Identity, StateObject
from opdbus.text import render


def test_a_hash_is_no_part_of_a_text() -> None:
    """Leave out the name of an object that has none of its own, also where several are equal."""
    rules = [{"port": 80, "action": "accept"}] * 2
    _, objects = Reader().read({"firewall": {"rules": rules}})
    text = "firewall rule: allow traffic through, let packets pass; action accept, port 80"
    assert [render(item).text for item in objects] == [text] * 2


@pytest.mark.parametrize("name", ["~home", "0123456789ab", "~0123456789abc"])
def test_a_name_that_looks_like_a_hash_stays(name: str) -> None:
    """Keep every name that is not exactly of the form of a hash."""
    item = StateObject(Identity(FILE, "p", "k", name), {})
    assert render(item).text == f"p k {name}"
