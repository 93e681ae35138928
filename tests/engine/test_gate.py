"""The accuracy gate: what is chosen, what is refused, and when it is measured anew."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scripts import make_check_set

from opdbus.engine import check_set, gate, grading
from opdbus.engine.check_set import CheckSet
from opdbus.engine.gate import Candidate, Grade, Report, choose
from opdbus.engine.host import versions
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.tokenizer import Tokens
from opdbus.errors import ProviderError
from opdbus.models import build, files, folder
from opdbus.models.level_table import LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.engine.gate import Prepare
    from opdbus.models.folder import Model

ROW = "cpu:onnxruntime"


def grade(precision: str, rate: float = 1.0, refused: str = "", provider: str = ROW) -> Grade:
    """Make a grade."""
    return Grade(
        provider=provider, precision=precision, texts_per_second=rate, rank=0.8, refused=refused
    )


FP32 = grade("fp32", 100)


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([], "fp32"),
        ([grade("bf16", 200)], "bf16"),
        ([grade("bf16", 90)], "fp32"),
        ([grade("int8", 300, "it is off"), grade("bf16", 200)], "bf16"),
        ([grade("int8", 300), grade("bf16", 200)], "int8"),
        ([grade("int8", 300, "off"), grade("bf16", 200, "off")], "fp32"),
        ([grade("int8", 201, provider="cpu:openvino"), grade("bf16", 200)], "int8"),
    ],
)
def test_choice(others: Sequence[Grade], chosen: str) -> None:
    """Take the fastest that passed, in whatever order they come."""
    for order in ([FP32, *others], [*others, FP32], [FP32, *others[::-1]]):
        assert choose(order).precision == chosen


# Four texts, a question about each, and two pairs.
NUMBERS = np.arange(12)
ROWS = Tokens(NUMBERS, NUMBERS, np.ones(12, np.intp), np.zeros(12, np.bool_))
SMALL = CheckSet(ROWS, 4, np.arange(4))


def unit(vectors: np.ndarray) -> np.ndarray:
    """Give vectors of length 1."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


EXACT = unit(np.concatenate([np.eye(4), np.eye(4) + 0.2, np.eye(4)[:2], np.eye(4)[:2]]))


def test_ranks() -> None:
    """Rank right texts, and both wordings of a pair: 1 where they come first, less elsewhere."""
    assert list(SMALL.ranks(EXACT)) == [1] * 6
    assert list(SMALL.ranks(EXACT[: SMALL.sample])) == [1] * 4
    swapped = EXACT[[0, 1, 2, 3, 4, 5, 7, 6, 8, 9, 11, 10]]
    assert list(SMALL.ranks(swapped)) == [1, 1, 0.5, 0.5, 0.5, 0.5]


def test_the_interval_of_a_change() -> None:
    """Give the mean change with an interval that holds it, narrow where all change alike."""
    exact = np.linspace(0.1, 1, 500)
    assert check_set.interval(exact - exact) == (0, 0, 0)
    moved, low, high = check_set.interval(exact - 0.01 - exact)
    assert (moved, low, high) == pytest.approx((-0.01, -0.01, -0.01))
    noise = np.random.default_rng(1).normal(0, 0.1, 500)
    moved, low, high = check_set.interval(exact + noise - exact)
    assert low < moved < high
    # what theory says of a mean: 1.96 x 0.1 / sqrt(500) to each side
    assert (high - low) / 2 == pytest.approx(1.96 * 0.1 / np.sqrt(500), rel=0.1)
    # the same questions in another order are the same questions
    assert check_set.interval(exact - (exact - 0.5))[1] > 0.49


def compared(vectors: np.ndarray, exact: np.ndarray) -> Grade:
    """Compare vectors with exact ones."""
    return grading.compare_vectors(grade("int8"), SMALL, vectors, exact)


def test_a_precision_that_passes() -> None:
    """Refuse nothing that is as good as fp32."""
    found = compared(EXACT, EXACT)
    assert (found.mean_cosine, found.min_cosine, found.rank) == (1, 1, 1)
    assert (found.rank_change, found.change_low, found.change_high) == (0, 0, 0)
    assert (found.questions, found.refused) == (6, "")


def turned(cosine: float, rows: slice) -> np.ndarray:
    """Turn some exact vectors away, all into a direction that no other has."""
    wide = np.pad(EXACT, ((0, 0), (0, 1)))
    away = np.zeros_like(wide)
    away[:, -1] = 1
    wide[rows] = cosine * wide[rows] + np.sqrt(1 - cosine**2) * away[rows]
    return wide.astype(np.float32)


@pytest.mark.parametrize(
    ("rows", "cosine", "passes"),
    [
        (slice(None), 0.991, True),
        (slice(None), 0.989, False),
        (slice(1), 0.951, True),
        (slice(1), 0.949, False),
    ],
)
def test_refused_by_cosine(rows: slice, cosine: float, *, passes: bool) -> None:
    """Refuse a mean cosine below 0.99, and a single one below 0.95, with the figures."""
    found = compared(turned(cosine, rows), np.pad(EXACT, ((0, 0), (0, 1))))
    assert found.min_cosine == pytest.approx(cosine, abs=1e-5)
    assert (found.refused == "") == passes
    if not passes:
        assert f"{cosine:.4f} at least" in found.refused


@pytest.mark.parametrize(
    ("low", "high", "of_some", "of_all"),
    [
        (-0.009, 0.001, "", ""),
        (-0.011, 0.009, "open", "refused"),
        (-0.030, -0.011, "refused", "refused"),
        (0.010, 0.020, "", ""),
    ],
)
def test_refused_by_rank(low: float, high: float, of_some: str, of_all: str) -> None:
    """Refuse what surely loses a point, and what may lose one after all questions were asked."""
    found = replace(grade("int8"), mean_cosine=1, min_cosine=1, change_low=low, change_high=high)
    for is_last, expected in ((False, of_some), (True, of_all)):
        why = grading.describe_loss(found, is_last=is_last)
        rating = replace(found, refused=why)
        assert ("refused" if why else "open" if grading.is_undecided(rating) else "") == expected
        assert not why or f"{100 * low:+.2f} to {100 * high:+.2f} points from fp32's" in why


def test_refused_by_speed() -> None:
    """Refuse what is as fast as fp32 within the limit of ties: that is not worth other vectors."""
    assert grading.too_slow(1.05) == ""
    assert grading.too_slow(1.04) == "it is only 1.040 times as fast as fp32"


@pytest.mark.parametrize(
    ("rate", "chosen"), [(104, "bf16"), (106, "int8"), (96, "bf16"), (94, "bf16")]
)
def test_of_equal_speeds_the_smaller_error_decides(rate: float, chosen: str) -> None:
    """Take the more exact one of two whose speeds differ by less than 5%, else the faster."""
    others = [
        replace(grade("int8", rate), mean_cosine=0.998),
        replace(grade("bf16", 100), mean_cosine=0.9999),
    ]
    assert choose([replace(grade("fp32", 50), mean_cosine=1), *others]).precision == chosen


@pytest.mark.parametrize(
    ("seconds", "fastest", "spread", "runs"),
    [
        ([1.0] * 30, 1.0, 0.0, 5),
        # one that was interrupted is no matter
        ([1.0, 1.0, 9.0, 1.1, 1.1, *[1.0] * 25], 1.0, 0.1, 5),
        # the next ones agree
        ([1.0, 2.0, 2.0, 2.0, 2.0, *[2.0] * 25], 2.0, 0.0, 6),
        ([1.0, 2.0, 2.0] * 10, 1.0, 1.0, 30),
    ],
)
def test_runs_are_made_until_they_agree(
    seconds: list[float], fastest: float, spread: float, runs: int
) -> None:
    """Take the fastest of five runs, once their middle one is at most 15% slower, or the last."""
    found = [grading.compare_runs(seconds[:count]) for count in range(1, 31)]
    assert found.index(next(filter(None, found))) == runs - 1
    assert found[runs - 1] == (pytest.approx(fastest), pytest.approx(spread))


def test_the_pairs_are_two_wordings() -> None:
    """Hold hundreds of meanings, each in two different wordings."""
    found = check_set.wording_pairs()
    assert len(found) == len(set(found)) > 800
    assert all(one and other and one != other for one, other in found)


def test_the_check_set_is_made_from_the_example() -> None:
    """Keep the check set that the example state and its questions give."""
    assert check_set.FILE.read_text(encoding="utf-8") == make_check_set.made()


def test_the_check_set_asks_much() -> None:
    """Hold enough texts and questions to tell half a point of rank."""
    content = json.loads(check_set.FILE.read_text(encoding="utf-8"))
    assert len(content["texts"]) >= 40
    assert len(content["questions"]) >= 100
    assert all(0 <= number < len(content["texts"]) for _, number in content["questions"])


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    """Read the tiny model."""
    return folder.read_model(tiny_model, LEVELS["medium"])


@pytest.fixture(scope="module")
def built(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build what ONNX Runtime's CPU provider is graded by."""
    cache = tmp_path_factory.mktemp("graphs")
    for dialect in PROVIDERS[ROW].dialects.values():
        asyncio.run(build.ensure(model, cache, dialect))
    return cache


@pytest.fixture
def candidate(model: Model, built: Path, tmp_path: Path) -> Candidate:
    """Copy it, since what loses is removed."""
    cache = tmp_path / "graphs"
    shutil.copytree(built, cache)
    places = {
        name: build.place(model, cache, dialect)
        for name, dialect in PROVIDERS[ROW].dialects.items()
    }
    graphs = {ROW: {precision: str(place.graph) for precision, place in places.items()}}
    return Candidate("Example CPU", 0, frozenset({"avx2"}), graphs, str(places["fp32"].proof))


async def nothing() -> None:
    """Build nothing: it is there."""


def judge(model: Model, candidate: Candidate, home: Path, prepare: Prepare = nothing) -> Report:
    """Judge to the end."""
    return asyncio.run(gate.judge(model, candidate, home, prepare))


@pytest.mark.usefixtures("any_speed_is_kept")
def test_a_report(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Grade each precision beside fp32 on real sessions, and keep what was found."""
    report = judge(model, candidate, tmp_path / "gates")
    assert (report.provider, report.hardware) == (ROW, "Example CPU")
    grades = {grade.precision: grade for grade in report.grades}
    assert grades.keys() == PROVIDERS[ROW].dialects.keys()
    assert {grade.provider for grade in report.grades} == {ROW}
    assert grades["fp32"].min_cosine == pytest.approx(1.0, abs=1e-5)
    assert 0.95 < grades["int8"].min_cosine < 1 - 1e-5
    assert grades["int8"].min_cosine < grades["int8-blocks"].min_cosine < 1 - 1e-6
    for grade in report.grades:
        assert grade.texts_per_second > 0
        assert grade.spread >= 0
        assert grade.change_low <= grade.rank_change <= grade.change_high
    assert report.chosen == choose(report.grades).precision == report.best(ROW)
    assert report.best("cpu:other") == "fp32"
    assert report.libraries
    (kept,) = (tmp_path / "gates").iterdir()
    assert Report.read(kept.read_text()) == report
    # what lost takes no room
    assert candidate.there == {candidate.graphs[ROW][report.chosen]}
    # what is kept decides, and nothing is opened again
    shutil.rmtree(tmp_path / "graphs")
    assert judge(model, candidate, tmp_path / "gates") == report


def test_two_that_judge(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Measure again what another process has removed meanwhile, instead of refusing it."""
    lost = Path(candidate.graphs[ROW]["int8"]).parent
    copy = shutil.copytree(lost, tmp_path / "copy")

    async def prepare() -> None:
        if lost.exists():
            # it happens before the child has begun
            asyncio.get_running_loop().call_soon(shutil.rmtree, lost)
        else:
            shutil.copytree(copy, lost)

    report = judge(model, candidate, tmp_path / "gates", prepare)
    assert "cannot open" not in "".join(grade.refused for grade in report.grades)


FAILED = Report(ROW, "CPU", {}, (grade("int8", 5, "off"), FP32), "int8", 1.5).json()


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"grades": [{"a": 1}]}', FAILED])
def test_what_is_no_report(content: str) -> None:
    """Take nothing for a report that is none, or that chose what did not pass."""
    with pytest.raises((ValueError, TypeError, KeyError)):
        Report.read(content)


def test_unsteady_speeds_are_not_kept(candidate: Candidate, tmp_path: Path) -> None:
    """Keep no report on speeds that something else disturbed, nor graphs that are not used."""
    for spread, is_kept in ((0.16, False), (0.15, True)):
        grades = tuple(replace(each, spread=spread) for each in (FP32, grade("int8", 5)))
        report = Report(ROW, "CPU", {}, grades, "fp32", 1.5)
        path = tmp_path / "gates" / "report.json"
        gate._store(candidate, report, path, report.json())
        assert path.exists() == is_kept
        assert candidate.there == {candidate.graphs[ROW]["fp32"]}


def test_reports_are_forgotten(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Measure again after the stored reports were removed, and remove nothing else."""
    home = tmp_path / "gates"
    gate.forget(home)
    home.mkdir()
    (home / "other").write_text("")
    kept = home / f"{gate.key(model, candidate)}.json"
    kept.write_text(Report(ROW, "CPU", {}, (FP32,), "fp32", 1.5).json())
    assert gate.kept(model, candidate, home)
    gate.forget(home)
    assert gate.kept(model, candidate, home) is None
    assert [each.name for each in home.iterdir()] == ["other"]


@pytest.mark.usefixtures("any_speed_is_kept")
def test_an_unreadable_report(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Measure anew what cannot be read."""
    home = tmp_path / "gates"
    home.mkdir()
    kept = home / f"{gate.key(model, candidate)}.json"
    kept.write_bytes(b"\x80")
    assert judge(model, candidate, home).provider == ROW
    assert list(home.iterdir()) == [kept]
    assert Report.read(kept.read_text()).provider == ROW


def test_gradings_wait_for_each_other(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Measure nothing while another process grades with the same folder of graphs."""

    def waits() -> bool:
        inode = (tmp_path / "graphs" / grading.LOCK).stat().st_ino
        locks = Path("/proc/locks").read_text()
        return any("->" in line and f":{inode} " in line for line in locks.splitlines())

    async def work() -> None:
        with files.locked(tmp_path / "graphs" / grading.LOCK):
            second = asyncio.create_task(gate.judge(model, candidate, tmp_path / "gates", nothing))
            while not waits():
                assert not second.done()
                await asyncio.sleep(0.01)
        assert (await second).grades

    if sys.platform != "linux":
        pytest.skip("there is no list of locks")
    asyncio.run(work())


def with_graph(candidate: Candidate, precision: str, graph: str) -> Candidate:
    """Name another graph for a precision."""
    return replace(candidate, graphs={ROW: {**candidate.graphs[ROW], precision: graph}})


def test_a_report_belongs_to_what_it_measured(model: Model, candidate: Candidate) -> None:
    """Have another key for other weights, features, hardware, libraries, graphs or limits."""
    keys = {gate.key(model, candidate)}
    others: list[tuple[Any, Any]] = [
        (replace(model, weights_sha256="0"), candidate),
        (replace(model, tokenizer_sha256="0"), candidate),
        (replace(model, shape=replace(model.shape, max_tokens=20)), candidate),
        (model, replace(candidate, features=frozenset({"avx2", "avx512_vnni"}))),
        (model, replace(candidate, hardware="Another CPU")),
        (model, replace(candidate, graphs={"cpu:openvino": candidate.graphs[ROW]})),
        (model, with_graph(candidate, "int8", "graphs/abc-int8-dynamic-g99/model.onnx")),
    ]
    for given in others:
        key = gate.key(*given)
        assert key not in keys
        keys.add(key)
    assert gate.key(model, replace(candidate)) in keys
    assert versions(gate.LIBRARIES)


def test_fp32_that_cannot_be_had(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Say in one sentence why fp32 itself fails, and keep no report."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(b"no graph")
    without = with_graph(candidate, "fp32", str(broken / "model.onnx"))
    with pytest.raises(ProviderError) as caught:
        judge(model, without, tmp_path / "gates")
    sentence = str(caught.value)
    assert sentence.startswith(f"{ROW} could not be graded: {ROW} cannot open the model: ")
    assert "\n" not in sentence
    assert not (tmp_path / "gates").exists()


def test_a_precision_that_cannot_be_had(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Refuse a precision whose graph computes in another, and go on with what is left."""
    unfit = with_graph(candidate, "int8", candidate.graphs[ROW]["fp32"])
    unfit = with_graph(unfit, "int8-blocks", "/nonexistent/model.onnx")
    report = judge(model, unfit, tmp_path)
    refused = {grade.precision: grade.refused for grade in report.grades}
    assert "was to compute in int8" in refused["int8"]
    assert "cannot open the model" in refused["int8-blocks"]
    assert report.chosen == "fp32"


def test_a_child_that_dies(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Say in one sentence what the child complained of."""
    broken = replace(candidate, proof=str(tmp_path / "no-proof.npz"))
    with pytest.raises(ProviderError, match=r"could not be graded: cannot read .*no-proof.npz"):
        judge(model, broken, tmp_path / "gates")
    unknown = replace(candidate, graphs={"quantum": candidate.graphs[ROW]})
    with pytest.raises(ProviderError, match="quantum could not be graded: KeyError: 'quantum'"):
        judge(model, unknown, tmp_path / "gates")


def test_a_report_is_plain_json() -> None:
    """Keep every figure under its name."""
    report = Report(ROW, "CPU", {"numpy": "2"}, (grade("int8", 5, "off"), FP32), "fp32", 1.5)
    assert json.loads(report.json()) == json.loads(json.dumps(asdict(report)))
    assert Report.read(report.json()) == report


def test_a_report_that_cannot_be_kept(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Give the report also where there is no place for it, and measure anew the next time."""
    (tmp_path / "file").write_text("")
    report = judge(model, candidate, tmp_path / "file" / "gates")
    assert report.provider == ROW
    assert report.chosen in {found.precision for found in report.grades}
