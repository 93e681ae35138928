"""The proof of a session, and the sessions that must not pass it."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness.sessions import Wrapped

from opdbus.engine.proof import FP32_TOLERANCE, LEAST_COSINE, Probe, Proof, prove
from opdbus.engine.provider import Placement, RunRecord, Session
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.sessions import OnnxSession
from opdbus.errors import ModelError, ProofFailed, ProviderError
from opdbus.models import build, folder
from opdbus.models.level_table import LEVELS

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
ONNXRUNTIME = PROVIDERS["cpu:onnxruntime"]


@pytest.fixture(scope="module")
def built(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> build.Built:
    """Build the tiny model's graph and proof."""
    made = build.Built(tmp_path_factory.mktemp("graphs") / "tiny")
    build.write_graph(
        tiny_model / "model.safetensors",
        made.folder,
        folder.read_model(tiny_model, LEVELS["medium"]).shape,
    )
    return made


@pytest.fixture
def probe(built: build.Built) -> Probe:
    """Read the tiny model's rows and reference vectors."""
    return Probe.read(built.proof)


def opened(built: build.Built) -> OnnxSession:
    """Open the tiny model for real."""
    return OnnxSession(built.graph, ONNXRUNTIME, Placement())


def proven(session: Session, probe: Probe, precision: str = "fp32") -> Proof:
    """Prove a session of ONNX Runtime's CPU provider."""
    return prove(session, ONNXRUNTIME, precision, probe)


class Liar(Wrapped):
    """A session that runs the real model, then alters its vectors or what it recorded."""

    def __init__(
        self,
        session: OnnxSession,
        *,
        alter: Callable[[np.ndarray], np.ndarray] = lambda vectors: vectors,
        nodes: dict[str, int] | None = None,
        products: dict[str, int] | None = None,
    ) -> None:
        super().__init__(session)
        self.alter = alter
        self.nodes = nodes
        self.products = products
        self.finished = 0

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Embed, and alter."""
        return self.alter(self.session.run(ids))

    def finish_profile(self) -> RunRecord:
        """Count nodes and matrix products, or lie about them."""
        self.finished += 1
        real = self.session.finish_profile()
        return RunRecord(
            real.nodes if self.nodes is None else self.nodes,
            real.products if self.products is None else self.products,
        )


def test_an_honest_session_passes(built: build.Built, probe: Probe) -> None:
    """Prove a real session, with what was seen."""
    proof = proven(opened(built), probe)
    assert proof.precision == "fp32"
    assert set(proof.nodes) == {CPU}
    assert proof.nodes[CPU] > 20
    assert proof.products.keys() == {"fp32"}
    # four of each of the two layers: queries, keys and values are one product
    assert proof.products["fp32"] == 8
    assert 0 < proof.max_deviation < FP32_TOLERANCE
    assert proof.min_cosine > 1 - 1e-6
    assert proof.tolerance == FP32_TOLERANCE == 1e-5
    assert proof.checked_at > 1.7e9


def test_the_double_itself_is_sound(built: build.Built, probe: Probe) -> None:
    """Pass a double that alters nothing, or what follows would prove nothing."""
    assert proven(Liar(opened(built)), probe).max_deviation < FP32_TOLERANCE


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ({CPU: 40}, r"no node of the model ran on CUDAExecutionProvider, but 40 on CPU"),
        ({CUDA: 39, CPU: 1}, r"part of the model ran elsewhere .*39 on CUDA.*, 1 on CPU"),
        ({}, "no node of the model ran on CUDAExecutionProvider, but nothing was recorded"),
        ({CUDA: 0}, "no node"),
    ],
)
def test_nodes_elsewhere(
    built: build.Built, probe: Probe, nodes: dict[str, int], reason: str
) -> None:
    """Catch a session that was asked for CUDA and ran all or part of the model elsewhere."""
    with pytest.raises(ProofFailed, match=reason):
        prove(Liar(opened(built), nodes=nodes), PROVIDERS["cuda"], "fp32", probe)


def test_where_else_nodes_may_run(built: build.Built, probe: Probe) -> None:
    """Let strict TensorRT place nodes on CUDA, never on the CPU, and never all of them."""
    tensorrt = PROVIDERS["tensorrt"]
    mixed = {TENSORRT: 30, CUDA: 10}
    assert prove(Liar(opened(built), nodes=mixed), tensorrt, "fp32", probe).nodes == mixed
    for nodes, reason in (
        ({TENSORRT: 30, CPU: 1}, "part of the model ran elsewhere"),
        ({CUDA: 40}, "no node of the model ran on Tensorrt"),
    ):
        with pytest.raises(ProofFailed, match=reason):
            prove(Liar(opened(built), nodes=nodes), tensorrt, "fp32", probe)


@pytest.mark.parametrize(
    ("products", "reason"),
    [
        ({"bf16": 12}, r"was to compute in fp32, but its matrix products ran: 12 on bf16"),
        ({"fp32": 4, "int8": 8}, r"ran: 4 on fp32, 8 on int8"),
        ({"fp16": 12, "": 1}, "ran: 12 on fp16"),
    ],
)
def test_another_precision(
    built: build.Built, probe: Probe, products: dict[str, int], reason: str
) -> None:
    """Catch a session whose matrix products ran in another precision than it was to."""
    with pytest.raises(ProofFailed, match=reason):
        proven(Liar(opened(built), products=products), probe)


def test_a_claim_of_int8(built: build.Built, probe: Probe) -> None:
    """Catch an fp32 session that is said to compute in int8, though its vectors are exact."""
    with pytest.raises(ProofFailed, match=r"to compute in int8, but .* on fp32"):
        proven(opened(built), probe, "int8")


def test_a_provider_that_does_not_tell(built: build.Built, probe: Probe) -> None:
    """Leave the precision to the vectors where a provider fuses the model into one node."""
    proof = proven(Liar(opened(built), nodes={CPU: 1}, products={}), probe, "fp16")
    assert (proof.precision, proof.products) == ("fp16", {})


def _turned(cosine: float) -> Callable[[np.ndarray], np.ndarray]:
    """Make what turns unit vectors away, so that they keep that cosine to what they were."""

    def turn(vectors: np.ndarray) -> np.ndarray:
        other = np.roll(vectors, 1, axis=1).astype(np.float64)
        other -= (other * vectors).sum(axis=1, keepdims=True) * vectors
        other /= np.linalg.norm(other, axis=1, keepdims=True)
        return (cosine * vectors + np.sqrt(1 - cosine**2) * other).astype(np.float32)

    return turn


@pytest.mark.parametrize("precision", sorted(LEAST_COSINE.keys() - {"fp32"}))
def test_rounding_has_its_limit(built: build.Built, probe: Probe, precision: str) -> None:
    """Let each faster precision round as far as its cosine allows, and no farther."""
    least = LEAST_COSINE[precision]
    inside, outside = _turned(least + 1e-4), _turned(least - 1e-4)
    claims = {precision: 12}
    proof = proven(Liar(opened(built), alter=inside, products=claims), probe, precision)
    assert proof.min_cosine == pytest.approx(least + 1e-4, abs=1e-6)
    assert proof.tolerance == pytest.approx(1 - least)
    with pytest.raises(ProofFailed, match=rf"{precision} gives vectors whose cosine .* only 0\."):
        proven(Liar(opened(built), alter=outside, products=claims), probe, precision)


def _off_in_one_row(vectors: np.ndarray) -> np.ndarray:
    if len(vectors) == 3:
        vectors[1, 5] += 1e-4
    return vectors


def _off_in_batches(vectors: np.ndarray) -> np.ndarray:
    return vectors if len(vectors) == 1 else vectors[::-1]


def _off_in_single_rows(vectors: np.ndarray) -> np.ndarray:
    return vectors + np.float32(2e-5) if len(vectors) == 1 else vectors


def _nan_in_batches(vectors: np.ndarray) -> np.ndarray:
    return vectors if len(vectors) == 1 else vectors * np.nan


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (_off_in_one_row, r"differ from the model's by 1\.0e-04"),
        (_off_in_single_rows, r"differ from the model's by 2\.\de-05"),
        (_off_in_batches, "differ from the model's"),
        (_nan_in_batches, "by nan"),
        (lambda vectors: vectors * np.nan, "by nan"),
        (lambda vectors: vectors * np.inf, "differ"),
        (lambda vectors: vectors * 2, "differ"),
        (lambda vectors: -vectors, "differ"),
        (lambda vectors: vectors[:, :-1], "by inf"),
        (lambda vectors: vectors[:, np.newaxis], "by inf"),
        (lambda vectors: vectors[:0], "by inf"),
        (lambda _vectors: None, "cannot run it"),
    ],
)
def test_wrong_vectors(
    built: build.Built, probe: Probe, alter: Callable[[np.ndarray], np.ndarray], reason: str
) -> None:
    """Catch vectors that are not the model's, alone or in a batch, and end the recording."""
    liar = Liar(opened(built), alter=alter)
    with pytest.raises(ProofFailed, match=reason):
        proven(liar, probe)
    assert liar.finished == 1


@pytest.mark.parametrize("factor", [0.0, 0.999, 1.001, 2.0])
def test_another_length(built: build.Built, probe: Probe, factor: float) -> None:
    """Catch vectors that point the right way and are not of length 1, in any precision."""
    liar = Liar(opened(built), alter=lambda v: v * np.float32(factor), products={"fp16": 12})
    reason = "length is off 1 by" if factor else "cosine to the model's is only nan"
    with pytest.raises(ProofFailed, match=reason):
        proven(liar, probe, "fp16")


def test_a_run_that_fails(built: build.Built, probe: Probe) -> None:
    """Turn a runtime's own error into a failed proof, and end the recording."""

    def refuse(_vectors: np.ndarray) -> np.ndarray:
        raise MemoryError("out of device memory")

    liar = Liar(opened(built), alter=refuse)
    with pytest.raises(ProofFailed, match="cannot run it: out of device memory"):
        proven(liar, probe)
    assert liar.finished == 1


def test_the_probe_runs_batches(probe: Probe) -> None:
    """Run each row alone, and those of one length together, the longest included."""
    alone = [batch for batch in probe.batches() if len(batch) == 1]
    together = [batch for batch in probe.batches() if len(batch) > 1]
    assert sorted(alone) == [[number] for number in range(len(probe.rows))]
    assert len(together) >= 3
    assert all(len({len(probe.rows[n]) for n in batch}) == 1 for batch in together)
    assert max(map(len, probe.rows)) == 48


def test_a_damaged_proof(tmp_path: Path) -> None:
    """Say which folder to delete when the proof's file is damaged."""
    path = tmp_path / "graph" / "proof.npz"
    path.parent.mkdir()
    for content in (b"", b"PK\x03\x04 nonsense", b"nonsense"):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=f"delete {path.parent}"):
            Probe.read(path)
    np.savez(path, vectors=np.zeros((2, 4), np.float32), row0=np.zeros(3, np.int64))
    with pytest.raises(ModelError, match="row1"):
        Probe.read(path)


def test_a_session_that_cannot_open(tmp_path: Path) -> None:
    """Say in one line that the graph cannot be opened."""
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ProviderError, match="cpu:onnxruntime cannot open the model") as caught:
        OnnxSession(tmp_path / "model.onnx", ONNXRUNTIME, Placement())
    assert "\n" not in str(caught.value)


def test_cuda_is_never_the_cpu_in_disguise(built: build.Built) -> None:
    """Refuse to open a session for CUDA where there is no CUDA, rather than run on the CPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(ProviderError, match=r"cuda cannot open .*(fallback|not in available)"):
        OnnxSession(built.graph, PROVIDERS["cuda"], Placement())


def test_no_retry_on_another_provider(built: build.Built) -> None:
    """Switch off onnxruntime's own retry on the CPU, which would outlive any proof."""
    session = opened(built)
    session.finish_profile()
    # a provider that fails at run time cannot be had here, so the switch itself is looked at
    assert session._session._enable_fallback is False


def test_a_session_does_not_hide_its_errors(built: build.Built) -> None:
    """Raise ProviderError for a row that the model cannot take, and go on with the next."""
    session = opened(built)
    row = np.zeros((1, 5), np.int64)
    before = session.run(row)
    for wrong in (np.full((1, 5), 10**6), np.zeros((1, 49), np.int64)):
        with pytest.raises(ProviderError, match="the model's run failed"):
            session.run(wrong)
    assert (session.run(row) == before).all()
    session.finish_profile()


_COUNTS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _COUNTS)


def allocated() -> int:
    """Count the bytes that the main thread has taken from the C library and not given back."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("this C library does not count what is allocated")
    libc.mallinfo2.restype = _Mallinfo
    return int(libc.mallinfo2().uordblks)


def test_a_proven_session_keeps_nothing_of_its_runs(built: build.Built, probe: Probe) -> None:
    """Take no more memory however often it runs: onnxruntime's threads would go on recording."""
    session = OnnxSession(built.graph, ONNXRUNTIME, Placement(threads=2))
    proven(session, probe)
    # enough for its products to be shared by the threads
    ids = np.ones((32, 40), np.int64)
    for _ in range(20):
        session.run(ids)
    before = allocated()
    for _ in range(250):
        session.run(ids)
    assert allocated() - before < 16 << 10


_SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from opdbus.engine.proof import Probe, prove
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.provider import Placement
from opdbus.engine.sessions import OnnxSession
folder, scratch = map(Path, sys.argv[1:])
provider = PROVIDERS["cpu:onnxruntime"]
session = OnnxSession(folder / "model.onnx", provider, Placement())
row = np.array([[2, 9, 3]])
before, during = session.run(row), len(list(scratch.iterdir()))
prove(session, provider, "fp32", Probe.read(folder / "proof.npz"))
after = session.run(row)
left = [str(path) for path in scratch.rglob("*")]
print(json.dumps([during, left, bool((before == after).all())]))
"""


def test_recording_ends_with_the_proof(built: build.Built, tmp_path: Path) -> None:
    """Leave no file behind after the proof, nor after later runs, whose vectors stay the same."""
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SCRIPT, built.folder, tmp_path],
        env={"TMPDIR": str(tmp_path)},
        cwd=tmp_path.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    during, left, same = json.loads(answer.stdout)
    assert during == 1
    assert (left, same) == ([], True)
    assert list(tmp_path.iterdir()) == []
    assert answer.stderr == ""
