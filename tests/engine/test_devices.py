"""The hardware that is listed, with the memory that NVML tells of."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from harness.machines import INTEL, RADEON, UUID, Library, host
from harness.running import Running

from opdbus.engine.accelerators import NO_NVML, DeviceMemory, hardware, processors

if TYPE_CHECKING:
    from pathlib import Path

    from opdbus.engine.host import Host

GIB = 1 << 30


class NoMemory(Exception):
    """What pynvml raises."""


class Nvml:
    """The module pynvml, as much of it as is asked, with two GPUs in another order than CUDA's."""

    NVMLError = NoMemory

    def __init__(self, *, accounting: bool = False, fault: str = "", text: type = str) -> None:
        self.accounting = accounting
        self.fault = fault
        self.text = text
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802 -- the module's own name
        """Start, unless the driver is broken."""
        if self.fault:
            raise NoMemory(self.fault)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802 -- the module's own name
        """Stop."""
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802 -- the module's own name
        """Give the driver's version, as bytes where the module is old."""
        return b"580.65" if self.text is bytes else "580.65"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 -- the module's own name
        """Count devices."""
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 -- the module's own name
        """Give the last first."""
        return 1 - index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802 -- the module's own name
        """Name a device as its driver does, but for the case."""
        return UUID.replace("GPU-29", f"GPU-{0x28 + handle:x}").upper()

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802 -- the module's own name
        """Give used and total bytes."""
        return SimpleNamespace(used=(handle + 1) * GIB, total=(handle + 1) * 80 * GIB)

    def nvmlDeviceGetAccountingMode(self, _handle: int) -> int:  # noqa: N802 -- the module's own name
        """Tell whether accounts are kept."""
        return int(self.accounting)

    def nvmlDeviceGetAccountingPids(self, _handle: int) -> list[int]:  # noqa: N802 -- the module's own name
        """Name processes."""
        return [5, 7]

    def nvmlDeviceGetAccountingStats(self, handle: int, pid: int) -> Any:  # noqa: N802 -- the module's own name
        """Give what a process had at most."""
        return SimpleNamespace(maxMemoryUsage=(handle + pid) * GIB)


def bare(**more: Any) -> Host:
    """Make a machine without accelerators, but for what is named."""
    machine = host(
        "",
        without=["libcuda.so.1", "libamdhip64.so"],
        adapters=(),
        openvino={"CPU": "Example CPU"},
    )
    return replace(machine, **more)


def libraries(*names: str) -> Any:
    """Make what loads these libraries and no others."""

    def load(name: str) -> Library:
        if name not in names:
            raise OSError(name)
        return Library()

    return load


def test_embedding_servers_are_listed() -> None:
    """List each embedding server of the settings, with its answer or the reason for none."""
    names = ("remote:unix:/nonexistent/a", "cpu", "remote:unix:/nonexistent/b")
    servers = hardware(bare(), providers=names).servers
    assert list(servers) == [f"unix:/nonexistent/{name}" for name in "ab"]
    assert all(servers.values())


def test_no_accelerators() -> None:
    """List the processors alone where there is nothing else, and ask NVML nothing."""

    def nvml() -> Any:
        raise AssertionError("asked")

    found = hardware(bare(), nvml)
    assert found.accelerators == ()
    assert found.notes == ()
    assert found.processors.name == "Example CPU"


def test_nvidia() -> None:
    """Number GPUs as CUDA does, and find each one's memory by its UUID."""
    nvml = Nvml()
    found = hardware(bare(library=libraries("libcuda.so.1")), lambda: nvml)
    first, second = found.accelerators
    assert (first.providers, first.index, first.name) == ("cuda, tensorrt", 0, "Example GPU 40")
    assert second.uuid == UUID
    assert (first.driver, first.memory) == ("580.65", DeviceMemory(1 * GIB, 80 * GIB))
    assert second.memory == DeviceMemory(2 * GIB, 160 * GIB)
    assert nvml.open == 0
    assert found.notes == ()


def test_peak_memory() -> None:
    """Give the most that any process had, where the driver keeps accounts."""
    nvml = Nvml(accounting=True, text=bytes)
    found = hardware(bare(library=libraries("libcuda.so.1")), lambda: nvml)
    assert [device.memory.peak for device in found.accelerators if device.memory] == [
        7 * GIB,
        8 * GIB,
    ]
    assert found.accelerators[0].driver == "580.65"


def test_nvml_is_not_installed() -> None:
    """List GPUs without their memory, and say what to install."""

    def missing() -> Any:
        raise ImportError("No module named 'pynvml'")

    found = hardware(bare(library=libraries("libcuda.so.1")), missing)
    assert [device.memory for device in found.accelerators] == [None, None]
    assert found.notes == (NO_NVML,)
    assert "pip install 'op-dbus[gpu]'" in NO_NVML


def test_nvml_fails() -> None:
    """Say why NVML does not answer, and list the GPUs all the same."""
    nvml = Nvml(fault="Driver/library version mismatch")
    found = hardware(bare(library=libraries("libcuda.so.1")), lambda: nvml)
    assert len(found.accelerators) == 2
    assert found.notes == (
        "memory and driver of NVIDIA GPUs are unknown: Driver/library version mismatch",
    )


def test_the_other_makers() -> None:
    """List Intel's, AMD's and a browser API's devices, each as its provider counts."""
    machine = bare(
        library=libraries("libamdhip64.so"),
        openvino_devices=lambda: INTEL,
        adapters=lambda name: [RADEON] if name.startswith("WebGpu") else [],
    )
    found = [
        (device.providers, device.index, device.name) for device in hardware(machine).accelerators
    ]
    assert found == [
        ("openvino", 0, "Arc A (GPU.0)"),
        ("openvino", 1, "Arc B (GPU.1)"),
        ("openvino", 2, "AI Boost (NPU)"),
        ("migraphx", 0, "Example Instinct 0"),
        ("migraphx", 1, "Example Instinct 1"),
        ("webgpu", 0, RADEON.name),
    ]


def test_apple() -> None:
    """List Apple's accelerators on their own system only."""
    apple = [d.providers for d in hardware(bare(system="darwin")).accelerators]
    assert apple == ["coreml"]


def test_a_runtime_that_fails() -> None:
    """Pass over a runtime that fails in its own way."""

    def broken(*_: object) -> Any:
        raise RuntimeError("bad ABI")

    assert hardware(bare(openvino_devices=broken, adapters=broken)).accelerators == ()


def test_processors(tmp_path: Path) -> None:
    """Tell processors, affinity, quota, what they leave, and the features that count."""
    for name, text in {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": "150000 100000",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    machine = bare(features=lambda: frozenset({"avx512_vnni", "amx_bf16", "fpu"}))
    found = processors(machine, tmp_path)
    assert (found.quota, found.usable) == (1.5, min(2, found.affinity))
    assert found.affinity == len(os.sched_getaffinity(0))
    assert found.count == os.cpu_count()
    assert found.features == ("amx_bf16", "avx512_vnni")


@pytest.fixture
def cli(tmp_path: Path, tiny_model: Path) -> Running:
    """Give the command line where there is no bus."""
    return Running(tmp_path, "unix:path=/nonexistent", MODEL=tiny_model)


def test_the_command(cli: Running) -> None:
    """List the hardware without a bus, as words and as JSON."""
    words = cli.cli("devices")
    assert (words.returncode, words.stderr) == (0, "")
    assert "processors may be used (affinity" in words.stdout
    found = json.loads(cli.cli("devices", "--json").stdout)
    assert found["processors"]["usable"] >= 1
    assert isinstance(found["accelerators"], list)
    for device in found["accelerators"]:
        assert f"{device['providers']} {device['index']}" in words.stdout
