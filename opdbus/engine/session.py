"""A model on a provider: the seam between us and the runtimes, and ONNX Runtime behind it."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from opdbus.engine.host import adapter
from opdbus.engine.progress import telling
from opdbus.errors import ProviderError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from opdbus.engine.providers import Placement, Provider

# Microseconds that idle model threads spin before they sleep: long enough to bridge the
# operators of one run, short enough to leave the processors to others between runs.
_SPIN_MICROSECONDS = "1000"
# ONNX Runtime's operators that multiply matrices of 8-bit integers.
_INT8_PRODUCTS: Final = frozenset(
    {"MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}
)
# `Attention` holds the products of queries, keys and values too.
_PRODUCTS: Final = frozenset({"MatMul", "FusedMatMul", "Gemm", "Attention"})
_PRECISION_OF: Final = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Ran:
    """Where the nodes of a model ran, and in which precision its matrix products were computed.

    `products` is empty where a provider fuses the whole model and does not tell.
    """

    nodes: Mapping[str, int]
    products: Mapping[str, int]


class Session(Protocol):
    """What the engine needs of a runtime; tests bring lying ones."""

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embed ids (rows, tokens) into vectors (rows, dimension); safe to call from threads."""

    def finish_profile(self) -> Ran:
        """Stop recording, and tell what really ran since the start."""

    def renew(self) -> bool:
        """Open the model anew where its runtime would go on recording; tells whether it did."""


def open_session(graph: Path, provider: Provider, placement: Placement) -> Session:
    """Open a graph with the runtime of its provider; raises ProviderError."""
    if provider.uses_openvino:
        from opdbus.engine.openvino import OpenVinoSession

        return OpenVinoSession(graph, provider, placement)
    return OnnxSession(graph, provider, placement)


class OnnxSession:
    """An ONNX Runtime session that records, until its profile is finished, where nodes run."""

    def __init__(self, graph: Path, provider: Provider, placement: Placement) -> None:
        self._open = partial(_opened, graph, provider, placement)
        self._scratch = _scratch_folder()
        try:
            with telling(provider.name) if provider.compiles else nullcontext():
                self._session = self._open(record=Path(self._scratch.name) / "run")
        except ProviderError:
            self._scratch.cleanup()
            raise
        self._input = self._session.get_inputs()[0].name
        # the processors' pool of threads goes on recording for as long as it lives, some hundred
        # bytes a run, and nothing stops it
        self._records_on = provider.is_cpu and _threads(placement) > 1

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embed ids (rows, tokens) into vectors (rows, dimension); raises ProviderError."""
        try:
            vectors: NDArray[np.float32] = self._session.run(None, {self._input: ids})[0]
        except Exception as error:
            raise ProviderError(f"the model's run failed: {brief(error)}") from error
        return vectors

    def finish_profile(self) -> Ran:
        """Stop recording, and tell what really ran since the start.

        Raises ProviderError if the record cannot be read.
        """
        try:
            with self._scratch:
                events = json.loads(Path(self._session.end_profiling()).read_bytes())
        except (OSError, ValueError) as error:
            raise ProviderError(f"cannot read where the model ran: {error}") from None
        ran = {
            event["args"]["node_index"]: event["args"]
            for event in events
            if event.get("cat") == "Node" and event["args"].get("provider")
        }
        return Ran(
            dict(Counter(node["provider"] for node in ran.values())),
            dict(Counter(_product_precisions(ran.values()))),
        )

    def renew(self) -> bool:
        """Open the model anew where its threads would go on recording; raises ProviderError."""
        if self._records_on:
            self._session = None
            self._session = self._open()
        return self._records_on


def ep_devices(runtime_name: str) -> list[Any]:
    """Give ONNX Runtime's devices of one execution provider, plugins registered before."""
    onnxruntime = _onnxruntime()
    for module in ("onnxruntime_ep_webgpu",):
        if importlib.util.find_spec(module):
            _register(module)
    return [found for found in onnxruntime.get_ep_devices() if found.ep_name == runtime_name]


def gpus(devices: Iterable[Any]) -> list[Any]:
    """Give those of the devices that are GPUs and no program, as they are numbered for users."""
    return [found for found in devices if adapter(found).is_hardware]


def _onnxruntime() -> Any:  # noqa: ANN401 -- it has no types
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def _opened(
    graph: Path,
    provider: Provider,
    placement: Placement,
    record: Path | None = None,
) -> Any:  # noqa: ANN401 -- it has no types
    """Open a graph, recording every run to a file of such a name where one is given."""
    onnxruntime = _onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _threads(placement)
    if record:
        options.enable_profiling = True
        options.profile_file_prefix = str(record)
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_MICROSECONDS)
    if not provider.is_cpu:
        # No silent fallback: a node that the provider cannot run fails the session.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    settings = provider.options(placement)
    try:
        if provider.plugin:
            device = gpus(ep_devices(provider.runtime_name))[placement.device]
            options.add_provider_for_devices([device], settings)
            named = None
        else:
            named = [(provider.runtime_name, settings)]
        # `enable_fallback`: else Python retries on the CPU when a provider fails, at later runs too
        return onnxruntime.InferenceSession(graph, options, providers=named, enable_fallback=0)
    except Exception as error:  # noqa: BLE001 -- onnxruntime raises bare exceptions too
        raise ProviderError(f"{provider.name} cannot open the model: {brief(error)}") from None


def _threads(placement: Placement) -> int:
    # lanes run side by side, and each is to keep to its share of the processors
    return max(1, placement.threads // placement.lanes)


@cache
def _register(module: str) -> None:
    """Make a plugin's provider known to ONNX Runtime, which may be done once a process."""
    plugin = importlib.import_module(module)
    _onnxruntime().register_execution_provider_library(module, plugin.get_library_path())


def _product_precisions(nodes: Iterable[dict[str, Any]]) -> Iterable[str]:
    for node in nodes:
        if node.get("op_name") in _INT8_PRODUCTS:
            yield "int8"
        elif node.get("op_name") in _PRODUCTS:
            kind = next(iter((node.get("input_type_shape") or [{}])[0]), "")
            yield _PRECISION_OF.get(kind, kind)


def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="op-dbus-profile-")
    except OSError as error:
        raise ProviderError(
            f"cannot record where the model runs: {error}; make room in the temporary folder"
        ) from None


def brief(error: Exception) -> str:
    """Give the one line of a runtime's message that says what happened."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if lines[0].startswith("Exception from "):
        # OpenVINO begins with the places in its source, from the outermost on
        return lines[-1]
    return lines[0].rpartition(" : ")[2] if lines[0].startswith("[ONNXRuntimeError]") else lines[0]
