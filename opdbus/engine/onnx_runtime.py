"""Session on ONNX Runtime that records where nodes run."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.onnx_library import ep_devices, gpus, library
from opdbus.engine.progress import log_compiling
from opdbus.engine.provider import Provider
from opdbus.engine.session import Placement, Ran, first_line
from opdbus.errors import ProviderError

# Microseconds that idle model threads spin before they sleep: long enough to bridge the
# operators of one run, short enough to free the processors between runs.
_SPIN_MICROSECONDS = "1000"
# ONNX Runtime's operators for products of 8-bit integer matrices, and their precision names.
_INT8_PRODUCTS: Final = {
    "MatMulInteger": "int8",
    "MatMulIntegerToFloat": "int8",
    "DynamicQuantizeMatMul": "int8",
    "MatMulNBits": "int8-blocks",
}
# `Attention` contains the products of queries, keys and values too.
_PRODUCTS: Final = frozenset({"MatMul", "FusedMatMul", "Gemm", "Attention"})
_PRECISION_OF: Final = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class OnnxSession:
    """ONNX Runtime session that records where nodes run until `finish_profile`."""

    def __init__(self, graph: Path, provider: Provider, placement: Placement) -> None:
        self._open = partial(_open, graph, provider, placement)
        self._scratch = _scratch_folder()
        try:
            with log_compiling(provider.name) if provider.compiles else nullcontext():
                self._session = self._open(record=Path(self._scratch.name) / "run")
        except ProviderError:
            self._scratch.cleanup()
            raise
        self._input = self._session.get_inputs()[0].name
        # With several threads, the CPU provider records some hundred bytes a run as long as the
        # session lives, also after `end_profiling`.
        self._keeps_recording = provider.is_cpu and _threads(placement) > 1

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embed ids (rows, tokens) into vectors (rows, dimension); raises ProviderError."""
        try:
            vectors: NDArray[np.float32] = self._session.run(None, {self._input: ids})[0]
        except Exception as error:
            raise ProviderError(f"the model's run failed: {first_line(error)}") from error
        return vectors

    def finish_profile(self) -> Ran:
        """Stop recording, and return the nodes and products since the session was opened.

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
        """Reopen the model if its threads keep recording; raises ProviderError."""
        if self._keeps_recording:
            self._session = None
            self._session = self._open()
        return self._keeps_recording


def _open(
    graph: Path,
    provider: Provider,
    placement: Placement,
    record: Path | None = None,
) -> Any:  # noqa: ANN401 -- it has no types
    """Open a graph; with `record`, profile its runs into a file with that prefix."""
    onnxruntime = library()
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
        # Otherwise Python retries on the CPU when a provider fails, at later runs too.
        return onnxruntime.InferenceSession(graph, options, providers=named, enable_fallback=0)
    except Exception as error:  # noqa: BLE001 -- onnxruntime raises bare exceptions too
        raise ProviderError(f"{provider.name} cannot open the model: {first_line(error)}") from None


def _threads(placement: Placement) -> int:
    # lanes run side by side, and each uses its share of the processors
    return max(1, placement.threads // placement.lanes)


def _product_precisions(nodes: Iterable[dict[str, Any]]) -> Iterable[str]:
    for node in nodes:
        name = node.get("op_name", "")
        if name in _INT8_PRODUCTS:
            yield _INT8_PRODUCTS[name]
        elif name in _PRODUCTS:
            kind = next(iter((node.get("input_type_shape") or [{}])[0]), "")
            yield _PRECISION_OF.get(kind, kind)


def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="op-dbus-profile-")
    except OSError as error:
        raise ProviderError(
            f"cannot record where the model runs: {error}; make room in the temporary folder"
        ) from None
