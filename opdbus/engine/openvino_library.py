"""Access to the installed OpenVINO and its devices."""

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any


@cache
def core() -> Any:  # noqa: ANN401 -- it has no types
    """Return the one Core of this process; the first call searches for devices."""
    # The import would send telemetry, from a fork of this process that holds all its sockets.
    # openvino works without the package that does so.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino.Core()


def devices() -> Mapping[str, str]:
    """Return OpenVINO's devices, such as CPU, GPU.0 and NPU, each with its hardware's name."""
    names = core().available_devices
    return {name: str(core().get_property(name, "FULL_DEVICE_NAME")) for name in names}
