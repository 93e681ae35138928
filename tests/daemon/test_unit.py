"""What systemd says of the service, as commands and the doctor read it."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import EXAMPLE
from harness.commands import run
from harness.running import Bus, Running

from opdbus import doctor
from opdbus.errors import ConfigError
from opdbus.systemd import unit

Make = Callable[..., Running]
SHOWN = {
    "LoadState": "loaded",
    "ActiveState": "failed",
    "SubState": "failed",
    "Result": "exit-code",
    "ExecMainStatus": "2",
    "StatusText": "Failed: OP_DBUS_THREADS='many' is not accepted",
    "Environment": 'OP_DBUS_STATE_DIR=/var/lib/op-dbus "OP_DBUS_BUS=unix:path=/a b"',
}


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put programs on the PATH that print what systemctl and journalctl would."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def prints(shown: dict[str, str], *files: str, journal: str = "") -> None:
        lines = [f"{key}={value}" for key, value in shown.items()]
        lines += [f"EnvironmentFiles={file} (ignore_errors=yes)" for file in files]
        for name, text in (("systemctl", "\n".join(lines)), ("journalctl", journal)):
            (folder / f"{name}.txt").write_text(text)
            (folder / name).write_text(f"#!/bin/sh\nexec cat '{folder}/{name}.txt'\n")
            (folder / name).chmod(0o755)

    return prints


def found() -> unit.Unit:
    """Give the unit, which is there."""
    service = unit.find_unit()
    assert service
    return service


def test_its_own_words_say_why_it_ended(systemd: Callable[..., None]) -> None:
    """Take the reason from the status that the service left."""
    systemd(SHOWN)
    assert (found().has_failed, found().is_running) == (True, False)
    assert (
        found().fault()
        == "op-dbus.service ended by a fault: OP_DBUS_THREADS='many' is not accepted"
    )


def test_the_journal_says_why_it_ended(systemd: Callable[..., None]) -> None:
    """Take the last sentence of the journal where there is no status, and else the exit."""
    log = (
        "op-dbus: an old fault\nop-dbus: there is no model\nop-dbus.service: Main process exited\n"
    )
    systemd(SHOWN | {"StatusText": ""}, journal=log)
    assert found().fault() == "op-dbus.service ended by a fault: there is no model"
    systemd(SHOWN | {"StatusText": "Loading the model"})
    assert (
        found()
        .fault()
        .removeprefix("op-dbus.service ended by a fault: ")
        .startswith("its exit code was 2; see `journalctl --unit op-dbus")
    )


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        ("signal", "9", "SIGKILL, which the kernel also sends where memory runs out, ended it;"),
        ("core-dump", "11", "SIGSEGV ended it;"),
        ("oom-kill", "9", "the kernel ended it, since memory ran out;"),
        ("watchdog", "6", "it hung, and systemd ended it;"),
        ("unheard-of", "0", "systemd says unheard-of;"),
    ],
)
def test_how_it_ended_is_said_in_words(
    systemd: Callable[..., None], result: str, code: str, said: str
) -> None:
    """Say what systemd's word means, and the signal by its name."""
    systemd(SHOWN | {"StatusText": "", "Result": result, "ExecMainStatus": code})
    assert found().fault().startswith(f"op-dbus.service ended by a fault: {said} see")


@pytest.mark.parametrize(
    ("active", "result", "has_failed"),
    [
        ("active", "success", False),
        ("inactive", "success", False),
        ("activating", "exit-code", True),
        ("failed", "start-limit-hit", True),
        ("deactivating", "success", False),
        ("activating", "success", False),
    ],
)
def test_what_a_fault_is(
    systemd: Callable[..., None], active: str, result: str, *, has_failed: bool
) -> None:
    """Call a service failed that ended by a fault, until it runs again."""
    systemd(SHOWN | {"ActiveState": active, "Result": result, "StatusText": "Stopping"})
    assert found().has_failed is has_failed


def test_a_service_that_is_about_to_fail(systemd: Callable[..., None]) -> None:
    """Call it failed as soon as its status says so, though systemd waits for its end."""
    systemd(SHOWN | {"ActiveState": "deactivating", "Result": "success"})
    assert found().has_failed


def test_a_service_that_is_started_again_after_a_fault(systemd: Callable[..., None]) -> None:
    """Tell the fault while it starts, when systemd has forgotten it; the journal has it."""
    log = (
        'op-dbus: an old fault\nfailed reason="no space; make room" exit_code=1\nop-dbus.service: '
    )
    again = {"ActiveState": "activating", "Result": "success", "StatusText": "", "NRestarts": "2"}
    systemd(SHOWN | again, journal=log)
    assert found().has_failed
    assert found().fault() == "op-dbus.service ended by a fault: no space; make room"


def test_its_settings(systemd: Callable[..., None], tmp_path: Path) -> None:
    """Read the unit's variables and its files' as systemd does; the later one counts."""
    first, second = tmp_path / "one.env", tmp_path / "two.env"
    first.write_text("# no\n; no\n\nOP_DBUS_THREADS=2\nOP_DBUS_LOG_LEVEL='de\\\nbug'\nno line\n")
    second.write_text(' OP_DBUS_THREADS = "3" \n')
    systemd(SHOWN, str(first), str(second), str(tmp_path / "missing"))
    assert found().environ() == {
        "OP_DBUS_STATE_DIR": ("/var/lib/op-dbus", "op-dbus.service"),
        "OP_DBUS_BUS": ("unix:path=/a b", "op-dbus.service"),
        "OP_DBUS_THREADS": ("3", f"{second}:1"),
        "OP_DBUS_LOG_LEVEL": ("debug", f"{first}:5"),
    }


def test_lines_that_systemd_leaves_out(systemd: Callable[..., None], tmp_path: Path) -> None:
    """Name the lines that give no variable, such as one that a shell would understand."""
    file = tmp_path / "op-dbus.env"
    file.write_text("A=1\nno line\nB=a \\\nb\nexport C=2\n# no\n\n")
    systemd(SHOWN, str(file))
    assert found().ignored() == [f"{file}:2", f"{file}:5"]
    assert found().environ()["B"].value == "a b"
    said = [(each.status, each.finding) for each in doctor._check_settings(found())]
    left_out = "is not NAME=VALUE, and systemd leaves it out"
    assert said == [("warning", f"{file}:{line} {left_out}") for line in (2, 5)]
    file.write_text("A=1\n")
    assert [each.status for each in doctor._check_settings(found())] == ["ok"]


def test_characters_of_settings(systemd: Callable[..., None], tmp_path: Path) -> None:
    """End lines of a file of variables at newlines and returns alone: others are part of values."""
    file = tmp_path / "op-dbus.env"
    odd = "a\x0bb\x0cc\x85d\u2028e\xa0f"
    file.write_bytes(f"A={odd}\rB='{odd}'\r\nC={odd}\xa0\n".encode())
    systemd(SHOWN, str(file))
    given = {name: found().environ()[name] for name in "ABC"}
    assert [each.value for each in given.values()] == [odd, odd, f"{odd}\xa0"]
    assert given["C"].where == f"{file}:3"


def test_settings_that_cannot_be_read(systemd: Callable[..., None], tmp_path: Path) -> None:
    """Say which file of settings cannot be read."""
    systemd(SHOWN, str(tmp_path))
    with pytest.raises(ConfigError, match=r"cannot read the settings of the service: .*Is a dir"):
        found().environ()


def test_no_service(systemd: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Know of no service where systemd has none, or is none."""
    systemd(SHOWN | {"LoadState": "not-found"})
    assert unit.find_unit() is None
    systemd(SHOWN | {"LoadState": "masked"})
    assert unit.find_unit()
    systemd({})
    assert unit.find_unit() is None
    monkeypatch.setenv("PATH", "/nonexistent")
    assert unit.find_unit() is None


# what commands make of it


def on_system_bus(daemon: Running, bus: Bus, *arguments: str, **more: str) -> tuple[int, str]:
    """Run a command that takes a private bus for the system's, and give its exit and output."""
    system = {"OP_DBUS_BUS": "system", "DBUS_SYSTEM_BUS_ADDRESS": bus.address}
    done = run(daemon, *arguments, **system, **more)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_commands_say_why_the_service_ended(systemd: Callable[..., None], daemons: Make) -> None:
    """Say by which fault the service ended where no daemon answers, and what to do then."""
    systemd(SHOWN)
    bus, nobody = Bus(), daemons()
    try:
        for command in (["status"], ["search", "x"], ["reload"]):
            code, said = on_system_bus(nobody, bus, *command)
            assert code == 4
            assert "op-dbus.service ended by a fault: OP_DBUS_THREADS='many' is not acc" in said
            assert "; correct that in /etc/op-dbus/op-dbus.env or the unit, then `systemc" in said
        systemd(SHOWN | {"ActiveState": "inactive", "Result": "success", "StatusText": ""})
        code, said = on_system_bus(nobody, bus, "status")
        assert (code, "systemctl start op-dbus" in said) == (4, True)
        off = {"ActiveState": "inactive", "Result": "success", "StatusText": ""}
        systemd(SHOWN | off | {"LoadState": "masked"})
        code, said = on_system_bus(nobody, bus, "status")
        assert (code, "is masked, and nothing starts it: `systemctl unmask op-dbus`" in said) == (
            4,
            True,
        )
    finally:
        bus.kill()


def test_doctor_reads_the_settings_of_the_service(
    systemd: Callable[..., None], daemons: Make, tmp_path: Path, tiny_model: Path
) -> None:
    """Check what the service is given, say why it ended, and exit 1 where that is a fault."""
    file = tmp_path / "op-dbus.env"
    ours = f"OP_DBUS_MODEL={tiny_model}\nOP_DBUS_STATE_FILE={EXAMPLE}\n"
    file.write_text(f"{ours}OP_DBUS_TREADS=3\n")
    shown = SHOWN | {"Environment": f"OP_DBUS_STATE_DIR={tmp_path}"}
    systemd(shown, str(file))
    bus, nobody = Bus(), daemons()
    own = {"OP_DBUS_STATE_FILE": "", "OP_DBUS_MODEL": ""}
    try:
        code, said = on_system_bus(nobody, bus, "doctor", **own)
        assert code == 1
        assert "wrong    service: op-dbus.service ended by a fault: OP_DBUS_THREADS='many'" in said
        assert f"wrong    service settings: OP_DBUS_TREADS in {file}:3 is not a setting" in said
        code, said = on_system_bus(nobody, bus, "config", **own)
        assert (code, f"OP_DBUS_TREADS in {file}:3 is not a setting" in said) == (2, True)
        file.write_text(f"{ours}nothing\nOP_DBUS_THREADS=many\n")
        code, said = on_system_bus(nobody, bus, "config", **own)
        assert (code, f"OP_DBUS_THREADS='many' (in {file}:4) is not acc" in said) == (2, True)
        systemd(shown | {"LoadState": "masked"}, str(file))
        code, said = on_system_bus(nobody, bus, "doctor", **own)
        assert (code, "wrong    service: systemd says that op-dbus.service is masked" in said) == (
            1,
            True,
        )
        file.write_text(ours)
        running = {"ActiveState": "active", "Result": "success", "StatusText": "Ready"}
        systemd(shown | running, str(file))
        code, said = on_system_bus(nobody, bus, "doctor", **own)
        assert code == 0, said
        assert "ok       service settings: accepted" in said
        assert f"objects in {EXAMPLE}" in said
        code, said = on_system_bus(nobody, bus, "config", **own)
        assert "what op-dbus.service runs with; variables of this shell win over its own" in said
        assert re.search(rf"OP_DBUS_STATE_FILE +{EXAMPLE} +{file}:2\n", said)
        code, said = on_system_bus(nobody, bus, "doctor", **own)
        assert "warning  daemon: no daemon serves org.opdbus" in said
    finally:
        bus.kill()


@pytest.mark.parametrize(
    ("count", "ran", "expected"),
    [
        ("0", 5, "ok: op-dbus.service runs"),
        ("1", 5, "wrong: op-dbus.service was started again once after a fault, and has run for "),
        ("9", 3600, "warning: op-dbus.service was started again 9 times after a fault, and has ru"),
        ("9", 100_000, "ok: op-dbus.service runs"),
    ],
)
def test_a_service_that_is_restarted_again_and_again(count: str, ran: int, expected: str) -> None:
    """Do not call a service well that is up for a moment between two faults."""
    began = str(int((time.monotonic() - ran) * 1e6))
    running = {"ActiveState": "active", "Result": "success", "StatusText": "Ready"}
    times = {"NRestarts": count, "ExecMainStartTimestampMonotonic": began}
    verdict = doctor._check_service(unit.Unit(SHOWN | running | times))
    assert f"{verdict.status}: {verdict.finding}".startswith(expected)
