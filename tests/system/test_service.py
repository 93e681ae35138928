"""The service on a booted host: started, activated, sandboxed, reloaded, stopped."""

import re

import pytest
from harness.tiny import write_tiny_model

from opdbus.engine import gate
from opdbus.engine.providers import PROVIDERS
from system.conftest import IS_ALL
from system.host import Host
from system.service import (
    CHANGES,
    NAME,
    ROOT_PATH,
    STATE,
    STATE_PATH,
    STORE,
    UNIT,
    UNITS,
    VECTORIZER,
    Service,
)

SYSTEMD = "type='signal',sender='org.freedesktop.systemd1'"


def test_a_first_start_is_told_step_by_step(host: Host, observer: Service) -> None:
    """It is started once its name is owned; then it loads, vectorizes and is ready, and says so."""
    service = observer
    service.systemctl("stop")
    # so that progress is told in many steps
    service.configure(BATCH_TOKENS=1024, PRECISION="fp32")
    host.ask("find", STORE, "-name", "*.db*", "-delete")
    service.declare({f"job{number}.service": "works" for number in range(1500)})
    with host.subscribed(), host.monitor(SYSTEMD, *CHANGES) as heard:
        service.systemctl("start")
        assert service.get("State") in ("loading", "ready")
        heard.until(lambda: "ready" in heard.changes("State"))
        heard.until(lambda: heard.changes("StatusText")[-1].startswith("Ready: 1,500 objects"))
    assert heard.index("NameOwnerChanged", NAME) < heard.index("JobRemoved", UNIT, "done")
    # systemd may still announce the end of the service before
    told = [text for text in heard.changes("StatusText") if text not in {"", "Stopping"}]
    assert told[0] == "Loading the model"
    step = re.compile("Vectorizing [1-9][0-9,]* of 1,500 objects")
    assert any(step.fullmatch(text) for text in told), told
    assert heard.changes("State")[-1] == "ready"


@pytest.mark.each_bus
def test_a_call_starts_it(service: Service) -> None:
    """The first call to a stopped service is answered, by a service that is started for it."""
    service.systemctl("stop")
    assert service.show("ActiveState") == "inactive"
    (levels,) = service.call(ROOT_PATH, f"{VECTORIZER}.Levels", "a{sv}", "0")
    assert [level[0] for level in levels] == ["none", "static", "low", "medium", "high"]
    assert service.show("ActiveState") == "active"


@pytest.mark.each_bus
def test_it_runs_as_a_user_of_its_own(host: Host, service: Service) -> None:
    """No privilege is left to the process, which is not root's."""
    status = host.ask("cat", f"/proc/{service.pid}/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == [host.ask("id", "--user", "op-dbus")] * 4
    assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")


def test_the_sandboxed_model_answers(observer: Service) -> None:
    """The real model finds objects by other words."""
    service = observer
    service.configure(PRECISION="fp32")
    service.systemctl("restart")
    service.until_ready()
    (vector,) = service.call(ROOT_PATH, f"{VECTORIZER}.Vectorize", "sa{sv}", "name resolution", "0")
    assert len(vector) == 384
    assert sum(value * value for value in vector) == pytest.approx(1.0, abs=1e-3)
    question = ["which address belongs to a domain?", "1", "0"]
    (hits,) = service.call(STATE_PATH, f"{STATE}.Search", "sua{sv}", *question)
    assert hits[0][0].endswith("resolved_2eservice")
    assert service.get("Fallbacks") == []


@pytest.mark.parametrize("model", ["tiny", "real"])
def test_the_best_precision_is_chosen_in_the_sandbox(
    host: Host, observer: Service, model: str
) -> None:
    """All precisions are tried, and the fastest of those that are accurate serves."""
    service = observer
    if model == "tiny":
        tiny = write_tiny_model(host.path(f"{STORE}/graded"))
        host.ask("chmod", "-R", "a+rX", f"{STORE}/graded")
        service.configure(MODEL=f"{STORE}/{tiny.name}")
    elif IS_ALL:
        service.configure()
    else:
        pytest.skip("to try the real model takes a minute: `make test-all` does")
    service.systemctl("restart")
    service.until_ready()
    host.run("rm", "-rf", f"{STORE}/graded")
    provider, precision = service.get("Provider"), service.get("Precision")
    rows = service.get("Accuracy")
    accuracy = [{key: value["data"] for key, value in row.items()} for row in rows]
    tried = {grade["precision"] for grade in accuracy if grade["provider"] == provider}
    assert tried == set(PROVIDERS[provider].dialects)
    accepted = [grade for grade in accuracy if not grade["refused"]]
    (chosen,) = [grade for grade in accepted if grade["chosen"]]
    assert (provider, precision) == (chosen["provider"], chosen["precision"])
    # of those that are equally fast, the one with the smaller error is chosen
    fastest = max(grade["texts_per_second"] for grade in accepted)
    assert chosen["texts_per_second"] * gate.TIE >= fastest
    assert precision in service.get("Proof")["products"]["data"]
    assert service.get("Fallbacks") == []


def test_a_reload_reads_the_state_file_again(host: Host, service: Service) -> None:
    """After `systemctl reload`, and after its signal, the service knows what the file says now."""
    with host.subscribed(), host.monitor(SYSTEMD, *CHANGES) as heard:
        service.declare(UNITS | {"backup.timer": "copies the disks at night"})
        service.systemctl("reload")
        heard.until(lambda: service.get("Count", STATE) == 4)
        # what systemd hears of by itself, not by having sent the signal
        service.systemctl("kill", "--kill-whom=main", "--signal=HUP")
        heard.until(lambda: heard.changes("ActiveState")[-4:] == ["reloading", "active"] * 2)
        service.until_ready()
    (text,) = service.call(STATE_PATH, f"{STATE}.Search", "sua{sv}", "nightly copies", "1", "0")
    assert text[0][0].endswith("backup_2etimer")


@pytest.mark.each_bus
def test_the_log_level_is_set_by_systemctl(host: Host, service: Service) -> None:
    """`systemctl service-log-level` counts at once, and reads back."""
    assert service.systemctl("service-log-target") == "journal"
    assert service.systemctl("service-log-level") == "info"
    after = host.cursor()
    for level in ("warning", "debug"):
        service.systemctl("service-log-level", level)
        assert service.systemctl("service-log-level") == level
        # which is told at info
        service.call(ROOT_PATH, f"{VECTORIZER}.Reload", "a{sv}", "0")
    host.await_entry(after, OPDBUS_EVENT="state_file_read")
    service.systemctl("service-log-level", "info")
    told = host.journal(after=after, OPDBUS_EVENT="reloading")
    assert len(told) == 1


@pytest.mark.each_bus
def test_a_stop_is_clean(host: Host, service: Service) -> None:
    """`systemctl stop` need not kill it, and leaves no failure and no process behind."""
    group = service.show("ControlGroup")
    service.systemctl("stop")
    assert (service.show("Result"), service.show("ExecMainStatus")) == ("success", "0")
    assert not host.path(f"/sys/fs/cgroup/systemd/{group}").exists()
