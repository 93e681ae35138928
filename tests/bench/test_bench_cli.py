"""The commands `bench` and `profile`, and the measuring behind them, on the tiny model."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from harness.machines import host
from harness.running import environment, is_alive

from opdbus import config
from opdbus.bench import ceiling, measures, profile
from opdbus.bench.benchmark import QUICK, Options, find_providers, find_tasks
from opdbus.bench.engine import Task, arithmetic, figures
from opdbus.bench.figures import (
    Arithmetic,
    Ceiling,
    EngineFigures,
    Rate,
    Report,
    Threads,
    decode,
)
from opdbus.bench.machine import Machine
from opdbus.engine.host import HERE
from opdbus.engine.tokenizer import Tokenizer
from opdbus.errors import InvalidArgs, ProviderError
from opdbus.models import folder
from opdbus.models.level_table import LEVELS
from opdbus.settings import parsing

TINY = Arithmetic(layers=2, hidden=32, wide=64)


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


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[Report, str]:
    """Run the benchmark once for all tests of this file."""
    here = tmp_path_factory.mktemp("bench")
    file = here / "report.json"
    flags = ("--quick", "--level", "medium", "--json", str(file))
    done = run(here, tiny_model, "bench", *flags)
    assert done.returncode == 0, done.stderr
    return decode(Report, json.loads(file.read_text())), done.stdout


def test_bench_measures_everything(benched: tuple[Report, str]) -> None:
    """Measure rates, single texts idle and beside bulk, streams, ceilings and one processor."""
    [engine] = benched[0].engines
    assert engine.failure == ""
    rates = {(rate.texts, rate.batch) for rate in engine.rates}
    assert rates == {(kind, n) for kind in ("object", "short") for n in (*QUICK.batches, 0)}
    assert all(rate.rate > 0 and rate.gflops > 0 for rate in engine.rates)
    asked = {(each.texts, each.beside_bulk) for each in engine.latencies}
    assert asked == {(1, False), (1, True), (100, False)}
    assert all(0 < each.p50 <= each.p95 <= each.p99 for each in engine.latencies)
    assert [each.count for each in engine.streams] == list(QUICK.streams)
    assert engine.rss > 1 << 20
    assert engine.share
    assert engine.one_cpu is None or engine.one_cpu.rates.keys() == {"auto", "1", "2", "4"}


def test_bench_prints_plain_tables(benched: tuple[Report, str]) -> None:
    """Print every table without colours into a pipe."""
    titles = ("texts/s by texts a call", "ms a call", "streamed", "bare matrix products")
    assert [title for title in titles if title not in benched[1]] == []
    # what a quick look leaves out is said
    assert "Left out: long streams" in benched[1]
    assert "\x1b" not in benched[1]


def test_bench_report_survives_json(benched: tuple[Report, str]) -> None:
    """Read back exactly the report that was written."""
    assert decode(Report, json.loads(benched[0].to_json())) == benched[0]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_bench_leaves_nothing(
    tmp_path: Path, tiny_model: Path, number: signal.Signals, code: int
) -> None:
    """End with its own code on Ctrl-C, and end the child that measures and its files."""
    with subprocess.Popen(
        [sys.executable, "-m", "opdbus", "bench", "--quick"],
        env=environ(tmp_path, tiny_model),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as bench:
        assert bench.stderr
        assert "loading" in bench.stderr.readline()
        child = child_of(bench)
        bench.send_signal(number)
        assert bench.wait(timeout=30) == code
    assert not list(tmp_path.glob("op-dbus-bench-*"))
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_killed_bench_leaves_nobody(tmp_path: Path, tiny_model: Path) -> None:
    """End the child that measures also when there is nobody left to end it."""
    with subprocess.Popen(
        [sys.executable, "-m", "opdbus", "bench", "--quick"],
        env=environ(tmp_path, tiny_model),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as bench:
        assert bench.stderr
        assert "loading" in bench.stderr.readline()
        child = child_of(bench)
        bench.kill()
    end = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_alive(child)


def child_of(process: subprocess.Popen[str]) -> str:
    """Give the one child of a process."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    [child] = [pid for path in tasks for pid in path.read_text().split()]
    return child


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
    done = run(tmp_path, tiny_model, "bench", "--quick", *flags)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_provider_that_cannot_be_measured(tmp_path: Path, tiny_model: Path) -> None:
    """Refuse a provider that is asked for and cannot run here, and measure no other one."""
    if HERE.vendors() & {"nvidia"}:
        pytest.skip("there is a GPU here")
    asked = {"OP_DBUS_EXECUTION_PROVIDER": "cuda"}
    done = run(tmp_path, tiny_model, "bench", "--quick", "--level", "medium", **asked)
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


@pytest.mark.model
def test_random_weights_have_the_shape(tmp_path: Path) -> None:
    """Make the shape of a level whose model is not here, and say that its weights are random."""
    settings = config.load({"HOME": str(tmp_path), "OP_DBUS_MODEL_DIR": str(tmp_path)})
    [low] = find_tasks(Options(("low",), random=True), settings, tmp_path)
    assert low.subject.random
    assert "random" in low.subject.name
    assert arithmetic(low.subject.folder) == Arithmetic(3, 384, 1536)


def test_failed_engine_is_told(tmp_path: Path) -> None:
    """Keep the reason of an engine that cannot be measured."""
    task = Task(measures.Subject("medium", "none", tmp_path / "none"), tmp_path, QUICK)
    assert "none" in figures(task, lambda _: None).failure


def test_arithmetic_is_the_models(tiny_model: Path) -> None:
    """Count what the matrix products of a layer take: 21.2 million a token for MiniLM-L6."""
    assert Arithmetic(6, 384, 1536).flops([1]) == pytest.approx(21.2e6, rel=0.01)
    assert arithmetic(tiny_model) == TINY
    # attention grows with the square of the length
    one, two = TINY.flops([10]), TINY.flops([20])
    assert two - 2 * one == 4 * TINY.layers * TINY.hidden * 200


def test_share_is_of_the_own_ceiling() -> None:
    """Hold the best rate against the same runtime and precision, or against nothing."""
    ways = [("cpu:onnxruntime", "int8", 400.0), ("cpu:onnxruntime", "fp32", 100.0)]
    ceilings = tuple(Ceiling(*way, rows=8, lanes=1, threads=1) for way in ways)
    rates = tuple(Rate("short", n, 10, (1.0,), 10.0, gflops=10.0 * n) for n in (1, 5))
    figures = EngineFigures(
        level="low",
        model="m",
        random=False,
        provider="cpu:onnxruntime",
        precision="fp32",
        rates=rates,
        ceilings=ceilings,
    )
    assert figures.share == pytest.approx(0.5)
    assert replace(figures, precision="bf16").share is None
    assert Threads({"auto": 9.0, "1": 10.0, "2": 5.0}).share == pytest.approx(0.9)
    assert decode(EngineFigures, values(figures)) == figures


def values(figures: EngineFigures) -> dict[str, object]:
    """Give figures as JSON has them."""
    whole = Report("", "", Machine("", 1, (), "", ""), (figures,))
    [written] = json.loads(whole.to_json())["engines"]
    return dict(written)


@pytest.mark.parametrize("name", ["cpu:onnxruntime", "cpu:openvino"])
def test_ceiling_is_measured(tmp_path: Path, name: str) -> None:
    """Run bare products in every runtime and precision that this processor has for its CPU."""
    found = list(ceiling.ceilings(name, TINY, tmp_path, rows=(4,), seconds=0.005))
    pairs = {(each.provider, each.precision) for each in found}
    assert {("cpu:onnxruntime", "fp32"), ("cpu:openvino", "fp32")} <= pairs
    assert len(pairs) == len(found)
    assert all(each.gflops > 0 for each in found)


def test_single_texts_have_their_length(tiny_model: Path) -> None:
    """Ask texts as near to the wanted number of tokens as there are any."""
    kinds = {"a": ["a", "a b", "a b c"], "b": ["a b c d e"]}
    tokenizer = Tokenizer(tiny_model / "tokenizer.json", 48)
    lengths = {kind: tokenizer.encode(some).lengths.tolist() for kind, some in kinds.items()}
    some = measures.Texts(kinds, lengths)
    assert some.near(4)[0] == "a b"
    assert some.near(9)[0] == "a b c d e"


def test_profile_adds_up(tmp_path: Path, tiny_model: Path) -> None:
    """Divide a request's time among its steps, and the model's among its operators."""
    done = run(tmp_path, tiny_model, "profile", "network name", "--operators", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["texts"], found["tokens"], found["steps"]["runs"]) == (1, 4, 1)
    assert all(found["steps"][step] > 0 for step in ("tokenize", "queue", "run", "deliver"))
    assert 0 < sum(operator["share"] for operator in found["operators"]) <= 1 + 1e-9
    assert 0 < len(found["operators"]) <= 12


def test_profile_prints_a_table(tmp_path: Path, tiny_model: Path) -> None:
    """Show steps in order, by default without operators."""
    done = run(tmp_path, tiny_model, "profile", "--texts", "3")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("3 texts, ")
    steps = ["step", "tokenize", "queue", "run", "deliver", "whole"]
    assert [line.split()[0] for line in lines[1:]] == steps


@pytest.mark.parametrize("provider", ["cpu:onnxruntime", "cpu:openvino"])
def test_both_runtimes_tell_operators(
    settings: config.Config, tiny_model: Path, provider: str
) -> None:
    """Name the operators that multiply matrices, whichever runtime has run them."""
    level = LEVELS["medium"]
    chosen = replace(settings, execution_provider=parsing.ProviderRequest((provider,)))
    work = profile.profile(folder.read_model(tiny_model, level), chosen, ["a"], 1, operators=True)
    kinds = {operator.kind for operator in asyncio.run(work).operators}
    assert kinds & {"MatMul", "FusedMatMul", "Gemm", "FullyConnected"}
