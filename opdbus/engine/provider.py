"""Row type of the provider table, with its checks, and the interface of a provider's session."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from opdbus.engine.discovery import UPDATE_DRIVER, Gpu, SharedLibrary
from opdbus.engine.host import HERE, Host
from opdbus.errors import HardwareMissing, ProviderError
from opdbus.platform import pip
from opdbus.settings.parsing import ALL_DEVICES, MIG, REMOTE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Placement:
    """Device, precision and threads of one session: up to `lanes` parallel runs share `threads`."""

    device: int = 0
    precision: str = "fp32"
    threads: int = 1
    lanes: int = 1
    # bytes of the accelerator's memory; None for all free memory
    memory_limit: int | None = None
    # folder in which a provider may cache compiled graphs
    cache: Path | None = None
    # largest number of tokens in a row: the graph has no further positions
    longest: int = 512
    # shape of the embeddings of words; None if the session reads them by itself
    words: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Number of nodes by runtime name, and number of matrix products by precision.

    `products` is empty if a provider fuses the whole model into one node.
    """

    nodes: Mapping[str, int]
    products: Mapping[str, int]


class Session(Protocol):
    """A model opened by a runtime."""

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embed ids (rows, tokens) into vectors (rows, dimension); safe to call from threads.

        Raises ProviderError.
        """

    def finish_profile(self) -> RunRecord:
        """Stop recording and return the nodes and products so far; raises ProviderError."""

    def renew(self) -> bool:
        """Reopen the model if its runtime cannot stop recording; return true if it did so."""


# Error messages about a lack of device memory, of several runtimes and drivers.
_NO_MEMORY: Final = re.compile(
    r"out.?of.?memory|not enough memory|insufficient memory|(failed|unable) to allocate|bad_alloc"
    r"|alloc(ation)?.fail|smaller than requested bytes|memoryerror",
    re.IGNORECASE,
)
# Those about a driver that is older than the CUDA libraries.
_OLD_DRIVER: Final = re.compile("cuda failure 35|driver version is insufficient", re.IGNORECASE)
_FREE_MEMORY: Final = (
    "close what else takes the device's memory, raise OP_DBUS_GPU_MEM_LIMIT if it is set, lower"
    " OP_DBUS_BATCH_TOKENS, or choose a lower OP_DBUS_VECTOR_LEVEL"
)


def is_about_memory(error: Exception) -> bool:
    """Return whether a runtime's message is about a lack of device memory."""
    return bool(_NO_MEMORY.search(str(error)))


def explain(error: Exception) -> str:
    """Return the line of a runtime's message that names the cause, and advice if there is some."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[0]
    if line.startswith("Exception from "):
        # OpenVINO's message begins with places in its source, the outermost first
        line = lines[-1]
    elif line.startswith("[ONNXRuntimeError]"):
        line = line.rpartition(" : ")[2]
    line = line.partition(" ; GPU=")[0]
    if is_about_memory(error):
        return f"{line}; {_FREE_MEMORY}"
    return f"{line}; {UPDATE_DRIVER}" if _OLD_DRIVER.search(line) else line


_ONE_INSTANCE: Final = (
    "; a process sees one MIG instance, the one that CUDA_VISIBLE_DEVICES names when it starts"
)
# More lanes than this share caches and memory without gain and slow each single text.
_MOST_CPU_LANES: Final = 8
# While one run computes, the ids and vectors of another are copied.
_DEVICE_LANES: Final = 2
_SYSTEMS: Final = {"win32": "Windows", "darwin": "macOS"}
# All of them install one folder `onnxruntime`, so only the last one installed works.
_WHEELS: Final = ("onnxruntime-gpu", "onnxruntime", "onnxruntime-directml", "onnxruntime-migraphx")


@dataclass(frozen=True, slots=True, eq=False)
class Provider:
    """One execution provider: its requirements, options and limits.

    `find_devices` returns at least one device, numbered as in OP_DBUS_GPU_DEVICE, or raises
    ProviderError with the cause and advice.
    """

    name: str
    # name that the runtime records for a node that ran there
    runtime_name: str
    # pip requirement to install if a package is missing
    install: str
    find_devices: Callable[[Host], Sequence[Gpu]]
    # graph dialect by precision; the gate grades them
    dialects: Mapping[str, str]
    options: Callable[[Placement], dict[str, Any]]
    # package that opens the model
    runtime: str = "onnxruntime"
    # package beside it that contains the provider, which is then found by device, not by name
    plugin: str = ""
    # the only operating system that has it, as in sys.platform; empty for all
    system: str = ""
    # vendors whose accelerators it runs on, as `Host.vendors` has them; empty for others
    vendors: frozenset[str] = frozenset()
    libraries: tuple[SharedLibrary, ...] = ()
    # advice if one of the libraries is missing
    library_advice: str = ""
    # other runtime names on which nodes may run as well
    also: frozenset[str] = frozenset()
    # upper limits of tokens and rows in a batch, whatever the measurement
    most_tokens: int = 1 << 16
    most_rows: int = 1 << 16
    # precisions in which a text's vector depends on its batch, so batches have one row
    single: frozenset[str] = frozenset()
    # each new batch shape costs time and memory, so batches are full or of one row
    whole_batches: bool = False
    # a single text gets all threads, in a session of its own
    has_solo: bool = False
    # opening compiles the graph, which takes minutes unless the result is cached
    compiles: bool = False
    is_cpu: bool = False

    @property
    def is_remote(self) -> bool:
        """True for embedding servers, which take texts."""
        return self.name.startswith(REMOTE)

    def require(self, wanted: Sequence[str], host: Host = HERE) -> dict[int, str]:
        """Check that a session could be opened here, and return the hardware by device number.

        `wanted` is as in OP_DBUS_GPU_DEVICE. Raises ProviderError; HardwareMissing if nothing could
        be installed that would mend it.
        """
        devices: Sequence[Gpu] = ()
        try:
            self.installed(host)
            devices = self.find_devices(host)
            if self.libraries:
                host.preload()
            for library in self.libraries:
                try:
                    host.library(library.file)
                except OSError:
                    raise ProviderError(
                        f"{library.file} was not found; {self.library_advice}"
                    ) from None
        except ProviderError as error:
            is_its_system = not self.system or host.system == self.system
            may_be_there = is_its_system and (not self.vendors or self.vendors & host.vendors())
            kind = ProviderError if devices or may_be_there else HardwareMissing
            raise kind(f"{self.name} cannot run: {error}") from None
        except Exception as error:  # noqa: BLE001 -- a half-installed runtime raises anything
            reason = " ".join(str(error).split())
            raise ProviderError(
                f"{self.name} cannot run: {reason}; install it again: {pip.install(self.install)}"
            ) from None
        is_one = self.is_cpu or self.is_remote
        return {0: devices[0].name} if is_one else self._choose(wanted, devices)

    def lanes(self, threads: int) -> int:
        """Return the number of batches to run in parallel, on this number of threads."""
        return min(threads, _MOST_CPU_LANES) if self.is_cpu else _DEVICE_LANES

    def installed(self, host: Host) -> str:
        """Return the package that contains the provider, and its version.

        Raises ProviderError that names what to install.
        """
        if self.system and host.system != self.system:
            raise ProviderError(
                f"only {_SYSTEMS[self.system]} has it; use OP_DBUS_EXECUTION_PROVIDER=auto"
            )
        for module in filter(None, (self.runtime, self.plugin)):
            if not host.has_package(module):
                package = module.replace("_", "-")
                raise ProviderError(
                    f"the package {package} is not installed; {pip.install(self.install)}"
                )
        own = (self.plugin or self.runtime).replace("_", "-")
        if self.is_remote:
            return "part of op-dbus"
        if own != "onnxruntime":
            return f"{own} {host.version(own)}"
        wheels = [wheel for wheel in _WHEELS if host.version(wheel)]
        if self.runtime_name not in host.runtime_providers():
            found = " ".join(wheels) or self.runtime
            raise ProviderError(
                f"the installed {found} was built without"
                f" {self.runtime_name.removesuffix('ExecutionProvider')};"
                f" {pip.install(self.install, instead_of=found)}"
            )
        found = " and ".join(f"{wheel} {host.version(wheel)}" for wheel in wheels) or own
        return f"{found}, which overwrite each other" if len(wheels) > 1 else found

    def _choose(self, wanted: Sequence[str], devices: Sequence[Gpu]) -> dict[int, str]:
        if tuple(wanted) == (ALL_DEVICES,):
            # without those that cannot be used, unless that is true of all
            some = [str(index) for index, device in enumerate(devices) if not device.fault]
            wanted = some or ["0"]
        known = {str(index): index for index in range(len(devices))}
        known |= {device.uuid.lower(): i for i, device in enumerate(devices) if device.uuid}
        missing = [name for name in wanted if name.lower() not in known]
        if missing:
            raise ProviderError(
                f"{self.name} cannot run on device {', '.join(missing)}: there are {len(devices)},"
                " numbered from 0; set OP_DBUS_GPU_DEVICE (`op-dbus devices` lists them)"
                + (_ONE_INSTANCE if missing[0].lower().startswith(MIG) else "")
            )
        indexes = [known[name.lower()] for name in wanted]
        for index in indexes:
            if fault := devices[index].fault:
                raise ProviderError(f"{self.name} cannot run on device {index}: {fault}")
        return {index: devices[index].name for index in indexes}
