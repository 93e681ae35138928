"""The table of providers, and why one cannot be used."""

import ctypes
from collections.abc import Sequence
from typing import Any

import pytest

from opdbus import config
from opdbus.engine.providers import (
    CPU_ENGINES,
    PROVIDERS,
    Host,
    candidates,
    cuda_hardware,
    require_cuda,
    require_onnxruntime,
)
from opdbus.errors import ProviderError

CUDA = ("CUDAExecutionProvider", "CPUExecutionProvider")
DRIVER = "libcuda.so.1"


class Driver:
    """An NVIDIA driver: as much of it as is asked."""

    def __init__(self, devices: int = 2, fault: int = 0) -> None:
        self.devices = devices
        self.fault = fault

    def cuInit(self, _flags: int) -> int:  # noqa: N802 -- the driver's own name
        """Start the driver."""
        return self.fault

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802 -- the driver's own name
        """Count devices into a reference."""
        count._obj.value = self.devices
        return 0

    def cuDeviceGet(self, handle: Any, device: int) -> int:  # noqa: N802 -- the driver's own name
        """Give a device's handle into a reference."""
        handle._obj.value = 40 + device
        return 0

    def cuDeviceGetName(self, name: Any, _size: int, handle: ctypes.c_int) -> int:  # noqa: N802 -- the driver's own name
        """Give a device's name into a buffer."""
        name.value = f"Example GPU {handle.value}".encode()
        return 0


def host(
    *,
    packages: Sequence[str] = ("onnxruntime",),
    providers: Sequence[str] = CUDA,
    driver: Driver | None = None,
    missing: Sequence[str] = (),
) -> Host:
    """Make a machine that has everything for CUDA, but for what is named."""

    def library(name: str) -> Any:
        if name in missing:
            raise OSError(f"{name}: cannot open shared object file")
        return driver or Driver()

    return Host(
        has_package=packages.__contains__,
        runtime_providers=lambda: providers,
        preload=lambda: None,
        library=library,
    )


def test_everything_is_there() -> None:
    """Accept a machine that has the wheel, the driver, a GPU and the libraries."""
    require_cuda(0, host())
    require_cuda(1, host())
    require_onnxruntime(0, host())


@pytest.mark.parametrize(
    ("broken", "missing", "advice"),
    [
        (host(packages=()), "the package onnxruntime is not installed", "pip install"),
        (host(providers=CUDA[1:]), "was built without CUDA", "op-dbus[gpu]"),
        (host(missing=[DRIVER]), "no NVIDIA driver here (libcuda.so.1", "OP_DBUS_EXECUTION_PROVID"),
        (host(driver=Driver(devices=0)), "the NVIDIA driver finds no GPU", "nvidia-smi"),
        (host(driver=Driver(fault=100)), "the NVIDIA driver finds no GPU", "nvidia-smi"),
        (host(missing=["libcudart.so.13"]), "libcudart.so.13 was not found", "op-dbus[gpu]"),
        (host(missing=["libcublasLt.so.13"]), "libcublasLt.so.13 was not found", "op-dbus[gpu]"),
        (host(missing=["libcudnn.so.9"]), "libcudnn.so.9 was not found", "op-dbus[gpu]"),
    ],
)
def test_what_cuda_lacks(broken: Host, missing: str, advice: str) -> None:
    """Say in one sentence what CUDA lacks and what to do."""
    with pytest.raises(ProviderError) as caught:
        require_cuda(0, broken)
    sentence = str(caught.value)
    assert "cannot run" in sentence
    assert missing in sentence
    assert advice in sentence.partition("; ")[2]
    assert "\n" not in sentence


def test_a_device_that_is_not_there() -> None:
    """Say how many devices there are when another one is asked for."""
    with pytest.raises(ProviderError, match=r"device 2: there are 2, .* OP_DBUS_GPU_DEVICE"):
        require_cuda(2, host())


def test_cpu_lacks_its_package() -> None:
    """Say which package the CPU engine lacks."""
    with pytest.raises(ProviderError, match=r"onnxruntime is not installed; .* `pip install"):
        require_onnxruntime(0, host(packages=()))


def test_libraries_are_preloaded_before_they_are_sought() -> None:
    """Bring the libraries of packages within reach, then look for them."""
    events: list[str] = []

    def library(name: str) -> Driver:
        events.append(name)
        return Driver()

    require_cuda(0, Host(lambda _: True, lambda: CUDA, lambda: events.append("preload"), library))
    assert events.index(DRIVER) < events.index("preload") < events.index("libcudart.so.13")


def test_hardware_names() -> None:
    """Name the processor, and the GPU that was asked for."""
    assert PROVIDERS["cpu:onnxruntime"].hardware(0).strip()
    assert cuda_hardware(1, host()) == "Example GPU 41"


def test_cuda_here() -> None:
    """Name the driver as what is missing on a machine without one."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        pass
    else:
        pytest.skip("this machine has an NVIDIA driver")
    PROVIDERS["cpu:onnxruntime"].require(0)
    with pytest.raises(ProviderError, match=r"no NVIDIA driver here .*; install the driver"):
        PROVIDERS["cuda"].require(0)


def test_candidates() -> None:
    """Expand `cpu` to its engines and name each row once, in the order of the request."""
    engines = [PROVIDERS[name] for name in CPU_ENGINES]
    assert candidates(("cpu",)) == engines
    assert candidates(("cuda", "cpu")) == [PROVIDERS["cuda"], *engines]
    assert candidates(("cpu", "cuda", "cpu:onnxruntime", "cpu")) == [*engines, PROVIDERS["cuda"]]


def test_every_setting_has_a_row() -> None:
    """Know every provider that the settings accept."""
    assert set(config.PROVIDERS) == {"cpu", *PROVIDERS}
    assert {name for name, row in PROVIDERS.items() if name != row.name} == set()
