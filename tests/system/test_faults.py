"""What goes wrong on a booted host: it is started again or not, and loses nothing."""

import time

import pytest

from system.host import Host
from system.service import ROOT_PATH, STATE, STATE_FILE, UNIT, UNITS, VECTORIZER, Service


def restarted(host: Host, service: Service, after: str, pid: str) -> None:
    """Check that systemd has started it again, and that nothing was lost or computed."""
    service.until_started(after)
    assert service.pid != pid
    service.until_ready()
    read = host.await_entry(after, OPDBUS_EVENT="vectors_read")
    assert int(read["OPDBUS_VECTORS"]) == service.get("Count", STATE) == len(UNITS)
    assert service.get("Vectorized", STATE) == len(UNITS)


def test_a_hung_service_is_restarted(host: Host, service: Service) -> None:
    """A service that works lives on; one that stands still is killed and started again."""
    service.drop_in("WatchdogSec=3", "RestartSec=0")
    service.systemctl("restart")
    service.until_ready()
    after, pid, pings = host.cursor(), service.pid, set[str]()
    while len(pings) < 3:
        words = [f"{time.monotonic()} {number} " * 40 for number in range(60)]
        service.call(ROOT_PATH, f"{VECTORIZER}.VectorizeMany", "asa{sv}", "60", *words, "0")
        pings.add(service.show("WatchdogTimestampMonotonic"))
    assert host.journal(after=after, UNIT_RESULT="watchdog") == []
    assert service.pid == pid
    service.systemctl("kill", "--kill-whom=main", "--signal=STOP")
    assert service.until_failed(after)["UNIT_RESULT"] == "watchdog"
    restarted(host, service, after, pid)


@pytest.mark.each_bus
def test_a_killed_service_is_restarted(host: Host, service: Service) -> None:
    """What was known before a kill is known after it."""
    service.drop_in("RestartSec=0")
    after, pid = host.cursor(), service.pid
    service.systemctl("kill", "--signal=KILL")
    assert service.until_failed(after)["UNIT_RESULT"] == "signal"
    restarted(host, service, after, pid)


@pytest.mark.each_bus
def test_a_bus_that_restarts_is_survived(host: Host, service: Service) -> None:
    """The service ends when its bus does, saying so, and is back when the bus is."""
    service.drop_in("RestartSec=3")
    after, pid = host.cursor(), service.pid
    host.ask("systemctl", "restart", "dbus.service")
    host.await_entry(after, OPDBUS_EVENT="bus_lost")
    assert service.until_failed(after)["UNIT_RESULT"] == "exit-code"
    restarted(host, service, after, pid)


@pytest.mark.each_bus
def test_a_second_instance_is_refused(host: Host, service: Service) -> None:
    """A second daemon ends at once and says why; the first goes on."""
    pid = service.pid
    second = host.run(
        *("systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--uid=op-dbus"),
        *("--setenv=OP_DBUS_VECTOR_LEVEL=none", "--setenv=OP_DBUS_STATE_DIR=/tmp/second"),
        *("op-dbus", "daemon", "--bus", "system"),
    )
    assert second.returncode == 4, second.stderr
    assert "org.opdbus" in second.stderr
    assert "Traceback" not in second.stderr
    assert service.pid == pid
    assert service.get("State") == "ready"


@pytest.mark.parametrize(
    ("settings", "code", "sentence"),
    [
        ({"VECTOR_LEVEL": "huge"}, "2", "medium"),
        ({"EXECUTION_PROVIDER": "cuda"}, "3", "cuda"),
        ({"MODEL_DIR": "/root", "VECTOR_LEVEL": "high"}, "3", "Permission denied"),
    ],
)
def test_what_only_a_person_can_mend_is_not_retried(
    host: Host, observer: Service, settings: dict[str, str], code: str, sentence: str
) -> None:
    """A bad setting ends it with 2, a provider or model that is not to be had with 3, for good."""
    service = observer
    service.systemctl("stop")
    service.configure(**settings)
    after = host.cursor()
    # a start may be over before the model fails
    host.run("systemctl", "start", UNIT)
    assert service.until_failed(after)["UNIT_RESULT"] == "exit-code"
    assert (service.show("SubState"), service.show("NRestarts")) == ("failed", "0")
    assert service.show("ExecMainStatus") == code
    told = [entry["MESSAGE"] for entry in host.journal(after=after, _SYSTEMD_UNIT=UNIT)]
    assert any(sentence in line for line in told), told
    assert not any("Traceback" in line for line in told)
    # as an entry with fields, or as a line where settings say nothing of the log yet
    assert sum(line.startswith(("failed ", "op-dbus: ")) for line in told) == 1, told


def test_an_unreadable_state_file_changes_nothing(host: Host, service: Service) -> None:
    """A state file that the service may not read leaves what was read, and is told of."""
    after = host.cursor()
    mode = host.ask("stat", "--format=%a", STATE_FILE)
    host.ask("chmod", "000", STATE_FILE)
    try:
        service.systemctl("kill", "--kill-whom=main", "--signal=HUP")
        entry = host.await_entry(after, OPDBUS_EVENT="state_file_refused")
        assert "Permission denied" in entry["MESSAGE"]
        assert service.get("Count", STATE) == len(UNITS)
        assert STATE_FILE in service.get("LastError", STATE)
        assert service.get("State") == "degraded"
    finally:
        host.ask("chmod", mode, STATE_FILE)
    service.declare(UNITS)
    service.until_ready()
    assert service.get("LastError", STATE) == ""
