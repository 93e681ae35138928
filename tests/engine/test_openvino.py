"""OpenVINO's own runtime: the model's vectors, in the precision that it is said to compute in."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from harness.tiny import LAYERS

from opdbus.engine import cpus
from opdbus.engine.host import HERE
from opdbus.engine.proof import FP32_TOLERANCE, Probe, prove
from opdbus.engine.provider import Placement
from opdbus.engine.providers import PROVIDERS
from opdbus.errors import ProofFailed, ProviderError
from opdbus.models import build, folder
from opdbus.models.dialects import DIALECTS
from opdbus.models.level_table import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from opdbus.engine.sessions import OpenVinoSession

    Open = Callable[..., OpenVinoSession]

pytest.importorskip("openvino", reason="there is no OpenVINO here: `pip install openvino`")

ROW = PROVIDERS["cpu:openvino"]
MADE_FOR = {"int8": cpus.INT8, "bf16": cpus.BF16}


def needs(precision: str) -> pytest.MarkDecorator:
    """Skip a test where the processor is not made for a precision."""
    reason = f"this processor has nothing that makes {precision} fast"
    return pytest.mark.skipif(not HERE.features() & MADE_FOR[precision], reason=reason)


@pytest.fixture(scope="module")
def graphs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, build.Built]:
    """Build the tiny model's graphs, one for each dialect that the provider reads."""
    home, shape = (
        tmp_path_factory.mktemp("graphs"),
        folder.read_model(tiny_model, LEVELS["medium"]).shape,
    )
    made = {}
    for name in sorted(set(ROW.dialects.values())):
        made[name] = build.Built(home / name)
        made[name].folder.mkdir()
        weights = tiny_model / "model.safetensors"
        build.fill(weights, made[name].folder, shape, DIALECTS[name])
    return made


@pytest.fixture
def opened(graphs: dict[str, build.Built]) -> Open:
    """Give what opens the tiny model in a precision."""
    from opdbus.engine.sessions import OpenVinoSession

    def opener(precision: str = "fp32", **more: Any) -> OpenVinoSession:
        graph = graphs[ROW.dialects[precision]].graph
        return OpenVinoSession(graph, ROW, Placement(precision=precision, **more))

    return opener


@pytest.fixture
def probe(graphs: dict[str, build.Built]) -> Probe:
    """Read the tiny model's rows and reference vectors."""
    return Probe.read(graphs["rounded"].proof)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=needs("bf16")), "int8"])
def test_an_honest_session_passes(opened: Open, probe: Probe, precision: str) -> None:
    """Prove the real thing in each precision, with the nodes and products that were seen."""
    proof = prove(opened(precision), ROW, precision, probe)
    assert set(proof.nodes) == {"CPU"}
    assert proof.nodes["CPU"] > 20
    if precision == "fp32":
        assert proof.products == {"fp32": sum(proof.products.values())}
        assert 0 < proof.max_deviation < FP32_TOLERANCE
    else:
        # of int8 the first of the two layers stays in floats, and attention in both
        assert proof.products[precision] >= (LAYERS if precision == "int8" else 8)
        assert 1e-6 < 1 - proof.min_cosine < 1 - 0.99


@needs("bf16")
def test_fp32_in_disguise(graphs: dict[str, build.Built], probe: Probe) -> None:
    """Refuse to call bf16 what was compiled for fp32, and the other way round."""
    from opdbus.engine.sessions import OpenVinoSession

    for claimed, compiled in (("bf16", "fp32"), ("fp32", "bf16")):
        session = OpenVinoSession(graphs["rounded"].graph, ROW, Placement(precision=compiled))
        reason = rf"was to compute in {claimed}, but its matrix products ran: .* on {compiled}"
        with pytest.raises(ProofFailed, match=reason):
            prove(session, ROW, claimed, probe)


def test_int8_in_disguise(opened: Open, probe: Probe) -> None:
    """Refuse to call int8 what multiplies floats."""
    with pytest.raises(ProofFailed, match="was to compute in int8"):
        prove(opened("fp32"), ROW, "int8", probe)


def test_another_device(opened: Open, probe: Probe) -> None:
    """Refuse a session that OpenVINO put on another device than the row names."""
    elsewhere = opened("fp32")
    gpu = PROVIDERS["openvino"]
    elsewhere._runtime_name = gpu.runtime_name
    with pytest.raises(ProofFailed, match=r"no node .* ran on GPU or NPU, but \d+ on CPU"):
        prove(elsewhere, gpu, "fp32", probe)


def test_threads_share_a_session(opened: Open) -> None:
    """Give four threads at once what each gets alone, over fewer requests than threads."""
    session = opened("fp32", threads=2, lanes=2)
    random = np.random.default_rng(5)
    batches = [random.integers(0, 60, (1 + n % 5, 2 + n % 40)) for n in range(120)]
    alone = [session.run(ids) for ids in batches]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(session.run, batches))
    for one, other in zip(alone, together, strict=True):
        assert np.abs(one - other).max() < 1e-6


def test_vectors_are_the_callers_own(opened: Open) -> None:
    """Leave vectors as they were given when the session runs again."""
    session = opened("fp32")
    first = session.run(np.array([[2, 9, 3]]))
    kept = first.copy()
    session.run(np.array([[2, 40, 3]]))
    assert (first == kept).all()


def difference(session: OpenVinoSession, words: int) -> float:
    """Give the largest difference that it makes to a row whether others run with it."""
    random = np.random.default_rng(3)
    worst = 0.0
    for length in (2, 7, 16, 48):
        ids = random.integers(0, words, (16, length))
        together = session.run(ids)
        alone = np.concatenate([session.run(row[np.newaxis]) for row in ids])
        worst = max(worst, float(np.abs(alone - together).max()))
    return worst


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=needs("bf16"))])
def test_a_row_does_not_depend_on_its_batch(opened: Open, precision: str) -> None:
    """Give a row the same vector alone and among others."""
    assert difference(opened(precision), 60) < 1e-6


@pytest.mark.model
def test_int8_has_scales_of_its_own_for_each_row(
    medium_model: folder.Model, tmp_path: Path
) -> None:
    """Give a row the same int8 vector alone and among others, close to the model's own.

    Not of the tiny model, whose layers are narrower than the columns that share a scale.
    """
    from opdbus.engine.sessions import OpenVinoSession

    build.fill(medium_model.weights, tmp_path, medium_model.shape, DIALECTS["rounded-int8"])
    made = build.Built(tmp_path)
    session = OpenVinoSession(made.graph, ROW, Placement(precision="int8"))
    # what stays in floats is rounded by the processor, in batches of another form otherwise
    rounded = 0.005 if HERE.features() & cpus.BF16 else 1e-6
    assert difference(session, 30_000) < rounded
    assert prove(session, ROW, "int8", Probe.read(made.proof)).min_cosine > 0.98


def test_a_graph_that_cannot_be_read(tmp_path: Path) -> None:
    """Say in one line that the graph cannot be opened, and which."""
    from opdbus.engine.sessions import OpenVinoSession

    missing = tmp_path / "missing.onnx"
    with pytest.raises(ProviderError, match="cpu:openvino cannot open the model: ") as caught:
        OpenVinoSession(missing, ROW, Placement())
    assert str(missing) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_device_that_fails(graphs: dict[str, build.Built]) -> None:
    """Say in one line why OpenVINO does not compile for a device."""
    from opdbus.engine.sessions import OpenVinoSession

    there_is_none = replace(ROW, options=lambda _: {"device": "GPU.7", "config": {}})
    with pytest.raises(ProviderError, match="cpu:openvino cannot open the model: ") as caught:
        OpenVinoSession(graphs["rounded"].graph, there_is_none, Placement())
    assert "Exception from" not in str(caught.value)


def test_a_session_does_not_hide_its_errors(opened: Open) -> None:
    """Raise ProviderError for what the model cannot take, and go on with the next."""
    session = opened("fp32")
    row = np.zeros((1, 5), np.int64)
    before = session.run(row)
    for _ in range(3):
        with pytest.raises(ProviderError, match="the model's run failed: Can't set the input"):
            session.run(np.zeros((1, 5, 2), np.int64))
    assert (session.run(row) == before).all()


def test_nobody_is_told_that_it_is_imported() -> None:
    """Keep the package that openvino calls home with out of the process, and its thread."""
    code = """
import sys, threading
from opdbus.engine.host import openvino_core
openvino_core()
from openvino.tools.ovc import telemetry_utils
assert telemetry_utils.tm.__name__.endswith("stub"), telemetry_utils.tm
assert not [name for name in sys.modules if name.startswith("openvino_telemetry.")]
assert threading.active_count() == 1, threading.enumerate()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
