"""Facts of the machine for provider checks: runtimes, packages, libraries, CPU features."""

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from opdbus.engine import cpus

# Packages with a provider of their own, registered with ONNX Runtime if installed.
_PLUGINS: Final = ("onnxruntime_ep_webgpu",)
# Graphics adapters with these words in their names are software renderers on the CPU.
_SOFTWARE: Final = ("llvmpipe", "lavapipe", "swiftshader", "softpipe", "basic render", "warp")

# Vendors of accelerators: their number on the PCI bus, and files that show their devices where that
# bus does not, as on boards and in virtual machines of Windows.
_VENDORS: Final = {
    "nvidia": (
        "0x10de",
        ("proc/driver/nvidia", "dev/nvidiactl", "dev/nvhost-gpu", "usr/lib/wsl/lib/libcuda.so.1"),
    ),
    "amd": ("0x1002", ("dev/kfd",)),
    "intel": ("0x8086", ("dev/accel/accel0",)),
}
# PCI classes of displays and of accelerators that are none.
_ACCELERATORS: Final = ("0x03", "0x12")


@cache
def onnxruntime_library() -> Any:  # noqa: ANN401 -- it has no types
    """Import ONNX Runtime with telemetry off; raises ImportError and errors of ONNX Runtime."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # noqa: TID251 -- it is told only so
    import onnxruntime

    return onnxruntime


def available_providers() -> Sequence[str]:
    """List the execution providers that the installed wheel was built with."""
    names: Sequence[str] = onnxruntime_library().get_available_providers()
    return names


def preload() -> None:
    """Load the CUDA libraries of installed packages, so that a provider finds them by name."""
    # It prints the libraries that are missing; the provider checks report those that matter.
    with contextlib.redirect_stdout(io.StringIO()):
        onnxruntime_library().preload_dlls()


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


def list_adapters(runtime_name: str) -> Sequence[Adapter]:
    """List the devices that an execution provider offers."""
    return [read_adapter(found) for found in ep_devices(runtime_name)]


def ep_devices(runtime_name: str) -> list[Any]:
    """Return ONNX Runtime's device objects, after registering installed plugins."""
    for module in _PLUGINS:
        if importlib.util.find_spec(module):
            _register_plugin(module)
    return [
        found for found in onnxruntime_library().get_ep_devices() if found.ep_name == runtime_name
    ]


def hardware_gpus(devices: Iterable[Any]) -> list[Any]:
    """Keep hardware GPUs, in the order of the users' device numbers."""
    return [found for found in devices if read_adapter(found).is_hardware]


def read_adapter(found: Any) -> Adapter:  # noqa: ANN401 -- onnxruntime has no types
    """Convert one of ONNX Runtime's device objects."""
    device = found.device
    name = device.metadata.get("Description") or device.vendor
    return Adapter(str(name), is_gpu=device.type.name == "GPU")


@cache
def _register_plugin(module: str) -> None:
    """Register a plugin's provider with ONNX Runtime, which is possible once in a process."""
    plugin = importlib.import_module(module)
    onnxruntime_library().register_execution_provider_library(module, plugin.get_library_path())


@cache
def openvino_core() -> Any:  # noqa: ANN401 -- it has no types
    """Return the one Core of this process; the first call searches for devices."""
    # The import would send telemetry, from a fork of this process that holds all its sockets.
    # openvino works without the package that does so.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino.Core()


def openvino_devices() -> Mapping[str, str]:
    """Return OpenVINO's devices, such as CPU, GPU.0 and NPU, each with its hardware's name."""
    names = openvino_core().available_devices
    return {name: str(openvino_core().get_property(name, "FULL_DEVICE_NAME")) for name in names}


def _has_package(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def find_vendors(root: Path = Path("/")) -> frozenset[str]:
    """Return the vendors of this machine's accelerators, with or without a driver.

    On systems other than Linux, return all of them.
    """
    if sys.platform != "linux":
        return frozenset(_VENDORS)
    numbers = set()
    for folder in (root / "sys/bus/pci/devices").glob("*"):
        with contextlib.suppress(OSError):
            if (folder / "class").read_text().startswith(_ACCELERATORS):
                numbers.add((folder / "vendor").read_text().strip())
    return frozenset(
        name
        for name, (number, signs) in _VENDORS.items()
        if number in numbers or any((root / sign).exists() for sign in signs)
    )


def read_nvidia_driver() -> str:
    """Return the version of the NVIDIA driver's kernel module; empty if there is none."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Host:
    """Functions that provider checks call; tests pass other machines."""

    has_package: Callable[[str], bool] = _has_package
    # returns an empty string for a package that is not installed
    version: Callable[[str], str] = _version
    runtime_providers: Callable[[], Sequence[str]] = available_providers
    # makes the CUDA libraries of installed packages findable by `library`
    preload: Callable[[], None] = preload
    # raises OSError if there is no such library
    library: Callable[[str], Any] = ctypes.CDLL
    openvino_devices: Callable[[], Mapping[str, str]] = openvino_devices
    adapters: Callable[[str], Sequence[Adapter]] = list_adapters
    features: Callable[[], frozenset[str]] = cpus.features
    processor: Callable[[], str] = cpus.name
    nvidia_driver: Callable[[], str] = read_nvidia_driver
    # vendors of accelerators, whatever is installed for them
    vendors: Callable[[], frozenset[str]] = find_vendors
    system: str = sys.platform


HERE: Final = Host()


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed ones among these distributions."""
    found = {name: HERE.version(name) for name in distributions}
    return {name: version for name, version in found.items() if version}
