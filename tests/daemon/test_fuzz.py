"""The fuzzer finds nothing in a bounded run, and would find what it looks for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz import calls, judge, loading, mangled, marshal
from fuzz.documents import Document
from fuzz.drawn import each
from fuzz.judge import Tally
from fuzz.loading import Reading
from fuzz.marshal import ERROR_NAME, SIGNATURE, Message
from fuzz.shots import Shot, Shots
from harness.running import Running

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
        calls.shoot(daemon, tally, 2200, seed=4)
        assert not tally.faults, "\n".join(map(str, tally.faults[:3]))
        assert tally.share > 0.5
        assert tally.missed() == set()
        assert tally.calls >= 2200
        assert daemon.stop() == 0


def test_random_state_files_find_no_fault(daemons: Callable[..., Running], tmp_path: Path) -> None:
    """State files of all sorts are taken or refused with a place, and a bad one changes nothing."""
    reading, path = Reading(), tmp_path / "state.json"
    loading.load(tmp_path, reading, 150, seed=5)
    path.write_text('{"version": 1, "plugins": {}}')
    with daemons(STATE_FILE=path, LOG_LEVEL="info") as daemon:
        daemon.wait_for_log("state file read")
        loading.watch(daemon.bus, path, reading, 25, seed=6)
    assert not reading.faults
    assert reading.seen["files"] >= 150
    assert min(reading.seen["taken"], reading.seen["refused"]) > 40


def test_broken_messages_find_no_fault(daemons: Callable[..., Running]) -> None:
    """Messages that are changed, forged or cut do no harm, also those that the bus lets pass."""
    tally = Tally()
    with daemons(LOG_LEVEL="info") as daemon:
        daemon.wait_for_log("state file read")
        seen = mangled.mangle(daemon, tally, 700, seed=7)
        assert not tally.faults, "\n".join(map(str, tally.faults[:3]))
        assert min(seen["passed"], seen["ended"]) > 30
        assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (Document(b"{", is_sound=True), "sound but refused"),
        (Document(b'{"version": 1, "plugins": {}}', is_sound=False), "bad but taken"),
        (Document(b"{", is_sound=False), ""),
    ],
)
def test_what_is_a_fault_of_the_loader(tmp_path: Path, document: Document, words: str) -> None:
    """A sound file that is refused is a fault, and so is a bad one that is taken."""
    reading = Reading()
    loading.Loader(tmp_path / "file.json", reading).take(document)
    assert (words in "".join(reading.faults)) if words else not reading.faults


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

    def lines(seed: int) -> list[str]:
        found: list[str] = []
        shots = Shots(["/org/opdbus/state/a/b/c"]).any()
        each(shots, 30, seed, lambda shot: found.append(shot.line()))
        return found

    assert lines(1) == lines(1) != lines(2)
