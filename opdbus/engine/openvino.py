"""Session on OpenVINO, whose CPU code computes in bf16, unlike ONNX Runtime's.

OpenVINO's plugin for ONNX Runtime runs the same code, but offers no device on processors of other
makers. A session's first run must not have a single token: in 2026.4 all later runs are wrong then.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.openvino_library import core
from opdbus.engine.provider import Provider
from opdbus.engine.session import Placement, Ran, first_line
from opdbus.errors import ProviderError

# Nodes of a compiled graph that compute nothing.
_PASSIVE: Final = frozenset({"Const", "Input", "Output"})
_PRODUCTS: Final = frozenset({"FullyConnected", "FullyConnectedCompressed", "MatMul"})
_PRECISION_OF: Final = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8"}


class OpenVinoSession:
    """A compiled model with one infer request for each lane."""

    def __init__(self, graph: Path, provider: Provider, placement: Placement) -> None:
        try:
            settings = provider.options(placement)
            model = core().read_model(graph)
            self._compiled = core().compile_model(model, settings["device"], settings["config"])
            requests = [self._compiled.create_infer_request() for _ in range(placement.lanes)]
        except Exception as error:  # noqa: BLE001 -- it raises RuntimeError and more
            raise ProviderError(
                f"{provider.name} cannot open the model: {first_line(error)}"
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
            raise ProviderError(f"the model's run failed: {first_line(error)}") from error
        finally:
            self._idle.put(request)
        return vectors

    def finish_profile(self) -> Ran:
        """Return the nodes of the compiled graph; raises ProviderError if they cannot be read."""
        try:
            (device,) = self._compiled.get_property("EXECUTION_DEVICES")
            infos = [node.get_rt_info() for node in self._compiled.get_runtime_model().get_ops()]
        except Exception as error:  # noqa: BLE001 -- it raises RuntimeError and more
            raise ProviderError(f"cannot read where the model runs: {first_line(error)}") from None
        active = [info for info in infos if _text(info, "layerType") not in _PASSIVE]
        is_asked = device.partition(".")[0] in self._runtime_name.split(" or ")
        where = self._runtime_name if is_asked else device
        return Ran({where: len(active)}, dict(Counter(_product_precisions(active))))

    def renew(self) -> bool:
        """Return False: OpenVINO records nothing during runs."""
        return False


def _text(info: Any, key: str) -> str:  # noqa: ANN401 -- it has no types
    return str(info[key].value) if key in info else ""


def _product_precisions(infos: Iterable[Any]) -> Iterable[str]:
    for info in infos:
        if _text(info, "layerType") in _PRODUCTS:
            found = _text(info, "runtimePrecision")
            yield _PRECISION_OF.get(found, found)
