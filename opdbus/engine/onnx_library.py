"""Access to the installed ONNX Runtime: its execution providers and their devices."""

import contextlib
import importlib
import importlib.util
import io
import os
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

# Packages with a provider of their own, registered with ONNX Runtime if installed.
_PLUGINS: Final = ("onnxruntime_ep_webgpu",)
# Graphics adapters with these words in their names are software renderers on the CPU.
_SOFTWARE: Final = ("llvmpipe", "lavapipe", "swiftshader", "softpipe", "basic render", "warp")


@cache
def library() -> Any:  # noqa: ANN401 -- it has no types
    """Import ONNX Runtime with telemetry off; raises ImportError and errors of ONNX Runtime."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def available_providers() -> Sequence[str]:
    """List the execution providers that the installed wheel was built with."""
    names: Sequence[str] = library().get_available_providers()
    return names


def preload() -> None:
    """Load the CUDA libraries of installed packages, so that a provider finds them by name."""
    # It prints the libraries that are missing; the provider checks report those that matter.
    with contextlib.redirect_stdout(io.StringIO()):
        library().preload_dlls()


class Adapter(NamedTuple):
    """A device that an execution provider offers."""

    name: str
    is_gpu: bool

    @property
    def is_software(self) -> bool:
        """True for a software renderer on the CPU."""
        return any(word in self.name.lower() for word in _SOFTWARE)

    @property
    def is_hardware(self) -> bool:
        """True for a hardware GPU."""
        return self.is_gpu and not self.is_software


def adapters(runtime_name: str) -> Sequence[Adapter]:
    """List the devices that an execution provider offers."""
    return [adapter(found) for found in ep_devices(runtime_name)]


def ep_devices(runtime_name: str) -> list[Any]:
    """Return ONNX Runtime's device objects, after registering installed plugins."""
    for module in _PLUGINS:
        if importlib.util.find_spec(module):
            _register(module)
    return [found for found in library().get_ep_devices() if found.ep_name == runtime_name]


def gpus(devices: Iterable[Any]) -> list[Any]:
    """Keep hardware GPUs, in the order of the users' device numbers."""
    return [found for found in devices if adapter(found).is_hardware]


def adapter(found: Any) -> Adapter:  # noqa: ANN401 -- onnxruntime has no types
    """Convert one of ONNX Runtime's device objects."""
    device = found.device
    name = device.metadata.get("Description") or device.vendor
    return Adapter(str(name), is_gpu=device.type.name == "GPU")


@cache
def _register(module: str) -> None:
    """Register a plugin's provider with ONNX Runtime, which is possible once in a process."""
    plugin = importlib.import_module(module)
    library().register_execution_provider_library(module, plugin.get_library_path())
