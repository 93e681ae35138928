"""The command `bench`, and the measuring behind it, on the tiny model."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.machines import host
from harness.running import PATIENCE_SECONDS, environment

from opdbus import config
from opdbus.bench.measures import find_engines, find_providers
from opdbus.engine.host import HERE
from opdbus.errors import InvalidArgs, ProviderError


def environ(here: Path, model: Path) -> dict[str, str]:
    """Give an environment with the tiny model and no bus."""
    chosen = {"OP_DBUS_MODEL": str(model), "OP_DBUS_PRECISION": "fp32", "HOME": str(here)}
    chosen["TMPDIR"] = str(here)
    return environment("unix:path=/nonexistent", here / "state", chosen)


def run(
    here: Path, model: Path, *arguments: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run `op-dbus` where there is no bus."""
    return subprocess.run(
        [sys.executable, "-m", "opdbus", *arguments],
        env=environ(here, model) | settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_bench_measures_everything(tmp_path: Path, tiny_model: Path) -> None:
    """Prove the engine, measure rates and single texts of each kind, print and write them."""
    file = tmp_path / "report.json"
    flags = ("--seconds", "0.02", "--level", "medium", "--json", str(file))
    done = run(tmp_path, tiny_model, "bench", *flags)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    [engine] = report["engines"]
    assert (engine["level"], engine["precision"], engine["failure"]) == ("medium", "fp32", "")
    assert engine["proof"]["max_deviation"] <= engine["proof"]["tolerance"]
    assert engine["texts_per_second"].keys() == engine["latency"].keys() == {"object", "short"}
    for kind, rates in engine["texts_per_second"].items():
        assert [*rates] == ["1", "16", "64", "256"]
        assert min(rates.values()) > 0
        found = engine["latency"][kind]
        assert 0 < found["p50"] <= found["p95"] <= found["p99"]
    assert report["machine"]["processor"] in done.stdout
    assert f"medium on {engine['provider']} in fp32" in done.stdout
    assert "texts/s by texts a call" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_bench_leaves_nothing(
    tmp_path: Path, tiny_model: Path, number: signal.Signals, code: int
) -> None:
    """End with its own code on Ctrl-C, and end the child that measures and its files."""
    with subprocess.Popen(
        [sys.executable, "-m", "opdbus", "bench"],
        env=environ(tmp_path, tiny_model),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as bench:
        assert bench.stderr
        assert "measuring" in bench.stderr.readline()
        while not (children := children_of(bench)):
            time.sleep(0.01)
        bench.send_signal(number)
        assert bench.wait(timeout=30) == code
    assert not list(tmp_path.glob("op-dbus-bench-*"))
    # what it told to end may take a moment
    end = time.monotonic() + PATIENCE_SECONDS
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < end
        time.sleep(0.01)


def children_of(process: subprocess.Popen[str]) -> list[str]:
    """List the child processes of a process."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [pid for path in tasks for pid in path.read_text().split()]


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--level", "highest"), 2, "there are static, low, medium, high"),
        (("--level", "low"), 3, "op-dbus models pull low"),
        (("--json", "/nonexistent/x.json"), 2, "make it first"),
    ],
)
def test_wrong_wishes_cost_nothing(
    tmp_path: Path, tiny_model: Path, flags: tuple[str, ...], code: int, said: str
) -> None:
    """Refuse in a sentence, before anything is measured, what cannot be had."""
    done = run(tmp_path, tiny_model, "bench", *flags)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_provider_that_cannot_be_measured(tmp_path: Path, tiny_model: Path) -> None:
    """Refuse a provider that is asked for and cannot run here, and measure no other one."""
    if HERE.vendors() & {"nvidia"}:
        pytest.skip("there is a GPU here")
    asked = {"OP_DBUS_EXECUTION_PROVIDER": "cuda"}
    done = run(tmp_path, tiny_model, "bench", "--level", "medium", **asked)
    assert (done.returncode, done.stdout) == (3, "")
    assert "cuda cannot run" in done.stderr


@pytest.mark.parametrize(
    ("provider", "kind", "said"),
    [
        ("migraphx", ProviderError, "migraphx cannot run"),
        ("migraphx,openvino", ProviderError, "migraphx cannot run: .*; openvino cannot run"),
        ("remote:unix:/run/x", InvalidArgs, "no embedding servers"),
    ],
)
def test_nothing_to_measure(provider: str, kind: type[Exception], said: str) -> None:
    """Give each reason where none of the providers that are asked for can be measured."""
    machine = host("cuda", without=["libamdhip64.so"], openvino={"CPU": "Example CPU"})
    with pytest.raises(kind, match=said):
        find_providers(config.load({}, {"execution_provider": provider}), machine)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, ["cpu", "cuda", "tensorrt"]),
        ({"execution_provider": "auto"}, ["cpu", "cuda", "tensorrt"]),
        ({"execution_provider": "tensorrt,cuda", "gpu_device": "1"}, ["tensorrt", "cuda"]),
        ({"execution_provider": "migraphx,cpu:onnxruntime"}, ["cpu:onnxruntime"]),
        ({"execution_provider": "remote:unix:/x,cpu"}, ["cpu"]),
        ({"execution_provider": "cuda,cpu", "gpu_device": "2"}, ["cpu"]),
    ],
)
def test_the_providers_that_are_measured(given: dict[str, str], found: list[str]) -> None:
    """Measure those asked for, else the processor and every accelerator, on the wanted device."""
    machine = host("cuda", without=["libamdhip64.so"], adapters=[], openvino={"CPU": "Example CPU"})
    assert find_providers(config.load({}, given), machine) == found


def test_failed_engine_is_told(tmp_path: Path) -> None:
    """Go on after an engine that cannot be measured, and print the reason."""
    broken = tmp_path / "none"
    broken.mkdir()
    done = run(tmp_path, broken, "bench", "--seconds", "0.02", "--level", "medium")
    assert done.returncode == 0
    assert f"medium on cpu: the model folder {broken} lacks config.json" in done.stdout


def test_a_static_table_runs_on_no_provider() -> None:
    """Measure the shipped level once, whatever providers there are."""
    settings = config.load({"HOME": "/nonexistent"})
    assert find_engines(["static"], settings) == [("static", "cpu")]
