"""The execution providers as a table: names, packages, and why one cannot be used here."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
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


def _require_onnxruntime(_device: int) -> None:
    if importlib.util.find_spec("onnxruntime") is None:
        raise ProviderError(
            "cpu:onnxruntime cannot run: the package onnxruntime is not installed;"
            " install one wheel of it: `pip install onnxruntime-gpu` (Linux x86-64) or"
            " `pip install onnxruntime`"
        )


def _require_cuda(device: int) -> None:
    """Look for each thing that CUDA needs, from the wheel down to the device."""
    _require_onnxruntime(device)
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise ProviderError(
            "cuda cannot run: this onnxruntime was built without CUDA;"
            " `pip uninstall onnxruntime` and `pip install 'op-dbus[gpu]'`"
        )
    driver = _cuda_driver()
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
    _require_cuda_libraries()


def _cuda_driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        raise ProviderError(
            "cuda cannot run: there is no NVIDIA driver here (libcuda.so.1 was not found);"
            " install the driver for your GPU, or use OP_DBUS_EXECUTION_PROVIDER=cpu"
        ) from None


def _require_cuda_libraries() -> None:
    import onnxruntime

    onnxruntime.preload_dlls()
    for library in ("libcudart.so.13", "libcublasLt.so.13", "libcudnn.so.9"):
        try:
            ctypes.CDLL(library)
        except OSError:
            raise ProviderError(
                f"cuda cannot run: {library} was not found; `pip install 'op-dbus[gpu]'` brings"
                " the CUDA 13 and cuDNN 9 libraries"
            ) from None


def _cuda_options(device: int) -> dict[str, Any]:
    return {"device_id": device, "arena_extend_strategy": "kSameAsRequested", "use_tf32": 0}


def _cuda_hardware(device: int) -> str:
    driver = _cuda_driver()
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
            require=_require_onnxruntime,
            options=lambda _device: {},
            hardware=_processor,
        ),
        Provider(
            "cuda",
            "CUDAExecutionProvider",
            batch_tokens=65536,
            require=_require_cuda,
            options=_cuda_options,
            hardware=_cuda_hardware,
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
