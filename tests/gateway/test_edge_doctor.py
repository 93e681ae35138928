"""The doctor's view of the gateway, from what systemd says of its units."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opdbus import doctor
from opdbus.platform import pip

SOCKET, SERVICE = "op-dbus-gateway.socket", "op-dbus-gateway.service"
SHOW = '#!/bin/sh\ncat "$0.$2" 2>/dev/null\n'
DEAD = {"LoadState": "loaded", "ActiveState": "inactive", "Result": "success"}
UP = {**DEAD, "ActiveState": "active"}


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., doctor.Verdict]:
    """Put a systemctl on the PATH that shows units of a table, and examine the reading gateway."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program = tmp_path / "systemctl"
    program.write_text(SHOW)
    program.chmod(0o755)

    def examine(
        socket: dict[str, str], service: dict[str, str], missing: str = ""
    ) -> doctor.Verdict:
        for name, shown in ((SOCKET, socket), (SERVICE, service)):
            text = "".join(f"{key}={value}\n" for key, value in shown.items())
            program.with_name(f"systemctl.{name}").write_text(text)
        (found,) = doctor.check_gateway(lambda module: module != missing)
        return found

    return examine


def test_a_gateway_that_is_off_is_no_fault(look: Callable[..., doctor.Verdict]) -> None:
    """Say that it is off, also where its libraries are missing."""
    assert look(DEAD, DEAD, "fastapi") == ("gateway", "ok", "off", "")


def test_a_gateway_that_waits_or_serves_is_well(look: Callable[..., doctor.Verdict]) -> None:
    """Say what it serves, and that it begins with the first request."""
    assert look(UP, DEAD)[1:3] == ("ok", "on; it starts with the first request")
    serving = {**UP, "StatusText": "Serving http on /x; last fault: GET / was answered 503"}
    assert look(UP, serving)[1:3] == ("ok", f"on; {serving['StatusText']}")


def test_missing_libraries_are_named(look: Callable[..., doctor.Verdict]) -> None:
    """Name the library and how to get it."""
    verdict = look(UP, DEAD, "fastapi")
    assert (verdict.status, verdict.finding) == ("wrong", "it is on, and lacks fastapi")
    assert verdict.advice == pip.install("op-dbus[http]")


def test_a_missing_token_is_told(look: Callable[..., doctor.Verdict]) -> None:
    """Repeat the reason that the gateway left in its status."""
    failed = {**DEAD, "ActiveState": "failed", "Result": "exit-code"}
    failed["StatusText"] = "Failed: http on 127.0.0.1:9900 needs a token"
    verdict = look(UP, failed)
    assert verdict[1:3] == ("wrong", "http on 127.0.0.1:9900 needs a token")
    assert SERVICE in verdict.advice
    socket = {**DEAD, "ActiveState": "failed", "Result": "trigger-limit-hit"}
    assert look(socket, DEAD)[1:3] == ("wrong", f"{SOCKET} failed")
