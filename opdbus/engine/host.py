"""Facts of the machine for provider checks: packages, libraries, devices, CPU features."""

import ctypes
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opdbus.engine import cpus, onnx_library, openvino_library
from opdbus.engine.onnx_library import Adapter


def _has_package(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class Host:
    """Functions that provider checks call; tests pass other machines."""

    has_package: Callable[[str], bool] = _has_package
    # returns an empty string for a package that is not installed
    version: Callable[[str], str] = _version
    runtime_providers: Callable[[], Sequence[str]] = onnx_library.available_providers
    # makes the CUDA libraries of installed packages findable by `library`
    preload: Callable[[], None] = onnx_library.preload
    # raises OSError if there is no such library
    library: Callable[[str], Any] = ctypes.CDLL
    openvino_devices: Callable[[], Mapping[str, str]] = openvino_library.devices
    adapters: Callable[[str], Sequence[Adapter]] = onnx_library.adapters
    features: Callable[[], frozenset[str]] = cpus.features
    processor: Callable[[], str] = cpus.name
    system: str = sys.platform


HERE: Final = Host()


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed ones among these distributions."""
    found = {name: HERE.version(name) for name in distributions}
    return {name: version for name, version in found.items() if version}
