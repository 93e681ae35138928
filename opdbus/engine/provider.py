"""Row type of the provider table, with the checks that a provider can run here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opdbus.engine.gpus import Gpu
from opdbus.engine.host import HERE, Host
from opdbus.engine.libraries import SharedLibrary
from opdbus.engine.session import Placement
from opdbus.errors import ProviderError
from opdbus.platform import pip
from opdbus.settings.parsing import ALL_DEVICES

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

    def require(self, wanted: Sequence[str], host: Host = HERE) -> dict[int, str]:
        """Check that a session could be opened here, and return the hardware by device number.

        `wanted` is as in OP_DBUS_GPU_DEVICE. Raises ProviderError.
        """
        try:
            self.installed(host)
            devices = self.find_devices(host)
            self._require_libraries(host)
        except ProviderError as error:
            raise ProviderError(f"{self.name} cannot run: {error}") from None
        except Exception as error:  # noqa: BLE001 -- a half-installed runtime raises anything
            reason = " ".join(str(error).split())
            raise ProviderError(
                f"{self.name} cannot run: {reason}; install it again: {pip.install(self.install)}"
            ) from None
        return {0: devices[0].name} if self.is_cpu else self._chosen(wanted, devices)

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
        if own != "onnxruntime":
            return f"{own} {host.version(own)}"
        wheels = [wheel for wheel in _WHEELS if host.version(wheel)]
        self._require_built_in(host, wheels)
        found = " and ".join(f"{wheel} {host.version(wheel)}" for wheel in wheels) or own
        return f"{found}, which overwrite each other" if len(wheels) > 1 else found

    def _require_built_in(self, host: Host, wheels: Sequence[str]) -> None:
        if self.runtime_name not in host.runtime_providers():
            found = " ".join(wheels) or self.runtime
            raise ProviderError(
                f"the installed {found} was built without"
                f" {self.runtime_name.removesuffix('ExecutionProvider')};"
                f" {pip.install(self.install, instead_of=found)}"
            )

    def _require_libraries(self, host: Host) -> None:
        if self.libraries:
            host.preload()
        for library in self.libraries:
            try:
                host.library(library.file)
            except OSError:
                raise ProviderError(
                    f"{library.file} was not found; {self.library_advice}"
                ) from None

    def _chosen(self, wanted: Sequence[str], devices: Sequence[Gpu]) -> dict[int, str]:
        if tuple(wanted) == (ALL_DEVICES,):
            return {index: device.name for index, device in enumerate(devices)}
        known = {str(index): index for index in range(len(devices))}
        known |= {device.uuid.lower(): i for i, device in enumerate(devices) if device.uuid}
        missing = [name for name in wanted if name.lower() not in known]
        if missing:
            raise ProviderError(
                f"{self.name} cannot run on device {', '.join(missing)}: there are {len(devices)},"
                " numbered from 0; set OP_DBUS_GPU_DEVICE (`op-dbus devices` lists them)"
            )
        indexes = [known[name.lower()] for name in wanted]
        return {index: devices[index].name for index in indexes}
