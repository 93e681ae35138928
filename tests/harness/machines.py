"""Machines with accelerators that pretend: their drivers, libraries and packages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opdbus.engine.host import Adapter, Host
from opdbus.engine.providers import PROVIDERS

if TYPE_CHECKING:
    import ctypes

RUNTIME_NAMES = [row.runtime_name for row in PROVIDERS.values()]
PACKAGES = ("onnxruntime", "openvino", "onnxruntime_ep_webgpu")


class Library:
    """A driver or runtime library: NVIDIA's and AMD's, as much of them as is asked."""

    def __init__(
        self,
        devices: int = 2,
        fault: int = 0,
        *,
        cuda: int = 13000,
        capabilities: Sequence[tuple[int, int]] = ((9, 0), (7, 5)),
        title: str = "Example GPU",
    ) -> None:
        self.devices = devices
        self.fault = fault
        self.cuda = cuda
        self.capabilities = capabilities
        self.title = title

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
        name.value = f"{self.title} {handle.value}".encode()
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802 -- the driver's own name
        """Give the driver's version of CUDA into a reference."""
        version._obj.value = self.cuda
        return 0

    def cuDeviceGetAttribute(self, found: Any, attribute: int, handle: ctypes.c_int) -> int:  # noqa: N802 -- the driver's own name
        """Give a device's compute capability into a reference, major and minor."""
        found._obj.value = self.capabilities[handle.value - 40][attribute - 75]
        return 0

    def cuDeviceGetUuid(self, raw: Any, handle: ctypes.c_int) -> int:  # noqa: N802 -- the driver's own name
        """Give a device's number among all into a reference."""
        raw._obj[:] = bytes([handle.value, *range(1, 16)])
        return 0

    def cudaRuntimeGetVersion(self, version: Any) -> int:  # noqa: N802 -- the library's own name
        """Give 13.1 into a reference."""
        version._obj.value = 13010
        return 0

    def cublasLtGetVersion(self) -> int:  # noqa: N802 -- the library's own name
        """Give 13.0.2."""
        return 130002

    def cudnnGetVersion(self) -> int:  # noqa: N802 -- the library's own name
        """Give 9.10.2."""
        return 91002

    def getInferLibVersion(self) -> int:  # noqa: N802 -- the library's own name
        """Give 10.13.3."""
        return 101303

    def hipGetDeviceCount(self, count: Any) -> int:  # noqa: N802 -- the runtime's own name
        """Count devices into a reference."""
        count._obj.value = self.devices
        return self.fault

    def hipDeviceGetName(self, name: Any, _size: int, device: int) -> int:  # noqa: N802 -- the runtime's own name
        """Give a device's name into a buffer."""
        name.value = f"Example Instinct {device}".encode()
        return 0


UUID = "GPU-29010203-0405-0607-0809-0a0b0c0d0e0f"
RADEON = Adapter("AMD Radeon Example", is_gpu=True)
INTEL = {"CPU": "Example CPU", "GPU.1": "Arc B", "NPU": "AI Boost", "GPU.0": "Arc A"}


def host(
    name: str,
    *,
    without: Iterable[str] = (),
    providers: Sequence[str] = RUNTIME_NAMES,
    library: Library | None = None,
    adapters: Sequence[Adapter] = (RADEON,),
    openvino: dict[str, str] | None = None,
    **more: Any,
) -> Host:
    """Make a machine that has everything for a provider, but for what is named."""

    def load(wanted: str) -> Any:
        if wanted in without:
            raise OSError(f"{wanted}: cannot open shared object file")
        return library or Library()

    wheel = {"directml": "onnxruntime_directml", "migraphx": "onnxruntime_migraphx"}
    installed = {*PACKAGES, wheel.get(name, "onnxruntime_gpu")} - {"onnxruntime", *without}
    more = {"system": {"directml": "win32", "coreml": "darwin"}.get(name, "linux"), **more}
    more = {"vendors": frozenset, **more}
    return Host(
        has_package=lambda package: package in set(PACKAGES) - set(without),
        version=lambda name: "1.2.3" if name.replace("-", "_") in installed else "",
        runtime_providers=lambda: providers,
        preload=lambda: None,
        library=load,
        openvino_devices=lambda: INTEL if openvino is None else openvino,
        adapters=lambda _runtime_name: adapters,
        processor=lambda: "Example CPU",
        **more,
    )
