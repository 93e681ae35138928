"""The execution providers as a table: names, packages, and why one cannot be used here."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from opdbus.errors import ProviderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Provider:
    """One row: where a model can run, and how to find out whether it can run there now."""

    name: str
    runtime_name: str
    # tokens a batch: past this a larger batch only makes everyone else wait longer
    batch_tokens: int
    # raises ProviderError that says what is missing and what to do
    require: Callable[[int], None]
    options: Callable[[int], dict[str, Any]]
    hardware: Callable[[int], str]


def _has_package(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _runtime_providers() -> Sequence[str]:
    import onnxruntime

    providers: Sequence[str] = onnxruntime.get_available_providers()
    return providers


def _preload() -> None:
    import onnxruntime

    # It prints what it misses; standard output belongs to answers.
    with contextlib.redirect_stdout(sys.stderr):
        onnxruntime.preload_dlls()


@dataclass(frozen=True, slots=True)
class Host:
    """What the checks below ask of this machine; tests pass other machines."""

    has_package: Callable[[str], bool] = _has_package
    runtime_providers: Callable[[], Sequence[str]] = _runtime_providers
    # brings the CUDA libraries of installed packages within reach of `library`
    preload: Callable[[], None] = _preload
    # raises OSError where there is no such library
    library: Callable[[str], Any] = ctypes.CDLL


HERE: Final = Host()


def require_onnxruntime(_device: int, host: Host = HERE) -> None:
    """Look for the package; raises ProviderError."""
    if not host.has_package("onnxruntime"):
        raise ProviderError(
            "cpu:onnxruntime cannot run: the package onnxruntime is not installed;"
            " install one wheel of it: `pip install onnxruntime-gpu` (Linux x86-64) or"
            " `pip install onnxruntime`"
        )


def require_cuda(device: int, host: Host = HERE) -> None:
    """Look for each thing that CUDA needs, from the wheel down; raises ProviderError."""
    require_onnxruntime(device, host)
    if "CUDAExecutionProvider" not in host.runtime_providers():
        raise ProviderError(
            "cuda cannot run: this onnxruntime was built without CUDA;"
            " `pip uninstall onnxruntime` and `pip install 'op-dbus[gpu]'`"
        )
    driver = _cuda_driver(host)
    count = ctypes.c_int(0)
    if (
        driver.cuInit(0) != 0
        or driver.cuDeviceGetCount(ctypes.byref(count)) != 0
        or not count.value
    ):
        raise ProviderError(
            "cuda cannot run: the NVIDIA driver finds no GPU; check `nvidia-smi`, and that this"
            " service may open /dev/nvidia*"
        )
    if device >= count.value:
        raise ProviderError(
            f"cuda cannot run on device {device}: there are {count.value}, numbered from 0;"
            " set OP_DBUS_GPU_DEVICE"
        )
    _require_cuda_libraries(host)


def _cuda_driver(host: Host) -> Any:  # noqa: ANN401 -- a library's functions are known by name only
    try:
        return host.library("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        raise ProviderError(
            "cuda cannot run: there is no NVIDIA driver here (libcuda.so.1 was not found);"
            " install the driver for your GPU, or use OP_DBUS_EXECUTION_PROVIDER=cpu"
        ) from None


def _require_cuda_libraries(host: Host) -> None:
    host.preload()
    for library in ("libcudart.so.13", "libcublasLt.so.13", "libcudnn.so.9"):
        try:
            host.library(library)
        except OSError:
            raise ProviderError(
                f"cuda cannot run: {library} was not found; `pip install 'op-dbus[gpu]'` brings"
                " the CUDA 13 and cuDNN 9 libraries"
            ) from None


def _cuda_options(device: int) -> dict[str, Any]:
    return {"device_id": device, "arena_extend_strategy": "kSameAsRequested", "use_tf32": 0}


def cuda_hardware(device: int, host: Host = HERE) -> str:
    """Ask the driver for the device's name; raises ProviderError where there is no driver."""
    driver = _cuda_driver(host)
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(handle), device)
    driver.cuDeviceGetName(name, len(name), handle)
    return name.value.decode(errors="replace")


def _processor(_device: int) -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 -- a device-like file, read by line
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


PROVIDERS: Final = {
    provider.name: provider
    for provider in (
        Provider(
            "cpu:onnxruntime",
            "CPUExecutionProvider",
            batch_tokens=512,
            require=require_onnxruntime,
            options=lambda _device: {},
            hardware=_processor,
        ),
        Provider(
            "cuda",
            "CUDAExecutionProvider",
            batch_tokens=65536,
            require=require_cuda,
            options=_cuda_options,
            hardware=cuda_hardware,
        ),
    )
}
# The engines that `cpu` may mean, fastest first.
CPU_ENGINES: Final = ("cpu:onnxruntime",)


def candidates(names: Sequence[str]) -> list[Provider]:
    """Give the table's rows for requested names, in order, `cpu` expanded to its engines."""
    rows = []
    for name in names:
        rows += [PROVIDERS[n] for n in (CPU_ENGINES if name == "cpu" else (name,))]
    return list(dict.fromkeys(rows))
