"""Dispatch to the runtime that opens a provider's model."""

from pathlib import Path

from opdbus.engine.onnx_runtime import OnnxSession
from opdbus.engine.openvino import OpenVinoSession
from opdbus.engine.provider import Provider
from opdbus.engine.session import Placement, Session


def open_session(graph: Path, provider: Provider, placement: Placement) -> Session:
    """Open a graph with the runtime of its provider; raises ProviderError."""
    runtime = OpenVinoSession if provider.runtime == "openvino" else OnnxSession
    return runtime(graph, provider, placement)
