"""Profile one forward pass of each level on each runtime: where the time of a thread goes.

Every engine of `cpu` in every precision that it can be proven in, and torch where --torch names
the Python of an environment that has it. Operators are timed by the runtime's own profiler, and
their sum is compared with the time of a run without one: the rest is the runtime and Python.
OP_DBUS_MODEL_DIR has the models. Writes JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from opdbus import config
from opdbus.bench import machine, texts
from opdbus.bench.engine import arithmetic
from opdbus.bench.profile import profile_operators
from opdbus.engine.batching import plan_batches
from opdbus.engine.proof import Probe, prove
from opdbus.engine.provider import Placement
from opdbus.engine.providers import PROVIDERS, cpu_engines
from opdbus.engine.sessions import open_session
from opdbus.engine.tokenizer import Tokenizer
from opdbus.errors import OpDbusError
from opdbus.models import build, folder
from opdbus.models.graph import STEPS
from opdbus.models.level_table import LEVELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opdbus.engine.provider import Provider, Session
    from opdbus.models.folder import Model

RESULTS: Final = Path(__file__).parents[1] / "results"
TORCH: Final = Path(__file__).parent / "peers/forward_pass_torch.py"
# What operators do, by the names that the runtimes give them; the others are `other`.
GROUPS: Final = {
    "products": "MatMul FusedMatMul Gemm MatMulNBits DynamicQuantizeMatMul MatMulInteger"
    " MatMulIntegerToFloat FullyConnected FullyConnectedCompressed addmm mm linear"
    " _mkldnn_linear mkldnn_linear",
    # OpenVINO runs attention as a subgraph
    "attention": "MultiHeadAttention Attention ScaledDotProductAttention MHA Subgraph bmm"
    " _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math",
    "softmax": "Softmax _softmax",
    "normalization": "LayerNormalization SkipLayerNormalization LpNormalization MVN NormalizeL2"
    " RMS native_layer_norm",
    "GELU": "Gelu BiasGelu FastGelu Erf gelu",
    "conversions": "Cast Convert QuantizeLinear DynamicQuantizeLinear DequantizeLinear FakeQuantize"
    " _to_copy",
    "copies": "Reorder Transpose Reshape Concat Split Slice StridedSlice Pad Squeeze Unsqueeze"
    " Gather Broadcast Tile copy_ cat clone contiguous embedding index_select index",
    "sums": "Add Mul MulAdd Multiply PowerStatic Eltwise ReduceMean Reduce ReduceSum add add_ mul"
    " div sum mean",
}
_GROUP_OF: Final = {name: group for group, names in GROUPS.items() for name in names.split()}
# Tokens of a batch, texts of about as many tokens as objects have, and runs that are timed.
_TOKENS: Final = 512
_LENGTH: Final = 56
_RUNS: Final = 8
_RANKED: Final = 256


def grouped(operators: dict[str, float]) -> dict[str, float]:
    """Sum milliseconds by what operators do."""
    found: dict[str, float] = dict.fromkeys([*GROUPS, "other"], 0.0)
    for name, milliseconds in operators.items():
        found[_GROUP_OF.get(name, "other")] += milliseconds
    return {group: round(spent, 3) for group, spent in found.items() if spent}


def seconds_of_runs(session: Session, ids: NDArray[np.int64]) -> float:
    """Return the least CPU seconds of a run: other processes take turns on this machine."""
    found = []
    for _ in range(_RUNS):
        began = time.process_time()
        session.run(ids)
        found.append(time.process_time() - began)
    return min(found)


async def engine(model: Model, state: Path, provider: Provider, precision: str) -> dict[str, Any]:
    """Profile one engine on one thread."""
    dialect = provider.dialects[precision]
    built = await build.ensure(model, state / "graphs", dialect)
    placement = Placement(precision=precision, longest=model.shape.max_tokens)
    session = open_session(built.graph, provider, placement)
    prove(session, provider, precision, Probe.read(built.proof))
    rows = 1 if precision in provider.single else _TOKENS // _LENGTH
    ids = np.random.default_rng(0).integers(1000, 20000, (rows, _LENGTH))
    session.run(ids)
    milliseconds = 1000 * seconds_of_runs(session, ids)
    operators = {
        each.kind: each.milliseconds
        for each in profile_operators(built.graph, provider, placement, ids)
    }
    step = max(size for past, size in STEPS if ids.size > past)
    padded = -ids.size % step if dialect.startswith("rounded") else 0
    return described(provider.name, precision, (rows, _LENGTH), milliseconds, operators, padded)


def described(
    runtime: str,
    precision: str,
    shape: tuple[int, int],
    milliseconds: float,
    operators: dict[str, float],
    padded: int = 0,
) -> dict[str, Any]:
    """Return the profile of one run; `outside` is the time that no operator has.

    Operators that took longer than the run's CPU time were interrupted, and are scaled to it.
    """
    rows, tokens = shape
    scale = min(1.0, milliseconds / sum(operators.values()))
    groups = grouped({name: scale * spent for name, spent in operators.items()})
    return {
        "runtime": runtime,
        "precision": precision,
        "rows": rows,
        "tokens": tokens,
        "padded_tokens": padded,
        "milliseconds": round(milliseconds, 3),
        "groups": groups,
        "scaled_by": round(scale, 4),
        "outside": round(max(0.0, milliseconds - sum(groups.values())), 3),
        "operators": {name: round(spent, 3) for name, spent in operators.items()},
    }


def torch(python: str, model: Model) -> list[dict[str, Any]]:
    """Profile torch in the environment of another Python."""
    request = {"folder": str(model.folder), "rows": _TOKENS // _LENGTH, "tokens": _LENGTH}
    command = [python, str(TORCH), json.dumps(request | {"runs": _RUNS})]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(answer.splitlines()[-1])
    shape = (_TOKENS // _LENGTH, _LENGTH)
    return [
        described("torch", each["precision"], shape, each["milliseconds"], each["operators"])
        for each in found
    ]


def paddings(model: Model) -> dict[str, float]:
    """Return tokens that are computed for each real one, in batches of 32 sorted by length."""
    tokenizer = Tokenizer.of(model)
    lengths = np.sort(tokenizer.encode(texts.kinds(_RANKED)["object"]).lengths)
    batches = np.split(lengths, range(32, len(lengths), 32))
    real = lengths.sum()
    ours = plan_batches(lengths, _TOKENS)
    return {
        "batches of 32": round(float(sum(len(one) * one.max() for one in batches) / real), 3),
        "op-dbus": round(float(sum(lengths[one].sum() for one in ours) / real), 3),
        "texts in a batch of op-dbus": round(len(lengths) / len(ours), 1),
    }


async def profile(level: str, state: Path, python: str) -> dict[str, Any]:
    """Profile one level on everything that runs it here."""
    settings = config.load(os.environ, {"state_dir": str(state)})
    model = folder.load_model(LEVELS[level], settings)
    found = []
    for name in cpu_engines():
        for precision in PROVIDERS[name].dialects:
            try:
                found.append(await engine(model, state, PROVIDERS[name], precision))
            except OpDbusError as error:
                print(f"{level}, {precision} on {name}: {error}", file=sys.stderr)
    found += torch(python, model) if python else []
    shape = arithmetic(model.folder)
    flops = 2 * shape.layers * (4 * shape.hidden**2 + 2 * shape.hidden * shape.wide)
    return {"flops_per_token": flops, "padding": paddings(model), "engines": found}


def main() -> None:
    """Profile the levels, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("levels", nargs="*", default=["low", "medium", "high"])
    parser.add_argument("--torch", default="", help="Python of an environment that has torch")
    parser.add_argument("--state", type=Path, help="folder with graphs that are kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        state = given.state or Path(scratch)
        levels = {name: asyncio.run(profile(name, state, given.torch)) for name in given.levels}
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    report = {"date": date, "machine": asdict(machine.describe()), "levels": levels}
    path = RESULTS / f"{date}-forward-pass.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
