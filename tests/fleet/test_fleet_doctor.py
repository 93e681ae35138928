"""The doctor's view of the sender, from what systemd says of its unit."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opdbus import doctor
from opdbus.platform import pip

SHOW = '#!/bin/sh\ncat "$0.shown"\n'
DEAD = {"LoadState": "loaded", "ActiveState": "inactive", "Result": "success"}
UP = {**DEAD, "ActiveState": "active"}
FAILED = {**DEAD, "ActiveState": "failed", "Result": "exit-code"}


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., doctor.Verdict]:
    """Put a systemctl on the PATH that shows the sender's unit, and examine it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program = tmp_path / "systemctl"
    program.write_text(SHOW)
    program.chmod(0o755)

    def examine(shown: dict[str, str], missing: str = "") -> doctor.Verdict:
        text = "".join(f"{key}={value}\n" for key, value in shown.items())
        program.with_name("systemctl.shown").write_text(text)
        return doctor.check_fleet(lambda module: module != missing)

    return examine


def test_a_sender_that_is_off_is_no_fault(look: Callable[..., doctor.Verdict]) -> None:
    """Say that it is off, also where its library is missing."""
    assert look(DEAD, "asyncpg") == ("fleet", "ok", "off", "")


def test_a_sender_that_sends_is_well(look: Callable[..., doctor.Verdict]) -> None:
    """Say how far it is."""
    sent = {**UP, "StatusText": "All is sent, up to row 7 of history"}
    assert look(sent)[:3] == ("fleet", "ok", "on; All is sent, up to row 7 of history")


def test_a_sender_that_cannot_send_is_told(look: Callable[..., doctor.Verdict]) -> None:
    """Repeat why nothing can be sent, and name a missing library."""
    waits = {**UP, "StatusText": "Cannot send, next attempt in 60 s: db cannot be reached"}
    assert look(waits)[1:3] == ("warning", waits["StatusText"])
    fault = look({**FAILED, "StatusText": "Failed: OP_DBUS_FLEET_DATABASE is not set"})
    assert fault[1:3] == ("wrong", "OP_DBUS_FLEET_DATABASE is not set")
    verdict = look(UP, "asyncpg")
    assert verdict[1:3] == ("wrong", "it is on, and lacks asyncpg")
    assert verdict.advice == pip.install("op-dbus[fleet]")


def test_the_server_is_told_where_it_is_on(look: Callable[..., doctor.Verdict]) -> None:
    """Say where it serves, and why it does not; nothing on the many hosts that have none."""
    look(DEAD)
    assert doctor.check_fleet_server() == []
    look({**UP, "StatusText": "serving db1:5433; 3 sessions"})
    (verdict,) = doctor.check_fleet_server()
    assert verdict[:3] == ("fleet server", "ok", "on; serving db1:5433; 3 sessions")
    look({**FAILED, "StatusText": "Failed: the folder is in use"})
    (verdict,) = doctor.check_fleet_server()
    assert verdict[1:3] == ("wrong", "the folder is in use")
