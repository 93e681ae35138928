"""Ceiling of a device: matrix products of the model's shape in the engine's own runtimes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.bench.figures import Ceiling
from opdbus.engine import cpus
from opdbus.engine.provider import Placement
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.sessions import open_session
from opdbus.errors import OpDbusError
from opdbus.models.dialects import DIALECTS

if TYPE_CHECKING:
    from opdbus.bench.figures import Arithmetic
    from opdbus.engine.provider import Provider, Session
    from opdbus.models.dialects import Dialect
    from opdbus.models.graph_writer import Writer

# Products in a run, each with weights of its own: as many as a model's layers have, or fewer.
_PRODUCTS: Final = 8
_ONE: Final = np.ones((1, 1), np.int64)
_GIGA: Final = 1e9
# Number of measurements of each configuration.
_TURNS: Final = 2


@dataclass(frozen=True, slots=True)
class Bare:
    """Products of (rows, inner) and (inner, outer).

    With `is_layer` they are as in the engine's graph, which in int8 includes quantizing the left
    side; without that, ceilings may be higher.
    """

    rows: int
    inner: int
    outer: int
    is_layer: bool = True

    @property
    def flops(self) -> float:
        """Number of operations in a run."""
        return 2.0 * _PRODUCTS * self.rows * self.inner * self.outer


def ceilings(
    provider: str,
    arithmetic: Arithmetic,
    scratch: Path,
    rows: Sequence[int],
    seconds: float,
    only: str = "",
    device: int = 0,
) -> Iterator[Ceiling]:
    """Yield the ceiling of each precision of a provider; for a CPU provider, of all CPU providers.

    A precision that a runtime cannot run yields nothing. `only` selects one precision of this
    provider.
    """
    own = PROVIDERS[provider]
    kin = [row for row in PROVIDERS.values() if row.is_cpu] if own.is_cpu and not only else [own]
    sides = ((arithmetic.hidden, arithmetic.wide), (arithmetic.wide, arithmetic.hidden))
    for row in kin:
        for precision in [only] if only else row.dialects:
            is_dynamic = DIALECTS[row.dialects[precision]].dense == "dynamic"
            forms = (True, False) if is_dynamic else (True,)
            bare = [Bare(r, *s, f) for r, s, f in product(rows, sides, forms)]
            yield from _ceiling(row, precision, bare, scratch, seconds, device)


def _ceiling(
    provider: Provider,
    precision: str,
    bare: Sequence[Bare],
    scratch: Path,
    seconds: float,
    device: int,
) -> list[Ceiling]:
    """Return the best of all configurations as one ceiling, or an empty list."""
    threads = cpus.usable() if provider.is_cpu else 1
    dialect = DIALECTS[provider.dialects[precision]]
    found = []
    for each in bare:
        graph = scratch / f"{dialect.name}-{each.rows}-{each.inner}-{each.is_layer}.onnx"
        write_products(graph, dialect, each)
        for lanes in {1, threads}:
            placement = Placement(device, precision, threads, lanes)
            with suppress(OpDbusError):
                runs = _runs_a_second(open_session(graph, provider, placement), lanes, seconds)
                rate = runs * each.flops / _GIGA
                found.append(
                    Ceiling(provider.name, precision, rate, each.rows, lanes, threads // lanes)
                )
    return sorted(found, key=lambda one: one.gflops)[-1:]


def _runs_a_second(session: Session, lanes: int, seconds: float) -> float:
    """Run on as many threads as there are lanes, several times, and return the best rate."""

    def work(end: float) -> int:
        runs = 0
        while time.perf_counter() < end:
            session.run(_ONE)
            runs += 1
        return runs

    session.run(_ONE)
    # otherwise every run would be recorded
    session.finish_profile()
    found = []
    with ThreadPoolExecutor(lanes) as pool:
        for _ in range(_TURNS):
            began = time.perf_counter()
            working = [pool.submit(work, began + seconds) for _ in range(lanes)]
            runs = sum(done.result() for done in working)
            found.append(runs / (time.perf_counter() - began))
    return max(found)


def write_products(path: Path, dialect: Dialect, bare: Bare) -> None:
    """Write a graph of products of one left side, each with weights of its own.

    It outputs one number of each product, so that nothing but the products takes time.
    """
    from opdbus.models import graph, onnx_file
    from opdbus.models.graph_writer import INPUT, Writer

    writer = Writer(_weights(bare), dialect)
    left = _left(writer, bare)
    for name in ("start", "end"):
        writer.ints(name, [int(name == "end")] * 2)
    names = [f"product{number}" for number in range(_PRODUCTS)]
    products = [_product(writer, left, name, bare) for name in names]
    ends = [writer.op("Slice", result, "start", "end") for result in products]
    whole = writer.op("Concat", *ends, axis=1)
    writer.op("Cast", whole, to=onnx_file.FLOAT, output=graph.OUTPUT)
    made = onnx_file.Graph(
        writer.nodes,
        writer.constants,
        [onnx_file.encode_value(INPUT, onnx_file.INT64, ["batch", "tokens"])],
        [onnx_file.encode_value(graph.OUTPUT, onnx_file.FLOAT, [1, _PRODUCTS])],
        {"": dialect.opset, "com.microsoft": 1},
    )
    path.write_bytes(made.encode())


def _weights(bare: Bare) -> dict[str, NDArray[np.float32]]:
    random, made = np.random.default_rng(0), {}
    for number in range(_PRODUCTS):
        drawn = random.normal(0, 0.02, (bare.outer, bare.inner)).astype(np.float32)
        made[f"product{number}.weight"] = drawn
        made[f"product{number}.bias"] = np.zeros(bare.outer, np.float32)
    return made


def _left(writer: Writer, bare: Bare) -> str:
    """Write the left side; it depends on the input, or it would be folded into a constant."""
    from opdbus.models import onnx_file
    from opdbus.models.graph_writer import INPUT

    kind = onnx_file.FLOAT16 if writer.dialect.is_half else onnx_file.FLOAT
    table = np.random.default_rng(1).normal(0, 1, (bare.rows, bare.inner)).astype(np.float32)
    one = writer.op("Cast", INPUT, to=kind)
    left = writer.op("Mul", writer.constant("left", table), one)
    return left if bare.is_layer else writer.op("Cast", left, to=onnx_file.UINT8)


def _product(writer: Writer, left: str, name: str, bare: Bare) -> str:
    if not bare.is_layer:
        kernel = np.rint(writer.weights[f"{name}.weight"].T * 1000).astype(np.int8)
        return writer.op("MatMulInteger", left, writer.constant(f"{name}.int8", kernel))
    if writer.dialect.dense == "float":
        return writer.product(left, name)
    return writer.linear(left, name)
