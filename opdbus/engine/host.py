"""What this machine has that a provider may need: packages, drivers, devices, CPU features."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import io
import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opdbus.engine import cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# What draws in software and calls itself a graphics adapter.
_SOFTWARE: Final = ("llvmpipe", "lavapipe", "swiftshader", "softpipe", "basic render", "warp")


class Adapter(NamedTuple):
    """A device that an ONNX Runtime provider offers."""

    name: str
    is_gpu: bool

    @property
    def is_software(self) -> bool:
        """Whether this is a program on the CPU that passes for a GPU."""
        return any(word in self.name.lower() for word in _SOFTWARE)

    @property
    def is_hardware(self) -> bool:
        """Whether this is a GPU."""
        return self.is_gpu and not self.is_software


def _has_package(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _runtime_providers() -> Sequence[str]:
    import onnxruntime

    providers: Sequence[str] = onnxruntime.get_available_providers()
    return providers


def _preload() -> None:
    import onnxruntime

    # It prints what it misses, of which the providers' checks say what matters and what to do.
    with contextlib.redirect_stdout(io.StringIO()):
        onnxruntime.preload_dlls()


def _openvino_devices() -> Mapping[str, str]:
    """Give OpenVINO's devices, such as CPU, GPU.0 and NPU, each with its hardware's name."""
    from opdbus.engine.openvino import core

    return {
        name: str(core().get_property(name, "FULL_DEVICE_NAME"))
        for name in core().available_devices
    }


def _adapters(runtime_name: str) -> Sequence[Adapter]:
    """Give the devices that a provider of ONNX Runtime offers, a plugin's after registering it."""
    from opdbus.engine.session import ep_devices

    return [adapter(found) for found in ep_devices(runtime_name)]


def adapter(found: Any) -> Adapter:  # noqa: ANN401 -- onnxruntime has no types
    """Tell a device of ONNX Runtime's by its name and kind."""
    device = found.device
    name = device.metadata.get("Description") or device.vendor
    return Adapter(str(name), is_gpu=device.type.name == "GPU")


@cache
def processor() -> str:
    """Give the processor's name as its maker writes it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 -- a device-like file, read by line
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@dataclass(frozen=True, slots=True)
class Host:
    """What the checks of providers ask of this machine; tests pass other machines."""

    has_package: Callable[[str], bool] = _has_package
    # an empty text for what is not installed
    version: Callable[[str], str] = _version
    runtime_providers: Callable[[], Sequence[str]] = _runtime_providers
    # brings the CUDA libraries of installed packages within reach of `library`
    preload: Callable[[], None] = _preload
    # raises OSError where there is no such library
    library: Callable[[str], Any] = ctypes.CDLL
    openvino_devices: Callable[[], Mapping[str, str]] = _openvino_devices
    adapters: Callable[[str], Sequence[Adapter]] = _adapters
    features: Callable[[], frozenset[str]] = cpus.features
    processor: Callable[[], str] = processor
    system: str = sys.platform
    machine: str = platform.machine().lower()


HERE: Final = Host()


class SharedLibrary(NamedTuple):
    """A library that a provider loads by its file's name, which ends with the major version."""

    name: str
    file: str
    # gives the version: CUDA's own into a reference, those of all others as the result; where
    # there is no such function, the file's name is all that is known
    function: str = ""
    by_reference: bool = False

    @property
    def wanted(self) -> str:
        """The major version that the provider was built for."""
        return self.file.rpartition(".")[2]

    def version(self, host: Host) -> str:
        """Load the library and ask it; raises OSError where there is none."""
        library, number = host.library(self.file), ctypes.c_int(0)
        if not self.function:
            return self.wanted
        ask = getattr(library, self.function)
        if self.by_reference:
            # 13.0 is written as 13000
            ask(ctypes.byref(number))
            return f"{number.value // 1000}.{number.value % 1000 // 10}"
        # 9.10.2 is written as 91002
        rest, patch = divmod(int(ask()), 100)
        return f"{rest // 100}.{rest % 100}.{patch}"


class Gpu(NamedTuple):
    """A device as its maker's driver names it; `uuid` is empty where the driver gives none."""

    name: str
    uuid: str = ""


def nvidia(host: Host) -> list[Gpu]:
    """Ask the NVIDIA driver for its devices; raises OSError where there is no driver."""
    driver = host.library("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    return [_nvidia_device(driver, index) for index in range(count.value)]


def _nvidia_device(driver: Any, index: int) -> Gpu:  # noqa: ANN401 -- a library's functions are known by name only
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    raw = (ctypes.c_ubyte * 16)()
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetName(name, len(name), handle)
    driver.cuDeviceGetUuid(ctypes.byref(raw), handle)
    digits = bytes(raw).hex()
    cuts = (0, 8, 12, 16, 20, 32)
    uuid = "-".join(digits[a:b] for a, b in pairwise(cuts))
    return Gpu(name.value.decode(errors="replace"), f"GPU-{uuid}")


def amd(host: Host) -> list[Gpu]:
    """Ask AMD's HIP runtime for its devices; raises OSError where there is none."""
    runtime = host.library("amdhip64.dll" if os.name == "nt" else "libamdhip64.so")
    count = ctypes.c_int(0)
    if runtime.hipGetDeviceCount(ctypes.byref(count)) != 0:
        return []
    return [_amd_device(runtime, index) for index in range(count.value)]


def _amd_device(runtime: Any, index: int) -> Gpu:  # noqa: ANN401 -- a library's functions are known by name only
    name = ctypes.create_string_buffer(256)
    runtime.hipDeviceGetName(name, len(name), index)
    return Gpu(name.value.decode(errors="replace"))
