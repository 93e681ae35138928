"""What the journal of a booted host tells of the service, and how it explains it."""

from opdbus.platform.journal import MESSAGE_IDS
from system.host import Host
from system.service import STATE, UNIT, Service


def test_events_are_found_by_field(host: Host, service: Service) -> None:
    """`journalctl OPDBUS_EVENT=` finds an event, whose facts are fields too."""
    after = host.cursor()
    service.systemctl("restart")
    service.until_ready()
    host.await_entry(after, OPDBUS_EVENT="model_proven")
    found = host.ask("journalctl", "--output=cat", "OPDBUS_EVENT=model_proven").splitlines()
    assert found
    assert all(line.startswith("model proven ") for line in found)
    (proven,) = host.journal(after=after, OPDBUS_EVENT="model_proven")
    assert proven["OPDBUS_PROVIDER"] == service.get("Provider")
    assert proven["OPDBUS_PRECISION"] == service.get("Precision")
    assert (proven["_SYSTEMD_UNIT"], proven["SYSLOG_IDENTIFIER"]) == (UNIT, "op-dbus")
    told = [entry["OPDBUS_EVENT"] for entry in host.journal(after=after) if "OPDBUS_EVENT" in entry]
    assert [event for event in told if event in ("stopping", "serving", "model_proven")] == [
        *("stopping", "serving", "model_proven")
    ]


def test_every_main_event_is_explained(host: Host, service: Service) -> None:
    """The catalog has a text of some lines for each, which `journalctl -x` shows below it."""
    assert MESSAGE_IDS
    for event, known in MESSAGE_IDS.items():
        text = host.ask("journalctl", "--dump-catalog", known)
        assert len(text.splitlines()) > 4, event
    known, after = MESSAGE_IDS["reloading"], host.cursor()
    service.systemctl("reload")
    host.await_entry(after, MESSAGE_ID=known)
    explanation = host.ask("journalctl", "--dump-catalog", known)
    shown = host.ask("journalctl", "--catalog", "--no-pager", f"MESSAGE_ID={known}")
    assert explanation.splitlines()[-1] in shown


def test_no_contents_are_logged(host: Host, service: Service) -> None:
    """What objects hold is in no line at info."""
    service.declare({"vault.service": "guards the word xylophone-quagmire"})
    service.reload()
    assert service.get("Count", STATE) == 1
    assert not [entry for entry in host.journal() if "quagmire" in str(entry)]
