"""Hardware that a model could run on: accelerators with their memory, and processors."""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from opdbus.engine import cpus
from opdbus.engine.discovery import Gpu
from opdbus.engine.host import HERE, Host
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.remote.http_client import reach
from opdbus.errors import ProviderError
from opdbus.platform import pip
from opdbus.settings.parsing import REMOTE, remote_url

# Provider rows that number devices differently, and the providers that share each numbering.
_COUNTS: Final = (
    ("cuda", "cuda, tensorrt"),
    ("openvino", "openvino"),
    ("migraphx", "migraphx"),
    ("directml", "directml"),
    ("coreml", "coreml"),
    ("webgpu", "webgpu"),
)
NO_NVML: Final = (
    "memory and driver of NVIDIA GPUs are unknown: the package nvidia-ml-py is not installed;"
    f" {pip.install('op-dbus[gpu]')}"
)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Accelerator memory in bytes."""

    allocated: int
    total: int
    # most memory that one process had at a time; None unless the driver keeps accounts
    peak: int | None = None


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device and its number in OP_DBUS_GPU_DEVICE for these providers."""

    providers: str
    index: int
    name: str
    uuid: str
    driver: str
    memory: DeviceMemory | None


@dataclass(frozen=True, slots=True)
class Processors:
    """The CPU, and the processors that this process may use."""

    name: str
    count: int
    affinity: int
    # in processors; None if no cgroup sets one
    quota: float | None
    usable: int
    # only the features that speed up a number format
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hardware:
    """All hardware that a model could run on, and notes on missing information."""

    processors: Processors
    accelerators: tuple[Accelerator, ...]
    notes: tuple[str, ...]
    # embedding servers, each with its answer or the reason why there is none
    servers: Mapping[str, str]


def hardware(
    host: Host = HERE, nvml: Callable[[], Any] | None = None, providers: Sequence[str] = ()
) -> Hardware:
    """List this machine's hardware, and the servers in the names of `providers`.

    `nvml` returns the module pynvml or raises ImportError.
    """
    found, notes = [], []
    nvidia: dict[str, tuple[str, DeviceMemory]] = {}
    for name, sharing in _COUNTS:
        devices: Sequence[Gpu] = ()
        with suppress(Exception):  # none, or a broken runtime: `op-dbus providers` says which
            devices = PROVIDERS[name].find_devices(host)
        if name == "cuda" and devices:
            nvidia, note = _read_nvml(nvml or partial(importlib.import_module, "pynvml"))
            notes += [note] if note else []
        for index, device in enumerate(devices):
            driver, memory = nvidia.get(device.uuid.lower(), ("", None))
            found.append(Accelerator(sharing, index, device.name, device.uuid, driver, memory))
    remote = [remote_url(name) for name in providers if name.startswith(REMOTE)]
    servers = {url: _reach(url) for url in remote}
    return Hardware(processors(host), tuple(found), tuple(notes), servers)


def _reach(url: str) -> str:
    try:
        return f"answers (HTTP {reach(url)})"
    except ProviderError as error:
        return str(error)


def processors(host: Host = HERE, root: Path = Path("/")) -> Processors:
    """Count the processors, and those that affinity and cgroups allow."""
    features = tuple(sorted(host.features() & (cpus.BF16 | cpus.INT8 | cpus.INT8_ARM)))
    counts = os.cpu_count() or 1, cpus.allowed(), cpus.quota(root), cpus.usable(root)
    return Processors(host.processor(), *counts, features)


def _read_nvml(nvml: Callable[[], Any]) -> tuple[dict[str, tuple[str, DeviceMemory]], str]:
    """Return driver and memory by UUID in lower case, and a note on missing information."""
    try:
        module = nvml()
    except ImportError:
        return {}, NO_NVML
    found = {}
    try:
        module.nvmlInit()
        try:
            driver = _as_text(module.nvmlSystemGetDriverVersion())
            for number in range(module.nvmlDeviceGetCount()):
                handle = module.nvmlDeviceGetHandleByIndex(number)
                info = module.nvmlDeviceGetMemoryInfo(handle)
                memory = DeviceMemory(int(info.used), int(info.total), _read_peak(module, handle))
                found[_as_text(module.nvmlDeviceGetUUID(handle)).lower()] = driver, memory
        finally:
            module.nvmlShutdown()
    except module.NVMLError as error:
        return {}, f"memory and driver of NVIDIA GPUs are unknown: {error}"
    return found, ""


def _read_peak(module: Any, handle: Any) -> int | None:  # noqa: ANN401 -- it has no types
    """Return the largest memory of one process; None unless accounting is on."""
    try:
        if not module.nvmlDeviceGetAccountingMode(handle):
            return None
        pids = module.nvmlDeviceGetAccountingPids(handle)
        stats = [module.nvmlDeviceGetAccountingStats(handle, pid) for pid in pids]
    except module.NVMLError:
        return None
    return max((int(stat.maxMemoryUsage) for stat in stats), default=0)


def _as_text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
