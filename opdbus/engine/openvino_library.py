"""The installed OpenVINO, and the devices that it finds."""

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any


@cache
def core() -> Any:  # noqa: ANN401 -- it has no types
    """Give the one Core of this process; making it looks for devices."""
    # The import would send telemetry, from a fork of this process that holds all our sockets.
    # openvino works without the package that does so.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino.Core()


def devices() -> Mapping[str, str]:
    """Give OpenVINO's devices, such as CPU, GPU.0 and NPU, each with its hardware's name."""
    names = core().available_devices
    return {name: str(core().get_property(name, "FULL_DEVICE_NAME")) for name in names}
