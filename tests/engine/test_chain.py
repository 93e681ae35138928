"""The chain: the first provider of a request on which a model can be proven, and why not before."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from harness.machines import Library, host
from harness.sessions import Wrapped

from opdbus.engine.host import HERE
from opdbus.engine.provider import Placement, RunRecord
from opdbus.engine.provider_chain import Chain, Fallback
from opdbus.engine.providers import PROVIDERS, candidates
from opdbus.engine.sessions import OnnxSession, open_session
from opdbus.errors import ProofFailed, ProviderError
from opdbus.models import build, folder
from opdbus.models.level_table import LEVELS
from opdbus.settings import parsing
from opdbus.settings.parsing import ProviderRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from opdbus.config import Config
    from opdbus.engine.host import Host
    from opdbus.engine.provider import Provider, Session
    from opdbus.engine.provider_chain import Open, ProvenSessions
    from opdbus.models.folder import Model

# one on which `cpu` means OpenVINO first
AMX = frozenset({"amx_bf16", "amx_int8", "avx512_vnni"})
NO_DRIVER = host("cuda", without=["libcuda.so.1"], features=lambda: AMX)
DRIVERS = ["libcuda.so.1", "libamdhip64.so"]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    """Read the tiny model."""
    return folder.read_model(tiny_model, LEVELS["medium"])


@pytest.fixture
def config(settings: Config, tiny_graphs: Path) -> Config:
    """Give settings whose graphs are built already."""
    shutil.copytree(tiny_graphs, settings.state_dir / "graphs")
    return settings


def asking(config: Config, *names: str, **more: Any) -> Config:
    """Ask for providers."""
    request = ProviderRequest(names)
    return replace(config, execution_provider=request, **more)


def choose(
    model: Model,
    config: Config,
    opener: Open = open_session,
    machine: Host = HERE,
    lost: Sequence[Fallback] = (),
) -> ProvenSessions:
    """Choose to the end."""
    return asyncio.run(Chain(model, config, opener, machine).choose(lost))


class Posing(Wrapped):
    """A session of the CPU that passes for another provider's, its vectors altered if told to."""

    def __init__(
        self,
        graph: Path,
        provider: Provider,
        alter: Callable[[np.ndarray], np.ndarray],
        claims: str = "fp32",
    ) -> None:
        super().__init__(OnnxSession(graph, PROVIDERS["cpu:onnxruntime"], Placement()))
        self._provider = provider
        self._alter = alter
        self._claims = claims

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Embed, and alter."""
        return self._alter(super().run(ids))

    def finish_profile(self) -> RunRecord:
        """Count nodes, all as if they had run where and as they should."""
        ran = super().finish_profile()
        return RunRecord({self._provider.runtime_name: sum(ran.nodes.values())}, {self._claims: 12})


class Opener:
    """Opens posing sessions, and keeps what was asked; providers in `refusing` fail."""

    def __init__(
        self,
        *refusing: str,
        alter: Callable[[np.ndarray], np.ndarray] = lambda vectors: vectors,
        claims: str = "fp32",
    ) -> None:
        self.refusing = refusing
        self.alter = alter
        self.claims = claims
        self.asked: list[tuple[str, Placement]] = []

    def __call__(self, graph: Path, provider: Provider, placement: Placement) -> Session:
        """Open one, if this provider can."""
        self.asked.append((provider.name, placement))
        if provider.name in self.refusing:
            raise ProviderError(f"{provider.name} has no memory")
        return Posing(graph, provider, self.alter, self.claims)


def test_strict_cpu(model: Model, config: Config) -> None:
    """Give the proven session, its provider and hardware, and no fallbacks."""
    proven = choose(model, asking(config, "cpu:onnxruntime"))
    assert proven.provider.name == "cpu:onnxruntime"
    assert proven.hardware == HERE.processor()
    assert proven.fallbacks == ()
    assert proven.proof.max_deviation < 1e-5
    assert len(proven.sessions) == 1
    assert proven.report is None
    assert proven.weight_bytes > 10_000


def test_cpu_is_the_first_engine_that_is_there(model: Model, config: Config) -> None:
    """Take ONNX Runtime for `cpu` where OpenVINO suits better but is not installed: no fallback."""
    machine = host("cpu:onnxruntime", without=["openvino"], features=lambda: AMX)
    proven = choose(model, asking(config, "cpu"), Opener(), machine)
    assert proven.provider.name == "cpu:onnxruntime"
    assert proven.fallbacks == ()


@pytest.mark.parametrize(
    "machine",
    [
        host("", providers=["CPUExecutionProvider"], without=["openvino", *DRIVERS], adapters=[]),
        host("cuda", without=DRIVERS, adapters=[], openvino={"CPU": "Example CPU"}),
        host("cuda", library=Library(devices=0), adapters=[], openvino={"CPU": "Example CPU"}),
    ],
    ids=["cpu extra", "all extras, no driver", "a driver without a device"],
)
def test_auto_passes_over_hardware_that_is_not_there(
    model: Model, config: Config, machine: Host
) -> None:
    """Serve `auto` on the processor with no fallback where the machine has no accelerator."""
    asked = replace(config, execution_provider=parsing.providers("auto"))
    proven = choose(model, asked, Opener(), machine)
    assert proven.provider.is_cpu
    assert proven.fallbacks == ()
    # in a chain of one's own, each of them is one
    named = asking(config, *parsing.AUTO_CHAIN[1:])
    names = [each.provider for each in choose(model, named, Opener(), machine).fallbacks]
    assert names == [name for name in parsing.AUTO_CHAIN[1:] if name != "cpu"]


@pytest.mark.parametrize(
    ("vendor", "passed"),
    [
        ("nvidia", ["cuda", "webgpu"]),
        ("amd", ["migraphx", "webgpu"]),
        ("intel", ["openvino", "webgpu"]),
    ],
)
def test_auto_says_why_hardware_is_not_used(
    model: Model, config: Config, vendor: str, passed: list[str]
) -> None:
    """Record a fallback of `auto` where the hardware is there and something else is missing."""
    machine = host(
        "",
        providers=["CPUExecutionProvider"],
        without=["openvino", "onnxruntime_ep_webgpu", *DRIVERS],
        vendors=lambda: frozenset({vendor}),
    )
    asked = replace(config, execution_provider=parsing.providers("auto"))
    proven = choose(model, asked, Opener(), machine)
    assert [each.provider for each in proven.fallbacks] == passed
    assert all("-m pip install" in each.reason for each in proven.fallbacks)


@pytest.mark.parametrize(
    ("precision", "engine"),
    [("bf16", "cpu:openvino"), ("int8-blocks", "cpu:onnxruntime"), ("int8", "cpu:onnxruntime")],
)
def test_cpu_in_a_precision_of_one_runtime(
    model: Model, config: Config, precision: str, engine: str
) -> None:
    """Take for `cpu` the engine that computes in the precision that is set, with no fallback."""
    asked = asking(config, "cpu", precision=precision)
    proven = choose(model, asked, Opener(claims=precision), host(""))
    assert (proven.provider.name, proven.fallbacks) == (engine, ())


def test_cpu_in_a_precision_whose_runtime_is_missing(model: Model, config: Config) -> None:
    """Name the runtime to install for `cpu` in a precision that only it computes in."""
    asked = asking(config, "cpu", precision="bf16")
    with pytest.raises(ProviderError, match=r"openvino is not installed; .*op-dbus\[openvino\]"):
        choose(model, asked, Opener(), host("", without=["openvino"]))


def test_strict_cuda(model: Model, config: Config) -> None:
    """Refuse CUDA without a driver, saying what is missing and what to do, and build nothing."""
    shutil.rmtree(config.state_dir / "graphs")
    with pytest.raises(ProviderError, match=r"no NVIDIA driver here .*; install the driver"):
        choose(model, asking(config, "cuda"), Opener(), NO_DRIVER)
    assert not (config.state_dir / "graphs").exists()


def test_a_chain_moves_on(model: Model, config: Config) -> None:
    """Fall back along a chain, and record each reason in order."""
    opener = Opener("cpu:openvino")
    proven = choose(model, asking(config, "tensorrt", "cuda", "cpu"), opener, NO_DRIVER)
    assert proven.provider.name == "cpu:onnxruntime"
    reasons = {fallback.provider: fallback.reason for fallback in proven.fallbacks}
    assert list(reasons) == ["tensorrt", "cuda", "cpu:openvino"]
    assert "no NVIDIA driver here" in reasons["cuda"]
    assert reasons["cpu:openvino"] == "cpu:openvino has no memory"
    assert list(dict(opener.asked)) == ["cpu:openvino", "cpu:onnxruntime"]
    assert {fallback.reason_class for fallback in proven.fallbacks} == {"unavailable"}


def test_a_chain_that_ends(model: Model, config: Config) -> None:
    """Give every reason when no provider of a chain can be had."""
    opener = Opener("cpu:openvino", "cpu:onnxruntime")
    with pytest.raises(ProviderError, match=r"no NVIDIA driver.*; cpu:onnxruntime has no memory"):
        choose(model, asking(config, "cuda", "cpu"), opener, NO_DRIVER)


def test_what_was_lost_comes_last(model: Model, config: Config) -> None:
    """Try a provider that was lost after all others, and keep the reason of its loss."""
    lost = [Fallback("cpu:openvino", "it stopped working")]
    machine = host("", features=lambda: AMX)
    proven = choose(model, asking(config, "cpu"), Opener(), machine, lost)
    assert proven.provider.name == "cpu:onnxruntime"
    assert proven.fallbacks == (*lost,)
    again = choose(model, asking(config, "cpu:openvino"), Opener(), host(""), lost)
    assert again.provider.name == "cpu:openvino"


@pytest.mark.parametrize(
    "alter", [lambda vectors: vectors + np.float32(1e-4), lambda vectors: vectors * np.nan]
)
def test_a_lying_session_is_never_served(
    model: Model, config: Config, alter: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Refuse a provider whose vectors are not the model's."""
    with pytest.raises(ProviderError, match="its results cannot be trusted"):
        choose(model, asking(config, "cpu"), Opener(alter=alter))


def test_a_provider_that_raises_what_it_likes(model: Model, config: Config) -> None:
    """Move on from a session whose run fails with an error of its own."""

    def fail(_vectors: np.ndarray) -> np.ndarray:
        raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")

    with pytest.raises(ProviderError, match="cannot run it: CUBLAS_STATUS_ALLOC_FAILED"):
        choose(model, asking(config, "cpu"), Opener(alter=fail))


def test_a_real_session_elsewhere_is_refused(model: Model, config: Config) -> None:
    """Refuse CUDA whose session cannot be one, though driver and libraries are there."""
    with pytest.raises(ProviderError, match="cuda cannot open the model"):
        choose(model, asking(config, "cuda"), open_session, host("cuda"))


def test_several_devices(model: Model, config: Config) -> None:
    """Open and prove a session on each of the wanted devices, and name them all."""
    opener = Opener()
    proven = choose(model, asking(config, "cuda", gpu_device=("all",)), opener, host("cuda"))
    assert [placement.device for _, placement in opener.asked] == [0, 1]
    assert len(proven.sessions) == 2
    assert proven.hardware == "Example GPU 40, Example GPU 41"
    opener = Opener()
    choose(model, asking(config, "cuda", gpu_device=("1",)), opener, host("cuda"))
    assert [placement.device for _, placement in opener.asked] == [1]


def test_one_device_that_lies(model: Model, config: Config) -> None:
    """Refuse all devices where one of them fails its proof."""
    opened = []

    def opener(graph: Path, provider: Provider, placement: Placement) -> Session:
        opened.append(placement.device)
        off = np.float32(1e-3 if placement.device else 0)
        return Posing(graph, provider, lambda vectors: vectors + off)

    asked = asking(config, "cuda", gpu_device=("all",))
    with pytest.raises(ProviderError, match="differ from the model's"):
        choose(model, asked, opener, host("cuda"))
    assert opened == [0, 1]


def test_settings_reach_the_session(model: Model, config: Config) -> None:
    """Open the session with the threads and the memory limit of the settings."""
    opener = Opener()
    choose(model, asking(config, "cpu", threads=3, gpu_mem_limit=5), opener)
    choose(model, asking(config, "cpu", threads=64), opener)
    choose(model, asking(config, "cuda", gpu_mem_limit=7), opener, host("cuda"))
    (_, few), _, (_, many), _, (_, cuda) = opener.asked
    assert (few.threads, few.lanes, few.memory_limit, few.precision) == (3, 3, 5, "fp32")
    assert (many.threads, many.lanes) == (64, 8)
    assert (cuda.lanes, cuda.memory_limit) == (2, 7)
    assert cuda.cache == config.state_dir / "graphs"


@pytest.mark.parametrize("name", ["cpu:onnxruntime", "cpu:openvino"])
def test_a_session_for_single_texts(model: Model, config: Config, name: str) -> None:
    """Open and prove one more session, of one lane and most threads, where several lanes share."""
    opener = Opener()
    proven = choose(model, asking(config, name, threads=6), opener)
    assert proven.solo
    assert proven.solo not in proven.sessions
    (_, lanes), (_, solo) = opener.asked
    assert (lanes.threads, lanes.lanes) == (6, 6)
    assert (solo.threads, solo.lanes, solo.precision) == (4, 1, "fp32")


@pytest.mark.parametrize(("name", "threads"), [("cpu:onnxruntime", 1), ("cuda", 6)])
def test_no_session_for_single_texts(model: Model, config: Config, name: str, threads: int) -> None:
    """Open none where the lanes' own session is the same, or the provider has no use for it."""
    opener = Opener()
    proven = choose(model, asking(config, name, threads=threads), opener, host(name))
    assert proven.solo is None
    assert len(opener.asked) == 1


def test_a_session_for_single_texts_that_lies(model: Model, config: Config) -> None:
    """Refuse a provider whose session for single texts fails its proof, though the other passed."""
    seen = []

    def opener(graph: Path, provider: Provider, placement: Placement) -> Session:
        seen.append(placement.lanes)
        off = np.float32(1e-3 if placement.lanes == 1 else 0)
        return Posing(graph, provider, lambda vectors: vectors + off)

    with pytest.raises(ProviderError, match="differ from the model's"):
        choose(model, asking(config, "cpu:onnxruntime", threads=3), opener)
    assert seen == [3, 1]


def test_threads_that_nobody_set(model: Model, config: Config) -> None:
    """Use the processors that this process may use."""
    opener = Opener()
    choose(model, asking(config, "cpu"), opener)
    assert opener.asked[0][1].threads >= 1


def test_a_precision_that_is_not_offered(model: Model, config: Config) -> None:
    """Say which precisions a provider has when another is set, and move a chain on."""
    strict = asking(config, "cpu:onnxruntime", precision="bf16")
    with pytest.raises(ProviderError, match=r"not compute in bf16, but in int8, int8-blocks, fp32"):
        choose(model, strict, Opener())
    chain = asking(config, "cpu:onnxruntime", "cuda", "cpu", precision="bf16")
    proven = choose(model, chain, Opener(claims="bf16"), host("cuda"))
    assert proven.provider.name == "cpu:openvino"
    assert "cuda does not compute in bf16, but in fp16" in proven.fallbacks[1].reason


def test_a_precision_that_is_set_is_not_graded(model: Model, config: Config) -> None:
    """Take the set precision without asking the gate, though the processor is not made for it."""
    machine = replace(HERE, features=frozenset)
    asked = asking(config, "cpu:onnxruntime", precision="int8")
    proven = choose(model, asked, open_session, machine)
    assert proven.proof.precision == proven.placement.precision == "int8"
    assert proven.proof.products.keys() == {"int8"}
    assert proven.report is None
    assert not (config.state_dir / "gates").exists()


def test_sessions_share_the_words_that_were_used(model: Model, config: Config) -> None:
    """Read embeddings of used words only, once for all sessions, for the vectors of all words."""
    proven = choose(model, asking(config, "cpu:onnxruntime", precision="fp32"))
    graph = build.place(model, config.state_dir / "graphs", "float").graph
    whole = OnnxSession(graph, proven.provider, Placement())
    first, second = (OnnxSession(graph, proven.provider, proven.placement) for _ in range(2))
    ids = np.array([[2, 5, 9, 3], [2, 9, 7, 3]])
    assert np.array_equal(first.run(ids), whole.run(ids))
    assert first._words is second._words is not None
    assert whole._words is None
    used = first._words.values.any(axis=1).nonzero()[0]
    assert {2, 3, 5, 7, 9} <= set(used.tolist())
    for session in (whole, first, second):
        session.finish_profile()


@pytest.mark.usefixtures("any_speed_is_kept")
def test_the_gate_chooses(model: Model, config: Config) -> None:
    """Take the precision that the gate chose where there are several, and keep its report."""
    asked = asking(config, "cpu:onnxruntime", precision="auto")
    proven = choose(model, asked)
    assert proven.report
    assert {grade.precision for grade in proven.report.grades} == set(proven.provider.dialects)
    assert proven.proof.precision == proven.placement.precision == proven.report.chosen
    (kept,) = (config.state_dir / "gates").iterdir()
    # what is kept decides: nothing is measured again
    grades = [replace(grade, refused="") for grade in proven.report.grades]
    for grade in grades:
        fastest = [replace(g, texts_per_second=float(g is grade)) for g in grades]
        kept.write_text(replace(proven.report, grades=fastest, chosen=grade.precision).json())
        assert choose(model, asked).proof.precision == grade.precision


@pytest.mark.usefixtures("any_speed_is_kept")
def test_the_gate_chooses_the_engine(model: Model, config: Config) -> None:
    """Measure all engines that `cpu` means here side by side, and take the fastest precision."""
    pytest.importorskip("openvino", reason="openvino is not installed")
    asked = asking(config, "cpu", precision="auto")
    proven = choose(model, asked)
    assert proven.report
    assert proven.fallbacks == ()
    places = [(grade.provider, grade.precision) for grade in proven.report.grades]
    assert set(places) == {(row.name, name) for row in candidates(["cpu"]) for name in row.dialects}
    assert (proven.provider.name, proven.proof.precision) in places
    (kept,) = (config.state_dir / "gates").iterdir()
    # an engine that the gate chose and that cannot be had is passed over, in the other's best
    for name, other in (("cpu:openvino", "cpu:onnxruntime"), ("cpu:onnxruntime", "cpu:openvino")):
        fast = [
            replace(grade, refused="", texts_per_second=1.0 + (grade.provider == name))
            for grade in proven.report.grades
            if grade.precision == "fp32"
        ]
        kept.write_text(replace(proven.report, grades=fast, provider=name, chosen="fp32").json())
        assert choose(model, asked, Opener()).provider.name == name
        refused = choose(model, asked, Opener(name))
        assert (refused.provider.name, refused.proof.precision) == (other, "fp32")
        assert [fallback.provider for fallback in refused.fallbacks] == [name]


def test_a_driver_that_counts_nothing(model: Model, config: Config) -> None:
    """Move on from a driver without devices."""
    machine = host("cuda", library=Library(devices=0))
    proven = choose(model, asking(config, "cuda", "cpu"), Opener(), machine)
    assert "finds no GPU" in proven.fallbacks[0].reason


def test_a_proof_failure_is_a_provider_error() -> None:
    """Let a failed proof move a chain on, as any other reason does."""
    assert issubclass(ProofFailed, ProviderError)
