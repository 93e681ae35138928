"""The fuzzer finds nothing in a bounded run, and would find what it looks for."""

from collections.abc import Callable
from typing import Any

import pytest
from fuzz import calls, judge, marshal
from fuzz.judge import Tally
from fuzz.marshal import ERROR_NAME, SIGNATURE, Message
from fuzz.shots import Shot
from running import Running

SHOT = Shot("org.opdbus.State1.Get", "/org/opdbus/state", "org.opdbus.State1", "Get", "oa{sv}", ())


def answer(error: str = "", signature: str = "s", *body: Any) -> Message:
    """Make an answer."""
    kind = marshal.ERROR if error else marshal.RETURN
    fields = {ERROR_NAME: error, SIGNATURE: signature}
    return Message(kind, 0, 1, fields, marshal.encode(signature, body or ("a sentence",)))


def test_random_calls_find_no_fault(daemons: Callable[..., Running]) -> None:
    """Thousands of random calls crash nothing, are all answered, and reach every method."""
    tally = Tally()
    with daemons(LOG_LEVEL="info") as daemon:
        daemon.wait_for_log("model proven")
        daemon.wait_for_log("state file read")
        calls.shoot(daemon, tally, 4000, seed=4)
        assert not tally.faults
        assert tally.share > 0.5
        assert tally.missed() == set()
        assert tally.calls >= 4000
        assert daemon.stop() == 0


FREEDESKTOP, OURS = "org.freedesktop.DBus.Error.", "org.opdbus.Error."


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (answer(OURS + "Internal"), "internal"),
        (answer(OURS + "Truncated"), "not listed"),
        (answer(FREEDESKTOP + "PropertyReadOnly"), "not listed"),
        (answer(FREEDESKTOP + "InvalidArgs", "s", " "), "without a sentence"),
        (answer("", "u", 1), "type is 'u'"),
        (answer(), ""),
        (answer(FREEDESKTOP + "LimitsExceeded"), ""),
        (answer(FREEDESKTOP + "UnknownObject"), ""),
    ],
)
def test_what_is_a_fault(given: Message, words: str) -> None:
    """Internal errors, errors that the XML does not list, and replies of other types are faults."""
    found = judge.wrong(SHOT, given)
    assert (words in found) if words else not found


@pytest.mark.parametrize(
    ("given", "is_reached"),
    [
        (answer(), True),
        (answer(FREEDESKTOP + "UnknownObject"), True),
        (answer(FREEDESKTOP + "InvalidArgs"), True),
        (answer(FREEDESKTOP + "InvalidArgs", "s", "Get takes arguments of type 's'"), False),
        (answer(FREEDESKTOP + "UnknownMethod"), False),
        (answer(FREEDESKTOP + "UnknownInterface"), False),
        (answer(FREEDESKTOP + "AccessDenied"), False),
    ],
)
def test_what_reaches_a_handler(given: Message, is_reached: bool) -> None:  # noqa: FBT001
    """What dispatch alone answers has reached no handler."""
    assert judge.reached(SHOT, given) == is_reached


def test_same_seed_gives_the_same_calls() -> None:
    """A run can be repeated by its seed."""
    seen: list[list[str]] = [[], [], []]
    for lines, seed in zip(seen, (1, 1, 2), strict=True):
        calls.each_shot(
            ["/org/opdbus/state/a/b/c"], 30, seed, lambda s, to=lines: to.append(s.line())
        )
    assert seen[0] == seen[1] != seen[2]
