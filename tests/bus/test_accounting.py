"""Calls that run are counted, and more than a share of them are refused."""

import os
from dataclasses import replace

import pytest

from opdbus.bus.admission import accounting
from opdbus.bus.admission.accounting import RunningCalls
from opdbus.bus.admission.limits import (
    CALLS_ALWAYS_LET_IN,
    MAX_CALL_BYTES,
    MAX_CALLS,
    MAX_CALLS_BYTES,
    MAX_FILES,
    MAX_TEXTS_OF_A_USER,
)
from opdbus.bus.transport import descriptors
from opdbus.bus.transport.descriptors import Descriptor, FdCloser
from opdbus.bus.transport.messages import Call
from opdbus.errors import LimitsExceeded


def call(sender: str = ":1.1", size: int = 200, *, is_whole: bool = True) -> Call:
    """Give a call."""
    return Call(sender, "/", "", "C", "", 1, wants_reply=True, is_interactive=False, size=size,
                is_whole=is_whole, data=b"")  # fmt: skip


def fill(load: RunningCalls, sender: str, count: int) -> list[Call]:
    """Let in calls of a connection."""
    calls = [call(sender) for _ in range(count)]
    for one in calls:
        load.admit(one)
    return calls


def test_a_connection_has_a_limit() -> None:
    """Refuse one more call than a connection may have, let others in, and forget what ended."""
    load = RunningCalls()
    calls = fill(load, ":1.1", MAX_CALLS["connection"])
    with pytest.raises(LimitsExceeded, match="128 calls of this connection"):
        load.admit(call())
    fill(load, ":1.2", 1)
    load.release(calls.pop())
    fill(load, ":1.1", 1)
    with pytest.raises(LimitsExceeded):
        load.admit(call())


def test_a_user_has_a_limit_over_all_connections() -> None:
    """Refuse a user's calls past the user's share, but not a new connection's first ones."""
    load = RunningCalls()
    for number in range(MAX_CALLS["user"] // MAX_CALLS["connection"]):
        load.accounts.identify(f":1.{number}", 1000)
        fill(load, f":1.{number}", MAX_CALLS["connection"])
    load.accounts.identify(":1.99", 1000)
    first = fill(load, ":1.99", CALLS_ALWAYS_LET_IN)
    with pytest.raises(LimitsExceeded, match="514 calls of this user"):
        load.admit(call(":1.99"))
    load.accounts.identify(":1.100", 1001)
    fill(load, ":1.100", CALLS_ALWAYS_LET_IN + 1)
    for one in first:
        load.release(one)
    fill(load, ":1.99", CALLS_ALWAYS_LET_IN)


def test_all_users_have_a_limit() -> None:
    """Refuse calls past what all may have, but not a connection's first ones."""
    load = RunningCalls()
    for number in range(MAX_CALLS["total"] // MAX_CALLS["connection"]):
        load.accounts.identify(f":1.{number}", number)
        fill(load, f":1.{number}", MAX_CALLS["connection"])
    fill(load, ":1.99", CALLS_ALWAYS_LET_IN)
    with pytest.raises(LimitsExceeded, match="of all users"):
        load.admit(call(":1.99"))


def test_large_calls_are_counted_by_their_bytes() -> None:
    """Refuse large calls past what a connection may hold; small ones still get in."""
    load = RunningCalls()
    for _ in range(MAX_CALLS_BYTES["connection"] // (1 << 20)):
        load.admit(call(size=1 << 20))
    with pytest.raises(LimitsExceeded, match="bytes of calls of this connection"):
        load.admit(call(size=1 << 20))
    load.admit(call())


def test_a_call_that_was_not_taken_in_is_refused() -> None:
    """Say how large it was, and count nothing."""
    load = RunningCalls()
    with pytest.raises(LimitsExceeded, match=f"33000000 bytes, past the limit of {MAX_CALL_BYTES}"):
        load.admit(call(size=33_000_000, is_whole=False))
    fill(load, ":1.1", MAX_CALLS["connection"])


def test_open_files_have_limits() -> None:
    """Count the files that come with calls, and refuse calls that have lost theirs."""
    load = RunningCalls()
    first = replace(call(), descriptors=[Descriptor(-1)] * MAX_FILES["connection"])
    load.admit(first)
    one = replace(call(), descriptors=[Descriptor(-1)])
    with pytest.raises(LimitsExceeded, match="32 open files of calls of this connection"):
        load.admit(one)
    load.admit(replace(one, sender=":1.2"))
    load.release(first)
    load.admit(one)
    with pytest.raises(LimitsExceeded, match="could not be taken"):
        load.admit(replace(call(), lost_files=True))


def test_files_in_memory_are_taken_whatever_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse other files while earlier ones cannot be closed, and say which would be taken."""
    stuck = FdCloser(threads=0)
    for number in range(MAX_FILES["total"] + 1):
        stuck.close((1 << 20) + number)
    for module in (descriptors, accounting):
        monkeypatch.setattr(module, "ELSEWHERE", stuck)
    load = RunningCalls()
    memory, reader, writer = map(Descriptor, (os.memfd_create("texts"), *os.pipe()))
    load.admit(replace(call(), descriptors=[memory]))
    for files in ([reader], [memory, writer]):
        with pytest.raises(LimitsExceeded, match="send a memfd"):
            load.admit(replace(call(), descriptors=files))


def test_texts_have_a_limit_for_each_user() -> None:
    """Refuse texts past a user's share of the queue; another user has a share as well."""
    load = RunningCalls()
    with load.texts.reserve({"user": 1000}, MAX_TEXTS_OF_A_USER - 1):
        with (
            pytest.raises(LimitsExceeded, match="16383 texts of this user"),
            load.texts.reserve({"user": 1000}, 2),
        ):
            pass
        with load.texts.reserve({"user": 1000}, 1), load.texts.reserve({"user": 1001}, 2):
            pass
    with load.texts.reserve({"user": 1000}, MAX_TEXTS_OF_A_USER):
        pass
