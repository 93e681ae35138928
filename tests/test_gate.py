"""The accuracy gate: what is chosen, what is refused, and when it is measured anew."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import make_check_set
import numpy as np
import pytest

from opdbus.engine import gate, grading
from opdbus.engine.gate import Candidate, Grade, Report, choose
from opdbus.engine.tokenizer import Tokens
from opdbus.errors import ProviderError
from opdbus.models import build, folder
from opdbus.models.catalogue import LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opdbus.models.folder import Model

ROW = "cpu:onnxruntime"


def grade(precision: str, rate: float, cosine: float = 1.0, refused: str = "") -> Grade:
    """Make a grade."""
    return Grade(precision, cosine, cosine, 0.8, rate, refused)


FP32 = grade("fp32", 100)


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([], "fp32"),
        ([grade("bf16", 200, 0.9999)], "bf16"),
        ([grade("bf16", 109, 0.9999)], "fp32"),
        ([grade("bf16", 111, 0.9999)], "bf16"),
        ([grade("bf16", 90, 0.9999)], "fp32"),
        ([grade("int8", 300, 0.993, "it is off"), grade("bf16", 200, 0.9999)], "bf16"),
        ([grade("int8", 300, 0.993), grade("bf16", 200, 0.9999)], "int8"),
        ([grade("int8", 215, 0.993), grade("bf16", 200, 0.9999)], "bf16"),
        ([grade("int8", 300, 0.993, "off"), grade("bf16", 200, 0.9, "off")], "fp32"),
        ([grade("int8", 115, 0.993), grade("bf16", 90, 0.9999)], "int8"),
    ],
)
def test_choice(others: Sequence[Grade], chosen: str) -> None:
    """Take the fastest that passed, a less exact one only where it is a tenth faster."""
    for order in ([FP32, *others], [*others, FP32], [*others[::-1], FP32]):
        assert choose(order) == chosen


class CheckSet(grading.CheckSet):
    """Four texts and four questions, each about the text of its number."""

    def __init__(self) -> None:
        rows = [Tokens(np.array([n], np.int64), truncated=False) for n in range(8)]
        super().__init__(rows, 4, np.arange(4))


def unit(vectors: np.ndarray) -> np.ndarray:
    """Give vectors of length 1."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


EXACT = unit(np.concatenate([np.eye(4), np.eye(4) + 0.2]))


def graded(vectors: np.ndarray) -> Grade:
    """Grade vectors against exact ones."""
    check_set = CheckSet()
    return grading.grade("int8", vectors, (EXACT, check_set.rank(EXACT)), check_set, 5.0)


def test_rank() -> None:
    """Count mean reciprocal ranks: 1 where all right texts come first, less where others do."""
    check_set = CheckSet()
    assert check_set.rank(EXACT) == 1.0
    swapped = EXACT[[0, 1, 2, 3, 4, 5, 7, 6]]
    assert check_set.rank(swapped) == (1 + 1 + 0.5 + 0.5) / 4


def test_a_precision_that_passes() -> None:
    """Refuse nothing that is as good as fp32."""
    found = graded(EXACT)
    assert found == Grade("int8", 1.0, 1.0, 1.0, 5.0, "")


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
    check_set = CheckSet()
    exact = np.pad(EXACT, ((0, 0), (0, 1)))
    found = grading.grade("int8", turned(cosine, rows), (exact, 1.0), check_set, 5.0)
    assert found.min_cosine == pytest.approx(cosine, abs=1e-5)
    assert (found.refused == "") == passes
    if not passes:
        assert f"{cosine:.4f} at least" in found.refused


def test_refused_by_rank() -> None:
    """Refuse what loses more than half a point of rank, however near its vectors are."""
    check_set = CheckSet()
    for lost, passes in ((0.004, True), (0.006, False)):
        found = grading.grade("int8", EXACT, (EXACT, 1.0 + lost), check_set, 5.0)
        assert (found.refused == "") == passes
    assert found.refused == "it loses 0.60 points of mean reciprocal rank"


def test_a_gain_of_rank_is_no_loss() -> None:
    """Let a precision rank better than fp32 by chance."""
    assert grading.grade("int8", EXACT, (EXACT, 0.5), CheckSet(), 5.0).refused == ""


def test_the_check_set_is_made_from_the_example() -> None:
    """Keep the check set that the example state and its questions give."""
    assert gate.CHECK_SET.read_text(encoding="utf-8") == make_check_set.made()


def test_the_check_set_asks_much() -> None:
    """Hold enough texts and questions to tell half a point of rank."""
    content = json.loads(gate.CHECK_SET.read_text(encoding="utf-8"))
    assert len(content["texts"]) >= 40
    assert len(content["questions"]) >= 100
    assert all(0 <= number < len(content["texts"]) for _, number in content["questions"])


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    """Read the tiny model."""
    return folder.read(tiny_model, LEVELS["medium"])


@pytest.fixture(scope="module")
def candidate(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    """Build what ONNX Runtime's CPU provider is graded by."""
    cache = tmp_path_factory.mktemp("graphs")

    async def built(dialect: str) -> build.Built:
        return await build.ensure(model, cache, dialect)

    exact, fast = asyncio.run(built("float")), asyncio.run(built("int8-dynamic"))
    graphs = {"int8": str(fast.graph), "fp32": str(exact.graph)}
    return Candidate(ROW, "Example CPU", 0, frozenset({"avx2"}), graphs, str(exact.proof))


def judge(model: Model, candidate: Candidate, home: Path) -> Report:
    """Judge to the end."""
    return asyncio.run(gate.judge(model, candidate, home))


def test_a_report(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Grade each precision beside fp32 on real sessions, and keep what was found."""
    report = judge(model, candidate, tmp_path / "gates")
    assert (report.provider, report.hardware) == (ROW, "Example CPU")
    grades = {grade.precision: grade for grade in report.grades}
    assert grades.keys() == {"int8", "fp32"}
    assert grades["fp32"].min_cosine == pytest.approx(1.0, abs=1e-5)
    assert 0.95 < grades["int8"].min_cosine < 1 - 1e-5
    assert all(grade.texts_per_second > 100 for grade in report.grades)
    assert report.chosen == choose(report.grades)
    assert report.libraries
    (kept,) = (tmp_path / "gates").iterdir()
    assert Report.read(kept.read_text()) == report


def test_a_report_is_measured_once(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Give the report that is kept without opening anything."""
    first = judge(model, candidate, tmp_path)
    assert judge(model, candidate, tmp_path) == first
    unopened = replace(candidate, proof="/nonexistent")
    assert judge(model, unopened, tmp_path) == first


FAILED = Report(ROW, "CPU", {}, (grade("int8", 5, 0.9, "off"), FP32), "int8", 1.5).json()


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", '{"grades": [{"a": 1}]}', "\udc80", FAILED]
)
def test_an_unreadable_report(
    model: Model, candidate: Candidate, tmp_path: Path, content: str
) -> None:
    """Measure anew what cannot be read."""
    kept = tmp_path / f"{gate.key(model, candidate)}.json"
    kept.write_bytes(content.encode(errors="surrogateescape"))
    assert judge(model, candidate, tmp_path).provider == ROW
    assert list(tmp_path.iterdir()) == [kept]
    assert Report.read(kept.read_text()).provider == ROW


def other_graph(candidate: Candidate) -> dict[str, str]:
    """Name a graph of another version."""
    return {**candidate.graphs, "int8": candidate.graphs["int8"].replace("/model.", "-g99/model.")}


def test_a_report_belongs_to_what_it_measured(model: Model, candidate: Candidate) -> None:
    """Have another key for other weights, features, hardware, libraries, graphs or limits."""
    keys = {gate.key(model, candidate)}
    others: list[tuple[Any, Any]] = [
        (replace(model, weights_sha256="0"), candidate),
        (replace(model, tokenizer_sha256="0"), candidate),
        (replace(model, shape=replace(model.shape, max_tokens=20)), candidate),
        (model, replace(candidate, features=frozenset({"avx2", "avx512_vnni"}))),
        (model, replace(candidate, hardware="Another CPU")),
        (model, replace(candidate, provider="cpu:openvino")),
        (model, replace(candidate, graphs=other_graph(candidate))),
    ]
    for given in others:
        key = gate.key(*given)
        assert key not in keys
        keys.add(key)
    assert gate.key(model, replace(candidate)) in keys
    assert gate.libraries().keys() <= set(gate._LIBRARIES)
    assert gate.libraries()


def test_fp32_that_cannot_be_had(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Say in one sentence why fp32 itself fails, and keep no report."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(b"no graph")
    graphs = {**candidate.graphs, "fp32": str(broken / "model.onnx")}
    with pytest.raises(ProviderError) as caught:
        judge(model, replace(candidate, graphs=graphs), tmp_path / "gates")
    sentence = str(caught.value)
    assert sentence.startswith(f"{ROW} could not be graded: {ROW} cannot open the model: ")
    assert "\n" not in sentence
    assert not (tmp_path / "gates").exists()


def test_a_precision_that_cannot_be_had(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Refuse a precision whose graph computes in another, and go on with what is left."""
    report = judge(
        model,
        replace(candidate, graphs={**candidate.graphs, "int8": candidate.graphs["fp32"]}),
        tmp_path,
    )
    (fake,) = [grade for grade in report.grades if grade.precision == "int8"]
    assert "was to compute in int8" in fake.refused
    assert report.chosen == "fp32"


def test_a_child_that_dies(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Say in one sentence what the child complained of."""
    broken = replace(candidate, proof=str(tmp_path / "no-proof.npz"))
    with pytest.raises(ProviderError, match=r"could not be graded: cannot read .*no-proof.npz"):
        judge(model, broken, tmp_path / "gates")
    unknown = replace(candidate, provider="quantum")
    with pytest.raises(ProviderError, match="quantum could not be graded: KeyError: 'quantum'"):
        judge(model, unknown, tmp_path / "gates")


def test_a_report_is_plain_json() -> None:
    """Keep every figure under its name."""
    report = Report(ROW, "CPU", {"numpy": "2"}, (grade("int8", 5, 0.99, "off"), FP32), "fp32", 1.5)
    assert json.loads(report.json()) == json.loads(json.dumps(asdict(report)))
    assert Report.read(report.json()) == report


def test_a_report_that_cannot_be_kept(model: Model, candidate: Candidate, tmp_path: Path) -> None:
    """Give the report also where there is no place for it, and measure anew the next time."""
    (tmp_path / "file").write_text("")
    report = judge(model, candidate, tmp_path / "file" / "gates")
    assert report.provider == ROW
    assert report.chosen in {found.precision for found in report.grades}
