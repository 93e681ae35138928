"""Profile of a request: time of each engine step, and of each kind of operator."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from opdbus.engine.opening import open_embedder
from opdbus.engine.sessions import open_session
from opdbus.engine.tokenizer import Tokens
from opdbus.models import build

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opdbus.config import Config
    from opdbus.engine.embedder import Embedder
    from opdbus.engine.provider import Placement, Provider, Session
    from opdbus.models.folder import Model

    # kind and name of a node
    Node = tuple[str, str]

_WARM: Final = 5
_MOST_OPERATORS: Final = 12
# Runs whose operators are timed.
_PROFILED: Final = 10


@dataclass(frozen=True, slots=True)
class Steps:
    """Milliseconds of one request, in order; they add up to `whole`.

    `run` is from the first batch's start to the last one's end, `runs` is the number of batches.
    """

    tokenize: float
    queue: float
    run: float
    deliver: float
    whole: float
    runs: int


@dataclass(frozen=True, slots=True)
class Operator:
    """Operators of one kind: their milliseconds in one run of the model, and their share of it."""

    kind: str
    count: int
    milliseconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Profile of a request of some texts; steps are medians over `requests` requests."""

    texts: int
    tokens: int
    provider: str
    precision: str
    requests: int
    steps: Steps
    operators: tuple[Operator, ...] = ()


class Watched:
    """A session whose runs are timed; other attributes are the inner session's."""

    def __init__(self, inner: Session, runs: list[tuple[float, float]]) -> None:
        self.inner = inner
        self._runs = runs

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- the session's own
        return getattr(self.inner, name)

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embed, and record start and end."""
        began = time.perf_counter()
        vectors = self.inner.run(ids)
        self._runs.append((began, time.perf_counter()))
        return vectors


async def profile(
    model: Model, config: Config, texts: Sequence[str], requests: int, *, operators: bool = False
) -> Profile:
    """Embed the texts together, `requests` times; raises ModelError and ProviderError."""
    runs: list[tuple[float, float]] = []

    def opener(graph: Path, provider: Provider, placement: Placement) -> Session:
        return Watched(open_session(graph, provider, placement), runs)

    async with open_embedder(model, config, opener) as engine:
        found = [await _steps(engine, texts, runs) for _ in range(_WARM + requests)][_WARM:]
        rows = await engine.tokenize(texts)
        proven = engine.proven
    inside: Sequence[Operator] = ()
    if operators and isinstance(rows, Tokens):
        provider = proven.provider
        cache, dialect = config.state_dir / "graphs", provider.dialects[proven.proof.precision]
        built = await build.ensure(model, cache, dialect)
        ids = rows.stacked([0])
        inside = profile_operators(built.graph, provider, proven.placement, ids)[:_MOST_OPERATORS]
    tokens, precision = int(rows.lengths.sum()), proven.proof.precision
    names = ("tokenize", "queue", "run", "deliver", "whole")
    middle = {name: median(getattr(steps, name) for steps in found) for name in names}
    steps = Steps(**middle, runs=round(median(each.runs for each in found)))
    return Profile(
        len(texts), tokens, proven.provider.name, precision, requests, steps, tuple(inside)
    )


async def _steps(engine: Embedder, texts: Sequence[str], runs: list[tuple[float, float]]) -> Steps:
    runs.clear()
    asked = time.perf_counter()
    rows = await engine.tokenize(texts)
    tokenized = time.perf_counter()
    await engine.scheduler.embed(rows)
    answered = time.perf_counter()
    began, ended = min(run[0] for run in runs), max(run[1] for run in runs)
    points = (asked, tokenized, began, ended, answered)
    tokenize, queue, run, deliver = (1000 * (end - start) for start, end in pairwise(points))
    return Steps(tokenize, queue, run, deliver, 1000 * (answered - asked), len(runs))


def profile_operators(
    graph: Path, provider: Provider, placement: Placement, ids: NDArray[np.int64]
) -> list[Operator]:
    """Run a batch in a session with the runtime's own profiling; return its operators by kind."""
    read = _openvino_nodes if provider.runtime == "openvino" else _onnxruntime_nodes
    spent: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for (kind, _), microseconds in read(graph, provider, placement, ids).items():
        spent[kind] += round(1000 * microseconds)
        counts[kind] += 1
    whole = spent.total() or 1
    return [
        Operator(kind, counts[kind], total / 1e6, total / whole)
        for kind, total in spent.most_common()
        if total
    ]


def _onnxruntime_nodes(
    graph: Path, provider: Provider, placement: Placement, ids: NDArray[np.int64]
) -> dict[Node, float]:
    """Return each node's microseconds in its fastest run: other processes interrupt some runs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = placement.threads
    options.enable_profiling = True
    with tempfile.TemporaryDirectory(prefix="op-dbus-profile-") as scratch:
        options.profile_file_prefix = str(Path(scratch) / "run")
        named = [(provider.runtime_name, provider.options(placement))]
        session = onnxruntime.InferenceSession(graph, options, providers=named)
        for _ in range(_WARM + _PROFILED):
            session.run(None, {session.get_inputs()[0].name: ids})
        events = json.loads(Path(session.end_profiling()).read_bytes())
    found: dict[Node, list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            node = (event["args"]["op_name"], event["name"])
            found.setdefault(node, []).append(event["dur"])
    return {node: min(microseconds[_WARM:]) for node, microseconds in found.items()}


def _openvino_nodes(
    graph: Path, provider: Provider, placement: Placement, ids: NDArray[np.int64]
) -> dict[Node, float]:
    """Return each node's microseconds: OpenVINO has only the mean of all runs."""
    from opdbus.engine.host import openvino_core

    settings = provider.options(placement)
    config = {**settings["config"], "PERF_COUNT": True}
    request = (
        openvino_core().compile_model(graph, settings["device"], config).create_infer_request()
    )
    for _ in range(_WARM + _PROFILED):
        request.infer([ids])
    return {
        (info.node_type, info.node_name): info.real_time.total_seconds() * 1e6
        for info in request.get_profiling_info()
    }
