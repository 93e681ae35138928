"""Device discovery for each kind of accelerator, with advice in the errors."""

import ctypes
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from opdbus.engine.host import Host
from opdbus.errors import ProviderError


class Gpu(NamedTuple):
    """A device as its driver names it; `uuid` is empty if the driver gives none."""

    name: str
    uuid: str = ""


def processors(host: Host) -> list[Gpu]:
    """Return the CPU as the only device."""
    return [Gpu(host.processor())]


def nvidia(host: Host) -> list[Gpu]:
    """List the NVIDIA driver's GPUs; raises ProviderError without a driver or a GPU."""
    try:
        driver = host.library("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        raise ProviderError(
            "there is no NVIDIA driver here (libcuda.so.1 was not found); install the driver for"
            " your GPU, or use OP_DBUS_EXECUTION_PROVIDER=cpu"
        ) from None
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise ProviderError(
            "the NVIDIA driver finds no GPU; check `nvidia-smi`, and that this service may open"
            " /dev/nvidia*"
        )
    return [_nvidia_device(driver, index) for index in range(count.value)]


def _nvidia_device(driver: Any, index: int) -> Gpu:  # noqa: ANN401 -- a library's functions are known by name only
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    raw = (ctypes.c_ubyte * 16)()
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetName(name, len(name), handle)
    driver.cuDeviceGetUuid(ctypes.byref(raw), handle)
    digits = bytes(raw).hex()
    uuid = "-".join(digits[a:b] for a, b in pairwise((0, 8, 12, 16, 20, 32)))
    return Gpu(name.value.decode(errors="replace"), f"GPU-{uuid}")


def amd(host: Host) -> list[Gpu]:
    """List the GPUs of AMD's HIP runtime; raises ProviderError without a runtime or a GPU."""
    try:
        runtime = host.library("amdhip64.dll" if os.name == "nt" else "libamdhip64.so")
    except OSError:
        raise ProviderError(
            "there is no ROCm here (libamdhip64.so was not found); install ROCm 7 with MIGraphX, or"
            " use OP_DBUS_EXECUTION_PROVIDER=cpu"
        ) from None
    count = ctypes.c_int(0)
    if runtime.hipGetDeviceCount(ctypes.byref(count)) or not count.value:
        raise ProviderError(
            "ROCm finds no GPU; check `rocminfo`, and that this service may open /dev/kfd and"
            " /dev/dri/render*"
        )
    return [_amd_device(runtime, index) for index in range(count.value)]


def _amd_device(runtime: Any, index: int) -> Gpu:  # noqa: ANN401 -- a library's functions are known by name only
    name = ctypes.create_string_buffer(256)
    runtime.hipDeviceGetName(name, len(name), index)
    return Gpu(name.value.decode(errors="replace"))


def apple(host: Host) -> list[Gpu]:
    """Return Core ML's single device; it assigns units itself. Raises ProviderError."""
    if host.system != "darwin":
        raise ProviderError("this is no Apple computer; use another provider")
    return [Gpu("Apple GPU and Neural Engine")]


def adapters(runtime_name: str) -> Callable[[Host], list[Gpu]]:
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


def intel(host: Host) -> list[Gpu]:
    """Return OpenVINO's GPUs and NPUs; raises ProviderError if there are none."""
    found = openvino_accelerators(host)
    if not found:
        raise ProviderError(
            "OpenVINO finds no Intel GPU or NPU; install their drivers (intel-opencl-icd, or the"
            " NPU's), or use cpu:openvino"
        )
    return [Gpu(f"{hardware} ({name})") for name, hardware in found.items()]


def openvino_accelerators(host: Host) -> dict[str, str]:
    """Return OpenVINO's GPUs, then its NPUs, each with its hardware's name."""
    found = host.openvino_devices()
    kinds = ("GPU", "NPU")
    return {name: found[name] for kind in kinds for name in sorted(found) if name.startswith(kind)}
