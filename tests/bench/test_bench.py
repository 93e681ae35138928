"""The benchmark: texts, contenders in processes of their own, the report, its table and chart."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest
from conftest import ROOT
from harness.running import is_alive

from opdbus import config
from opdbus.bench import machine, texts
from opdbus.engine.tokenizer import Tokenizer
from opdbus.models.folder import find_model
from opdbus.models.level_table import LEVELS

sys.path.append(str(ROOT / "benchmarks/engine"))
import peer_chart as chart
from peer_comparison import (
    Comparison,
    Entry,
    Figure,
    PeerReport,
    Plan,
    Subject,
    compare,
    print_comparison,
)
from peer_processes import (
    CONTENDERS,
    OURS,
    PEERS,
    REFERENCE,
    Contender,
    ContenderFailed,
    Process,
    Workspace,
    export,
)

Make = Callable[..., list[str]]

FAKE = """
import os
PACKAGES = ("numpy", "no-such-package")

def load(folder, scratch, threads, options):
    print("a library's chatter on stdout")
    if "refuses" in options:
        raise ValueError("no such model")

    def at(batch):
        def embed(texts):
            if "dies" in options:
                os._exit(3)
            if "hangs" in options:
                input_never_comes = os.read(os.pipe()[0], 1)
            if "breaks" in options and len(texts) > 2:
                raise MemoryError("too many texts")
            return [[float(len(text)), float(ord(text[0]))] for text in texts]
        return embed

    facts = {"precision": "fp32", "threads": str(threads), "settings": str(os.getpid())}
    return at, facts
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Write a tiny peer that can be told to fail."""
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    """Give a place without any peers' environments."""
    return Workspace(tmp_path / "venvs", tmp_path, dict(os.environ), limit=300)


def load(process: Process, **options: str) -> dict[str, object]:
    """Let a process load."""
    found: dict[str, object] = process.request(
        "load", folder="/", scratch="/", threads=2, options=options
    )
    return found


@pytest.mark.parametrize("make", [texts.objects, texts.shorts])
@pytest.mark.parametrize("count", [1, 100, 256, 1000])
def test_texts_are_different_and_always_the_same(make: Make, count: int) -> None:
    """Make as many texts as asked for, no two alike, the same in every run."""
    made = make(count)
    assert len(set(made)) == count
    assert make(count) == made
    assert make(count, seed=1) != made


@pytest.mark.model
@pytest.mark.parametrize(("make", "mean"), [(texts.objects, 56), (texts.shorts, 19)])
@pytest.mark.parametrize("count", [256, 512, 2000])
def test_texts_have_their_length(make: Make, mean: int, count: int) -> None:
    """Give texts the mean length in tokens that they are named for, and the spread of real ones."""
    folder = find_model(LEVELS["medium"], config.load({"HOME": "/"}))
    lengths = Tokenizer(folder / "tokenizer.json", 512).count(make(count))
    assert fmean(lengths) == pytest.approx(mean, abs=1)
    ordered = sorted(lengths)
    assert ordered[count // 10] < 0.8 * mean
    assert ordered[-count // 10] > 1.2 * mean
    # no contender cuts any, whatever limit its tokenizer bakes in
    assert ordered[-1] <= 128


def test_contender_answers(script: Path, place: Workspace) -> None:
    """Load, measure and give vectors in another process, whatever libraries print there."""
    with Process(Contender("fake", script), place) as process:
        loaded = load(process)
        measured = process.request("measure", texts=["a", "b", "c"], batch=2, whole=False)
        assert process.request("vectors", texts=["aa"], batch=1) == {"vectors": [[2.0, 97.0]]}
    assert loaded["facts"]["threads"] == "2"
    assert loaded["versions"].keys() == {"python", "numpy"}
    assert loaded["rss"] > 1 << 20
    assert 0 < measured["seconds"] < 5


def test_calls_have_the_batch_size(script: Path, place: Workspace) -> None:
    """Hand texts over `batch` a call, or all in one."""
    with Process(Contender("fake", script), place) as process:
        load(process, breaks="")
        process.request("measure", texts=["a", "b", "c"], batch=2, whole=False)
        with pytest.raises(ContenderFailed, match="fake cannot measure: MemoryError: too many"):
            process.request("measure", texts=["a", "b", "c"], batch=2, whole=True)


def test_refusing_contender_is_quoted(script: Path, place: Workspace) -> None:
    """Tell the error of a peer that cannot load in its own words."""
    with (
        Process(Contender("fake", script), place) as process,
        pytest.raises(ContenderFailed, match="fake cannot load: ValueError: no such model"),
    ):
        load(process, refuses="")


def test_dead_contender_is_told(script: Path, place: Workspace) -> None:
    """Tell the exit code of a peer that dies instead of answering."""
    with (
        Process(Contender("fake", script), place) as process,
        pytest.raises(ContenderFailed, match=r"fake is gone \(exit code 3.*chatter"),
    ):
        load(process, dies="")


def test_hanging_contender_is_ended(script: Path, place: Workspace) -> None:
    """End a peer that does not answer within the limit."""
    with (
        Process(Contender("fake", script), replace(place, limit=0.5)) as process,
        pytest.raises(ContenderFailed, match="at most 0 s a request"),
    ):
        load(process, hangs="")


def test_missing_environment_says_what_to_do(script: Path, place: Workspace) -> None:
    """Say `make peers` where a peer's environment is missing, also to export with."""
    with pytest.raises(ContenderFailed, match="run `make peers`"):
        Process(Contender("fake", script, venv="none"), place)
    with pytest.raises(ContenderFailed, match="run `make peers`"):
        export(Path("/"), "none", place)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_children_die_with_a_killed_parent(script: Path) -> None:
    """Leave no process behind when we are killed, not even a stopped one."""
    program = f"""
import os, signal, sys
from pathlib import Path
sys.path.append({str(PEERS.parent)!r})
from peer_processes import Contender, Process, Workspace
place = Workspace(Path("/"), Path("/"), dict(os.environ))
with Process(Contender("fake", Path({str(script)!r})), place) as process:
    reply = process.request("load", folder="/", scratch="/", threads=1, options={{}})
    process.pause()
    print(reply["facts"]["settings"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
    assert ran.returncode == -signal.SIGKILL
    child = ran.stdout.decode().strip()
    end = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_alive(child)


def contest(script: Path, **others: dict[str, str]) -> tuple[Contender, ...]:
    """Give fakes under our own names, and others with options."""
    ours = (Contender(OURS, script, own_batches=True), Contender(REFERENCE, script))
    return (*ours, *(Contender(name, script, options=options) for name, options in others.items()))


def plan(rounds: int = 2) -> Plan:
    """Give little to do."""
    return Plan({"object": ["a", "bb", "ccc"], "short": ["d", "e"]}, (1, 4), rounds)


@pytest.fixture
def subject(tiny_model: Path) -> Subject:
    """Name the tiny model."""
    return Subject("medium", "tiny", tiny_model)


def test_comparison_is_complete(script: Path, place: Workspace, subject: Subject) -> None:
    """Measure everyone with all texts in both ways at every batch size in every round."""
    found = compare(contest(script, peer={}), subject, plan(), place, lambda _: None)
    peer = {
        (figure.texts, figure.batch, figure.whole)
        for figure in found.figures
        if figure.contender == "peer"
    }
    assert peer == {(t, b, w) for t in ("object", "short") for b in (1, 4) for w in (False, True)}
    ours = [figure for figure in found.figures if figure.contender == OURS and figure.whole]
    assert [(figure.texts, figure.batch) for figure in ours] == [("object", 0), ("short", 0)]
    turns = {(figure.batch, len(figure.seconds)) for figure in found.figures}
    assert turns == {(1, 2), (4, 2), (0, 4)}
    assert [entry.cosine_min for entry in found.entries] == [pytest.approx(1)] * 3
    assert found.tokens.keys() == {"object", "short"}


def test_failures_are_told_and_stop_nobody(
    script: Path, place: Workspace, subject: Subject
) -> None:
    """Keep why a peer failed, whenever that was, and go on with the others."""
    others = {"refuser": {"refuses": ""}, "breaker": {"breaks": ""}, "peer": {}}
    missing = Contender("missing", script, venv="none")
    contenders = (*contest(script, **others), missing)
    told: list[str] = []
    found = compare(contenders, subject, plan(), place, told.append)
    failures = {entry.name: entry.failure for entry in found.entries}
    assert failures.keys() == {OURS, REFERENCE, "refuser", "breaker", "peer", "missing"}
    assert "no such model" in failures["refuser"]
    assert "too many texts" in failures["breaker"]
    assert "make peers" in failures["missing"]
    assert failures[OURS] == failures["peer"] == ""
    assert set(filter(None, failures.values())) <= set(told)
    assert {ratio.contender for ratio in found.ratios()} >= {REFERENCE, "peer"}


def test_interrupted_comparison_leaves_nobody(
    script: Path, place: Workspace, subject: Subject
) -> None:
    """Kill all children when the comparison is interrupted."""
    before = children()

    def interrupt(doing: str) -> None:
        if "round" in doing:
            assert len(children() - before) == 3
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(contest(script, peer={}), subject, plan(), place, interrupt)
    assert children() == before


def children() -> set[int]:
    """List our child processes."""
    return {int(pid) for pid in Path("/proc/self/task").glob("*/children") for pid in read(pid)}


def read(path: Path) -> list[str]:
    """Read words of a file."""
    return path.read_text().split()


def figure(contender: str, kind: str, batch: int, rate: float, *, whole: bool = False) -> Figure:
    """Make a figure of three rounds with this rate in the middle."""
    return Figure(contender, kind, batch, whole, 100, (100 / rate, 300 / rate, 33 / rate))


def report() -> PeerReport:
    """Make a report in which op-dbus is faster than one peer, and another failed."""
    figures = [figure(OURS, "short", batch, 400) for batch in (1, 2)]
    figures += [figure("peer", "short", batch, 100 * batch) for batch in (1, 2)]
    figures += [
        figure(OURS, "short", 0, 500, whole=True),
        figure("peer", "short", 1, 50, whole=True),
    ]
    entries = (
        Entry(OURS, {"numpy": "2"}, "fp32", "2", "cpu", 0.5, 1 << 28, 1.0, 1.0),
        Entry("peer", {"torch": "2"}, "bf16", "2", "cpu", 1.5, 1 << 29, 0.997, 0.999),
        Entry("lost", failure="lost is not installed: run `make peers` [now]"),
    )
    tokens = {"short": 19.0}
    found = Comparison("medium", "a model", tokens, entries, tuple(figures))
    return PeerReport("2026-11-21", "0.1.0", machine.describe(), comparisons=(found,))


def test_report_tells_what_follows() -> None:
    """Write rates of the middle round, and ratios of best to best and size by size."""
    [comparison] = json.loads(report().to_json())["comparisons"]
    assert comparison["figures"][0]["rate"] == pytest.approx(400)
    assert comparison["ratios"] == [
        {
            "contender": "peer",
            "texts": "short",
            "best": pytest.approx(2.5),
            "calls": {"1": pytest.approx(4), "2": pytest.approx(2)},
            "whole": {"1": pytest.approx(10)},
        }
    ]


def test_table_tells_failures(capsys: pytest.CaptureFixture[str]) -> None:
    """Show figures, ratio, and why a program has none."""
    [comparison] = report().comparisons
    print_comparison(comparison)
    text = capsys.readouterr().out
    assert "2.50x" in text
    assert "0.99700" in text
    assert "run `make peers` [now]" in text


def test_machine_is_described_from_proc(tmp_path: Path) -> None:
    """Name the processor and those features that matter, also where nothing is known."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("model name\t: Fast\nflags\t\t: fpu amx_bf16 avx2\n")
    found = machine.describe(tmp_path)
    assert (found.processor, found.features) == ("Fast", ("avx2", "amx_bf16"))
    assert machine.describe(tmp_path / "none").features == ()


def test_chart_is_drawn(tmp_path: Path) -> None:
    """Draw SVG, with colours for dark pages, and PNG, the same from the same report."""
    svg, png = chart.draw(report(), "medium", tmp_path)
    drawn = svg.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")
    # matplotlib writes texts as outlines, and what they say as comments
    assert all(f"<!-- {text} -->" in drawn for text in ("peer", "200   \u00d72.5", "failed"))
    for light, dark in chart.DARK.items():
        assert light in drawn
        assert f":{dark}!important" in drawn
    chart.draw(report(), "medium", tmp_path)
    assert svg.read_text() == drawn


def test_labels_are_pushed_apart() -> None:
    """Leave no two labels closer than the gap, in the order of what they name."""
    placed = chart.spread({"a": 0.5, "b": 0.5, "c": 0.51, "d": 0.9}, 0.1)
    names = sorted(placed, key=placed.__getitem__)
    assert names == ["a", "b", "c", "d"]
    assert all(placed[above] - placed[below] > 0.099 for below, above in pairwise(names))
    assert placed["d"] == pytest.approx(0.9)


def test_every_peer_can_be_made() -> None:
    """Have a script for every contender, and a list of packages in `make peers` for every venv."""
    rule = next(
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("peers:")
    )
    for contender in CONTENDERS:
        assert contender.script.is_file()
        if contender.venv:
            assert (PEERS / f"{contender.venv}.txt").is_file()
            assert contender.venv in rule.replace(",", " ").split()
    assert {OURS, REFERENCE} < {contender.name for contender in CONTENDERS}


def test_our_own_vectors_come_through(place: Workspace, subject: Subject) -> None:
    """Embed with op-dbus itself behind the peers' protocol."""
    ours = CONTENDERS[0]
    with Process(ours, place) as process:
        loaded = process.request(
            "load",
            folder=str(subject.folder),
            scratch=str(place.scratch),
            threads=1,
            options={**ours.options, "level": "medium"},
        )
        [vector] = process.request("vectors", texts=["network name"], batch=1)["vectors"]
    assert sum(x * x for x in vector) == pytest.approx(1, abs=1e-3)
    assert loaded["facts"].keys() == {"precision", "threads", "settings"}
