"""Sessions on ONNX Runtime and OpenVINO, which report where nodes ran and in which precision."""

import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.engine.host import ep_devices, hardware_gpus, onnxruntime_library, openvino_core
from opdbus.engine.provider import Placement, Provider, RunRecord, Session, explain
from opdbus.errors import ProviderError
from opdbus.models.build import DATA
from opdbus.models.graph import WORDS
from opdbus.models.numpy_files import StoredRows
from opdbus.platform.lazy_pages import LazyRows

log = structlog.get_logger()

_EVERY_SECONDS: Final = 10.0


@contextmanager
def log_compiling(provider: str, every: float = _EVERY_SECONDS) -> Iterator[None]:
    """Log that a provider compiles the model while the context lasts."""
    began, ended = time.monotonic(), threading.Event()

    def repeat() -> None:
        while not ended.wait(every):
            log.info("still compiling", provider=provider, seconds=round(time.monotonic() - began))

    thread = threading.Thread(target=repeat, name="compiling", daemon=True)
    log.info("compiling the model, for minutes if this is the first time", provider=provider)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        log.info("compiled", provider=provider, seconds=round(time.monotonic() - began, 1))


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
_FLOAT_PRODUCTS: Final = frozenset({"MatMul", "FusedMatMul", "Gemm", "Attention"})
_ONNX_PRECISIONS: Final = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16"}


# Word embeddings of open graphs by the files that they are read from.
_WORDS: Final = WeakValueDictionary[tuple[int, int, int], LazyRows]()
# Guards _WORDS.
_OPENING_WORDS: Final = threading.Lock()


def _word_rows(data: Path, shape: tuple[int, int]) -> LazyRows:
    """Return the embeddings of words, with which a graph's weights begin; raises ProviderError.

    Of the words of a vocabulary, a host's texts use few. Sessions of one graph share them.
    """
    try:
        with _OPENING_WORDS, data.open("rb") as file:
            stat = os.fstat(file.fileno())
            key = stat.st_dev, stat.st_ino, stat.st_mtime_ns
            if (found := _WORDS.get(key)) is None:
                stored = StoredRows(file, np.dtype((np.float32, shape[1:])), shape[0])
                found = _WORDS[key] = LazyRows(shape, stored.take)
    except (OSError, ValueError) as error:
        raise ProviderError(f"cannot read the weights {data}: {error}") from None
    return found


class OnnxSession:
    """ONNX Runtime session that records where nodes run until `finish_profile`."""

    def __init__(self, graph: Path, provider: Provider, placement: Placement) -> None:
        self._words = (
            _word_rows(graph.with_name(DATA), placement.words)
            if provider.is_cpu and placement.words
            else None
        )
        self._open = partial(_open_onnx, graph, provider, placement, self._words)
        try:
            self._scratch = tempfile.TemporaryDirectory(prefix="op-dbus-profile-")
        except OSError as error:
            raise ProviderError(
                f"cannot record where the model runs: {error}; make room in the temporary folder"
            ) from None
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
            if self._words:
                self._words.require(ids.ravel())
            vectors: NDArray[np.float32] = self._session.run(None, {self._input: ids})[0]
        except Exception as error:
            raise ProviderError(f"the model's run failed: {explain(error)}") from error
        return vectors

    def finish_profile(self) -> RunRecord:
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
        return RunRecord(
            dict(Counter(node["provider"] for node in ran.values())),
            dict(Counter(_onnx_products(ran.values()))),
        )

    def renew(self) -> bool:
        """Reopen the model if its threads keep recording; raises ProviderError."""
        if self._keeps_recording:
            self._session = None
            self._session = self._open()
        return self._keeps_recording


def _open_onnx(
    graph: Path,
    provider: Provider,
    placement: Placement,
    words: LazyRows | None,
    record: Path | None = None,
) -> Any:  # noqa: ANN401 -- it has no types
    """Open a graph; with `record`, profile its runs into a file with that prefix."""
    onnxruntime = onnxruntime_library()
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
        if words:
            value = onnxruntime.OrtValue.ortvalue_from_numpy(words.values)
            options.add_initializer(WORDS, value)
        if provider.plugin:
            device = hardware_gpus(ep_devices(provider.runtime_name))[placement.device]
            options.add_provider_for_devices([device], settings)
            named = None
        else:
            named = [(provider.runtime_name, settings)]
        # Otherwise Python retries on the CPU when a provider fails, at later runs too.
        return onnxruntime.InferenceSession(graph, options, providers=named, enable_fallback=0)
    except Exception as error:  # noqa: BLE001 -- onnxruntime raises bare exceptions too
        raise ProviderError(f"{provider.name} cannot open the model: {explain(error)}") from None


def _threads(placement: Placement) -> int:
    # lanes run side by side, and each uses its share of the processors
    return max(1, placement.threads // placement.lanes)


def _onnx_products(nodes: Iterable[dict[str, Any]]) -> Iterable[str]:
    for node in nodes:
        name = node.get("op_name", "")
        if name in _INT8_PRODUCTS:
            yield _INT8_PRODUCTS[name]
        elif name in _FLOAT_PRODUCTS:
            kind = next(iter((node.get("input_type_shape") or [{}])[0]), "")
            yield _ONNX_PRECISIONS.get(kind, kind)


# Nodes of a compiled graph that compute nothing.
_PASSIVE: Final = frozenset({"Const", "Input", "Output"})
_OPENVINO_PRODUCTS: Final = frozenset({"FullyConnected", "FullyConnectedCompressed", "MatMul"})
_OPENVINO_PRECISIONS: Final = {
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "i8": "int8",
    "u8": "int8",
}


class OpenVinoSession:
    """A compiled model with one infer request for each lane."""

    def __init__(self, graph: Path, provider: Provider, placement: Placement) -> None:
        try:
            settings = provider.options(placement)
            model = openvino_core().read_model(graph)
            self._compiled = openvino_core().compile_model(
                model, settings["device"], settings["config"]
            )
            requests = [self._compiled.create_infer_request() for _ in range(placement.lanes)]
        except Exception as error:  # noqa: BLE001 -- it raises RuntimeError and more
            raise ProviderError(
                f"{provider.name} cannot open the model: {explain(error)}"
            ) from None
        self._runtime_name = provider.runtime_name
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for request in requests:
            self._idle.put(request)

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embed ids (rows, tokens) into vectors (rows, dimension); raises ProviderError."""
        request = self._idle.get()
        try:
            request.infer([ids], share_inputs=True)
            # the next run overwrites the request's memory
            vectors: NDArray[np.float32] = request.get_output_tensor(0).data.copy()
        except Exception as error:
            raise ProviderError(f"the model's run failed: {explain(error)}") from error
        finally:
            self._idle.put(request)
        return vectors

    def finish_profile(self) -> RunRecord:
        """Return the nodes of the compiled graph; raises ProviderError if they cannot be read."""
        try:
            (device,) = self._compiled.get_property("EXECUTION_DEVICES")
            infos = [node.get_rt_info() for node in self._compiled.get_runtime_model().get_ops()]
        except Exception as error:  # noqa: BLE001 -- it raises RuntimeError and more
            raise ProviderError(f"cannot read where the model runs: {explain(error)}") from None
        active = [info for info in infos if _rt_info(info, "layerType") not in _PASSIVE]
        is_asked = device.partition(".")[0] in self._runtime_name.split(" or ")
        where = self._runtime_name if is_asked else device
        return RunRecord({where: len(active)}, dict(Counter(_openvino_products(active))))

    def renew(self) -> bool:
        """Return False: OpenVINO records nothing during runs."""
        return False


def _rt_info(info: Any, key: str) -> str:  # noqa: ANN401 -- it has no types
    return str(info[key].value) if key in info else ""


def _openvino_products(infos: Iterable[Any]) -> Iterable[str]:
    for info in infos:
        if _rt_info(info, "layerType") in _OPENVINO_PRODUCTS:
            found = _rt_info(info, "runtimePrecision")
            yield _OPENVINO_PRECISIONS.get(found, found)


def open_session(graph: Path, provider: Provider, placement: Placement) -> Session:
    """Open a graph with the runtime of its provider; raises ProviderError."""
    runtime = OpenVinoSession if provider.runtime == "openvino" else OnnxSession
    return runtime(graph, provider, placement)
