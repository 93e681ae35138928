"""`op-dbus metrics`: what is exported, and the alerts and the dashboard that use it."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from harness.commands import fails, ok, run
from harness.running import Bus, Running

from opdbus import __version__
from opdbus.bus.service import contract
from opdbus.cli import proving
from opdbus.config import LEVELS, SEVERITIES
from opdbus.drift.transition_filter import CLASSES
from opdbus.engine.providers import PROVIDERS
from opdbus.history.change import CAUSE_TYPES, NO_CAUSE, OTHER_CAUSE
from opdbus.history.verify import Report
from opdbus.platform.metrics import PREFIX, definitions

RULES = ROOT / "etc" / "prometheus" / "op-dbus.rules.yml"
DASHBOARD = ROOT / "etc" / "grafana" / "op-dbus.json"
_SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-z]+)="([^"]*)"')
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="there is no promtool: apt install prometheus"
)


@pytest.fixture(scope="module")
def served(shared_daemons: Callable[..., Running]) -> Running:
    """Serve the example."""
    return shared_daemons().start().vectorized()


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[Running]:
    """Give a bus without a daemon."""
    bus = Bus()
    yield Running(tmp_path, bus.address)
    bus.kill()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read samples by name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            parts = _SAMPLE.fullmatch(line)
            assert parts, line
            labels = frozenset((k, v) for k, v in _LABEL.findall(parts[2] or ""))
            found[parts[1], labels] = float(parts[3])
    return found


def exported(text: str) -> set[str]:
    """List the names of samples that families may have."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + suffix for suffix in suffixes}
    return found


def promtool(*arguments: str | Path, stdin: str = "") -> tuple[int, str, str]:
    """Run promtool."""
    done = subprocess.run(
        ["promtool", *arguments], input=stdin, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_what_a_daemon_counts(served: Running) -> None:
    """Count objects, changes, texts and calls, as the daemon has them."""
    ok(served, "search", "who may become root?")
    ok(served, "publish", "t", stdin='{"plugin": "t", "kind": "t", "name": "lamp"}')
    parts = ("batch_size", "queue_duration_seconds", "inference_duration_seconds")
    keys = [(f"opdbus_{one}_count", frozenset({("level", "medium")})) for one in parts]
    found, later = (samples(ok(served, "metrics")) for _ in range(2))
    for _ in range(20):
        if [found[key] for key in keys] == [later[key] for key in keys]:
            break
        # a batch ended while they were written
        found, later = later, samples(ok(served, "metrics"))

    def of(name: str, **labels: str) -> float:
        return found[f"opdbus_{name}", frozenset(labels.items())]

    declared = of("objects", source="file")
    assert declared == json.loads(ok(served, "list", "--json"))["total"] - 1 > 0
    assert of("objects", source="published") == 1
    assert of("changes_total", what="appeared", cause="first") == declared
    assert of("changes_total", what="appeared", cause="bus") == 1
    assert of("history_seq") == declared + 1
    assert (of("up"), of("state", state="ready"), of("state", state="failed")) == (1, 1, 0)
    assert of("build_info", version=__version__) == 1
    assert of("texts_total", level="medium") > declared
    assert of("tokens_total", level="medium") > of("texts_total", level="medium")
    assert of("padding_tokens_total", level="medium") == 0
    texts, batches = (of(f"batch_size_{part}", level="medium") for part in ("sum", "count"))
    assert 0 < batches <= texts == of("queue_duration_seconds_count", level="medium")
    assert of("inference_duration_seconds_count", level="medium") == batches
    serves = {"level": "medium", "provider": "cpu:onnxruntime", "precision": "fp32"}
    assert of("provider_info", **serves, proven="true") == 1
    search = {"interface": "org.opdbus.State1", "method": "Search"}
    assert of("request_duration_seconds_count", **search) == 1
    assert of("drifted_objects", severity="error", **{"class": "drift"}) == 0
    ok(served, "withdraw", "lamp")


def test_labels_are_from_fixed_lists(served: Running) -> None:
    """Name nothing of the host in a label: there would be a time series for each object."""
    methods = {(i.name, name) for i in contract.interfaces() for name in i.methods}
    fixed = {
        "level": {*LEVELS},
        "provider": {*PROVIDERS, "cpu:numpy", "remote"},
        "precision": {"fp32", "fp16", "bf16", "int8", "int8-blocks"},
        "proven": {"true", "false"},
        "severity": {*SEVERITIES},
        "class": {*CLASSES},
        "cause": {*CAUSE_TYPES, NO_CAUSE, OTHER_CAUSE},
        "what": {"appeared", "changed", "gone", "event"},
        "state": {"loading", "ready", "degraded", "failed"},
        "source": {"file", "published"},
        "version": {__version__},
        "interface": {interface for interface, _ in methods},
        "method": {method for _, method in methods},
    }
    ok(served, "publish", "secret-name", stdin='{"plugin": "p", "kind": "k", "name": "n"}')
    text = ok(served, "metrics")
    ok(served, "withdraw", "p/k/n")
    used = {pair for _, labels in samples(text) for pair in labels if pair[0] != "le"}
    assert {key for key, _ in used} == fixed.keys()
    assert [(key, value) for key, value in used if value not in fixed[key]] == []


@needs_promtool
def test_promtool_accepts_what_is_exported(served: Running) -> None:
    """Export what promtool has nothing to say about."""
    assert promtool("check", "metrics", stdin=ok(served, "metrics")) == (0, "", "")


def test_a_file_is_replaced(served: Running, tmp_path: Path) -> None:
    """Write a file that the collector may read, with nothing left beside it."""
    target = tmp_path / "op-dbus.prom"
    target.write_text("before")
    assert ok(served, "metrics", "--output", str(target)) == ""
    assert samples(target.read_text())["opdbus_up", frozenset()] == 1
    assert target.stat().st_mode & 0o777 == 0o644
    assert [*tmp_path.iterdir()] == [target]


def test_a_file_that_cannot_be_written(served: Running, tmp_path: Path) -> None:
    """Say so, and leave nothing behind."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    for target in (tmp_path / "none" / "a.prom", tmp_path / "taken"):
        assert "op-dbus: " in run(served, "metrics", "-o", str(target)).stderr
        assert run(served, "metrics", "-o", str(target)).returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_daemon_that_is_down_is_told(nobody: Running, tmp_path: Path) -> None:
    """Fail without a daemon as other commands do, but write of it into a file."""
    assert "op-dbus is not running" in fails(nobody, 4, "metrics")
    target = tmp_path / "op-dbus.prom"
    ok(nobody, "metrics", "--output", str(target))
    assert samples(target.read_text()) == {("opdbus_up", frozenset()): 0}


def expressions() -> list[str]:
    """List the dashboard's queries."""
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_alerts_and_dashboard_use_what_is_exported(served: Running) -> None:
    """Use only metrics that exist: each of the table is of the daemon or of `history verify`."""
    text = ok(served, "metrics") + proving.report_metrics(Report(first=1))
    families = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert sorted(families) == sorted(PREFIX + name for name in definitions())
    known = exported(text)
    queries = re.findall(r"^ +expr: (.+)$", RULES.read_text(), re.MULTILINE)
    assert len(queries) == RULES.read_text().count("- alert:") > 8
    used = set(re.findall(r"opdbus_\w+", " ".join([*queries, *expressions()])))
    assert used <= known
    # what no peer has, and what an administrator asks first
    assert used >= {"opdbus_up", "opdbus_provider_fell_back", "opdbus_padding_tokens_total"}


def test_the_dashboard_can_be_provisioned() -> None:
    """Have a fixed uid, no inputs, and variables for the data source and the host."""
    board = json.loads(DASHBOARD.read_text())
    assert board["uid"] == "opdbus"
    assert "__inputs" not in board
    assert "id" not in board
    assert [one["name"] for one in board["templating"]["list"]] == ["datasource", "instance"]
    assert len(board["panels"]) == 8
    sources = {t["datasource"]["uid"] for p in board["panels"] for t in [p, *p["targets"]]}
    assert sources == {"${datasource}"}


@needs_promtool
def test_promtool_accepts_alerts_and_queries(tmp_path: Path) -> None:
    """Write rules and queries that promtool parses."""
    code, told, fault = promtool("check", "rules", RULES)
    assert (code, fault) == (0, ""), told
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$instance", ".*")}
        for number, query in enumerate(expressions())
    ]
    file = tmp_path / "queries.yml"
    # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    code, told, fault = promtool("check", "rules", file)
    assert (code, fault) == (0, ""), told


@needs_promtool
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """Play hours to Prometheus: a busy host is fine, and each fault is one alert."""
    busy = {"opdbus_history_seq": "1000+5x120", "opdbus_history_checkpoint_seq": "960+5x120"}
    cases: list[tuple[str, dict[str, str]]] = [
        ("", busy | {"opdbus_up": "1x120", 'opdbus_units{state="failed"}': "0x120"}),
        ("OpDbusHistoryNotVouchedFor", busy | {"opdbus_history_checkpoint_seq": "0x120"}),
        ("OpDbusDown", {"opdbus_up": "1x60 0x60"}),
        ("OpDbusUnitFailed", {'opdbus_units{state="failed"}': "0x60 1x60"}),
        ("OpDbusDrift", {'opdbus_drifted_objects{severity="error",class="drift"}': "2x120"}),
        ("", {'opdbus_drifted_objects{severity="error",class="intended"}': "2x120"}),
        ("OpDbusObserverDown", {'opdbus_observer_up{observer="systemd"}': "0x120"}),
        ("OpDbusProviderFellBack", {'opdbus_provider_fell_back{level="medium"}': "1x120"}),
        ("OpDbusTextsTruncated", {"opdbus_texts_truncated_total": "0+1x120"}),
        ("OpDbusQueueLong", {'opdbus_queue_texts{level="medium"}': "5000x120"}),
    ]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": given} for name, given in series.items()],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "120m",
                    "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}]
                    if alert
                    else [],
                }
            ],
        }
        for alert, series in cases
    ]
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))
    code, told, fault = promtool("test", "rules", file)
    assert code == 0, told + fault
