"""Discovery of what providers need: accelerators of each kind, and shared libraries."""

import ctypes
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple

from opdbus.engine.host import Host
from opdbus.errors import ProviderError


class Gpu(NamedTuple):
    """A device as its driver names it; `uuid` is empty if the driver gives none.

    `fault` is the reason why it cannot be used, with advice.
    """

    name: str
    uuid: str = ""
    fault: str = ""


# CUDA 13 needs a driver and a GPU of these versions or newer: docs.nvidia.com, "CUDA Compatibility"
# and "CUDA Toolkit Release Notes".
_LEAST_CUDA: Final = 13000
_LEAST_CAPABILITY: Final = (7, 5)
UPDATE_DRIVER: Final = "CUDA 13 needs the NVIDIA driver 580 or newer: install one"
# The driver's attributes of a device that are its compute capability.
_CAPABILITY: Final = (75, 76)


def _may_open(files: str) -> str:
    return (
        f"that this process may open {files}: to let the service, copy"
        " /usr/lib/systemd/system/op-dbus.service.d/gpu.conf.example to"
        " /etc/systemd/system/op-dbus.service.d/gpu.conf"
    )


def find_processor(host: Host) -> list[Gpu]:
    """Return the CPU as the only device."""
    return [Gpu(host.processor())]


def find_nvidia(host: Host) -> list[Gpu]:
    """List the NVIDIA driver's GPUs; raises ProviderError without a usable driver or a GPU."""
    driver = _load_driver(
        host,
        "nvcuda.dll" if os.name == "nt" else "libcuda.so.1",
        "there is no NVIDIA driver here (libcuda.so.1 was not found); install the driver for"
        " your GPU",
    )
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise ProviderError(
            f"the NVIDIA driver finds no GPU; check `nvidia-smi`, and {_may_open('/dev/nvidia*')}"
        )
    version = _read_number(driver, "cuDriverGetVersion")
    if version < _LEAST_CUDA:
        found_cuda = f"{version // 1000}.{version % 1000 // 10}"
        named = " ".join(filter(None, ("the NVIDIA driver", host.nvidia_driver())))
        raise ProviderError(
            f"{named} is too old for CUDA 13: it has CUDA"
            f" {found_cuda}; {UPDATE_DRIVER}, or use OP_DBUS_EXECUTION_PROVIDER=cpu"
        )
    found = []
    for index in range(count.value):
        handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        raw = (ctypes.c_ubyte * 16)()
        driver.cuDeviceGet(ctypes.byref(handle), index)
        driver.cuDeviceGetName(name, len(name), handle)
        # the second version gives a MIG instance its own
        ask = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
        ask(ctypes.byref(raw), handle)
        digits = bytes(raw).hex()
        uuid = "-".join(digits[a:b] for a, b in pairwise((0, 8, 12, 16, 20, 32)))
        title = name.value.decode(errors="replace")
        kind = "MIG" if " MIG " in title else "GPU"
        found.append(Gpu(title, f"{kind}-{uuid}", _find_age(driver, title, handle)))
    return found


def _find_age(driver: Any, name: str, handle: ctypes.c_int) -> str:  # noqa: ANN401 -- a library
    """Return the fault of a GPU that CUDA 13 has no code for; empty if it has."""
    major, minor = (
        _read_number(driver, "cuDeviceGetAttribute", attribute, handle) for attribute in _CAPABILITY
    )
    if (major, minor) >= _LEAST_CAPABILITY:
        return ""
    return (
        f"{name} has compute capability {major}.{minor}, and CUDA 13 needs 7.5 (Turing) or newer;"
        " set OP_DBUS_GPU_DEVICE to another GPU, or use OP_DBUS_EXECUTION_PROVIDER=cpu"
    )


def _read_number(library: Any, function: str, *arguments: Any) -> int:  # noqa: ANN401 -- a library
    """Call a function that writes a number into its first argument."""
    number = ctypes.c_int(0)
    getattr(library, function)(ctypes.byref(number), *arguments)
    return number.value


def find_amd(host: Host) -> list[Gpu]:
    """List the GPUs of AMD's HIP runtime; raises ProviderError without a runtime or a GPU."""
    runtime = _load_driver(
        host,
        "amdhip64.dll" if os.name == "nt" else "libamdhip64.so",
        "there is no ROCm here (libamdhip64.so was not found); install ROCm 7 with MIGraphX",
    )
    count = ctypes.c_int(0)
    if runtime.hipGetDeviceCount(ctypes.byref(count)) or not count.value:
        raise ProviderError(
            f"ROCm finds no GPU; check `rocminfo`, and {_may_open('/dev/kfd and /dev/dri/render*')}"
        )
    found = []
    for index in range(count.value):
        name = ctypes.create_string_buffer(256)
        runtime.hipDeviceGetName(name, len(name), index)
        found.append(Gpu(name.value.decode(errors="replace")))
    return found


def _load_driver(host: Host, file: str, missing: str) -> Any:  # noqa: ANN401 -- a library's functions are known by name only
    try:
        return host.library(file)
    except OSError:
        raise ProviderError(f"{missing}, or use OP_DBUS_EXECUTION_PROVIDER=cpu") from None


def find_apple(host: Host) -> list[Gpu]:
    """Return Core ML's single device; it assigns units itself. Raises ProviderError."""
    if host.system != "darwin":
        raise ProviderError("this is no Apple computer; use another provider")
    return [Gpu("Apple GPU and Neural Engine")]


def adapter_finder(runtime_name: str) -> Callable[[Host], list[Gpu]]:
    """Make the device finder of a provider whose adapters may be software renderers."""

    def find(host: Host) -> list[Gpu]:
        found = host.adapters(runtime_name)
        real = [Gpu(adapter.name) for adapter in found if adapter.is_hardware]
        if real:
            return real
        software = [adapter.name for adapter in found if adapter.is_software]
        why = f"only {software[0]}, which computes on the CPU" if software else "none"
        raise ProviderError(
            f"of hardware GPUs there is {why}; install the GPU's driver, or use"
            " OP_DBUS_EXECUTION_PROVIDER=cpu"
        )

    return find


def find_intel(host: Host) -> list[Gpu]:
    """Return OpenVINO's GPUs and NPUs; raises ProviderError if there are none."""
    found = openvino_accelerators(host)
    if not found:
        raise ProviderError(
            "OpenVINO finds no Intel GPU or NPU; install their drivers (intel-opencl-icd, or the"
            f" NPU's), and check {_may_open('/dev/dri/render* and /dev/accel/*')}; or use"
            " cpu:openvino"
        )
    return [Gpu(f"{hardware} ({name})") for name, hardware in found.items()]


def openvino_accelerators(host: Host) -> dict[str, str]:
    """Return OpenVINO's GPUs, then its NPUs, each with its hardware's name."""
    found = host.openvino_devices()
    kinds = ("GPU", "NPU")
    return {name: found[name] for kind in kinds for name in sorted(found) if name.startswith(kind)}


class SharedLibrary(NamedTuple):
    """A library that a provider loads by a file name that ends with the major version."""

    name: str
    file: str
    # Function that returns the version, or with `by_reference` writes it into a reference, as
    # CUDA's does. Without a function, the version is that of the file name.
    function: str = ""
    by_reference: bool = False

    @property
    def wanted(self) -> str:
        """The major version that the provider was built for."""
        return self.file.rpartition(".")[2]

    def version(self, host: Host) -> str:
        """Load the library and return its version; raises OSError if it is missing."""
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


CUDA_LIBRARIES: Final = (
    SharedLibrary("CUDA", "libcudart.so.13", "cudaRuntimeGetVersion", by_reference=True),
    SharedLibrary("cuBLASLt", "libcublasLt.so.13", "cublasLtGetVersion"),
    SharedLibrary("cuBLAS", "libcublas.so.13"),
    SharedLibrary("cuRAND", "libcurand.so.10"),
    # Loaded by the first attention node: without this check only the first run would fail.
    SharedLibrary("cuDNN", "libcudnn.so.9", "cudnnGetVersion"),
)
TENSORRT_LIBRARIES: Final = (
    *CUDA_LIBRARIES,
    SharedLibrary("TensorRT", "libnvinfer.so.10", "getInferLibVersion"),
)
