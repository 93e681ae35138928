"""A model on a provider: the seam between us and ONNX Runtime."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from opdbus.errors import ProviderError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opdbus.engine.providers import Provider

# Microseconds that idle model threads spin before they sleep: long enough to bridge the
# operators of one run, short enough to leave the processors to others between runs.
_SPIN_MICROSECONDS = "1000"


class Session(Protocol):
    """What the engine needs of a runtime; tests bring lying ones."""

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embed ids (rows, tokens) into vectors (rows, dimension)."""

    def finish_profile(self) -> dict[str, int]:
        """Stop recording, and count the nodes that really ran since the start, by provider."""


class OnnxSession:
    """An ONNX Runtime session that records, until its profile is finished, where nodes run."""

    def __init__(self, graph: Path, provider: Provider, *, threads: int, device: int) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime

        self._scratch = _scratch_folder()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._scratch.name) / "run")
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_MICROSECONDS)
        if provider.name != "cpu:onnxruntime":
            # No silent fallback: a node that the provider cannot run fails the session.
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        try:
            self._session = onnxruntime.InferenceSession(
                graph,
                options,
                providers=[(provider.runtime_name, provider.options(device))],
                # else Python retries on the CPU when a provider fails, at any later run too
                enable_fallback=0,
            )
        except Exception as error:  # noqa: BLE001 -- onnxruntime raises bare exceptions too
            self._scratch.cleanup()
            raise ProviderError(f"{provider.name} cannot open the model: {_brief(error)}") from None
        self._input = self._session.get_inputs()[0].name

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embed ids (rows, tokens) into vectors (rows, dimension); raises ProviderError."""
        try:
            vectors: NDArray[np.float32] = self._session.run(None, {self._input: ids})[0]
        except Exception as error:
            raise ProviderError(f"the model's run failed: {_brief(error)}") from error
        return vectors

    def finish_profile(self) -> dict[str, int]:
        """Stop recording, and count the nodes that really ran since the start, by provider.

        Raises ProviderError if the record cannot be read.
        """
        try:
            with self._scratch:
                events = json.loads(Path(self._session.end_profiling()).read_bytes())
        except (OSError, ValueError) as error:
            raise ProviderError(f"cannot read where the model ran: {error}") from None
        ran = {
            (event["args"]["node_index"], event["args"]["provider"])
            for event in events
            if event.get("cat") == "Node" and event["args"].get("provider")
        }
        return dict(Counter(provider for _, provider in ran))


def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="op-dbus-profile-")
    except OSError as error:
        raise ProviderError(
            f"cannot record where the model runs: {error}; make room in the temporary folder"
        ) from None


def _brief(error: Exception) -> str:
    """Give the first line of a runtime's message, without its source paths."""
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return line.rpartition(" : ")[2] if line.startswith("[ONNXRuntimeError]") else line
