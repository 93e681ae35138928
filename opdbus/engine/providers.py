"""The execution providers as a table: packages, devices, precisions, options, and why not here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from opdbus.config import ALL_DEVICES
from opdbus.engine.host import HERE, Gpu, Host, SharedLibrary, amd, nvidia
from opdbus.errors import ProviderError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

# The CPU features that make a number format faster than fp32, under Linux's names.
_BF16: Final = frozenset({"amx_bf16", "avx512_bf16"})
_INT8: Final = frozenset({"amx_int8", "avx512_vnni", "avx_vnni"})
_INT8_ARM: Final = frozenset({"asimddp", "i8mm"})
# Columns of activations that share a scale in OpenVINO's int8: a third of a percent closer to fp32
# than one scale for the whole row, for 5% of the speed (MiniLM-L6 on Zen 4).
_INT8_GROUP: Final = "128"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how one session runs: `lanes` runs at once share `threads`."""

    device: int = 0
    precision: str = "fp32"
    threads: int = 1
    lanes: int = 1
    # bytes of the accelerator's memory, None for all that is free
    memory_limit: int | None = None
    # where an engine that is slow to build may be kept
    cache: Path | None = None
    # most tokens a row: the graph has no positions past them
    longest: int = 512

    def on(self, device: int) -> Placement:
        """Give the same on another device."""
        return replace(self, device=device)


@dataclass(frozen=True, slots=True, eq=False)
class Provider:
    """One row: where a model can run, and how to find out whether it can run there now.

    `installed` and `devices` raise ProviderError that says what is missing and what to do; they
    are asked in this order, then the libraries are looked for.
    """

    name: str
    # what a node that ran there is recorded under
    runtime_name: str
    packages: tuple[str, ...]
    # gives the versions that are installed
    installed: Callable[[Host], str]
    # gives at least one, numbered as OP_DBUS_GPU_DEVICE does
    devices: Callable[[Host], Sequence[Gpu]]
    # graph dialect by precision
    dialects: Mapping[str, str]
    options: Callable[[Placement], dict[str, Any]]
    libraries: tuple[SharedLibrary, ...] = ()
    # what to do where one of them is missing
    library_advice: str = ""
    # the precisions that the hardware is good at, of those that there is a dialect for
    precisions: Callable[[Host], tuple[str, ...]] = lambda _host: ("fp16", "fp32")
    # where else nodes may run, without breaking the promise that the name makes
    also: frozenset[str] = frozenset()
    # most tokens and most rows a batch, whatever was measured
    most_tokens: int = 1 << 16
    most_rows: int = 1 << 16
    uses_openvino: bool = False
    # precisions in which a text's vector would depend on the texts that run with it, so none may
    single: frozenset[str] = frozenset()
    # whether a text that comes alone is given all threads, in a session of its own
    has_solo: bool = False
    # a graph is compiled when it is opened, for minutes unless what came of it was kept
    compiles: bool = False
    # installed beside onnxruntime, and found by device instead of by name
    plugin: str = ""
    is_cpu: bool = False

    def require(self, wanted: Sequence[str], host: Host = HERE) -> dict[int, str]:
        """Check that a session could be opened here, and name the hardware of each wanted device.

        `wanted` is as in OP_DBUS_GPU_DEVICE.
        """
        try:
            self.installed(host)
            devices = self.devices(host)
            chosen = {0: devices[0].name} if self.is_cpu else self._chosen(wanted, devices)
            self._require_libraries(host)
        except ProviderError:
            raise
        except Exception as error:  # noqa: BLE001 -- a half-installed runtime raises what it likes
            raise ProviderError(
                f"{self.name} cannot run: {' '.join(str(error).split())}; install its packages"
                f" again: {' '.join(self.packages)}"
            ) from None
        return chosen

    def _require_libraries(self, host: Host) -> None:
        if self.libraries:
            host.preload()
        for library in self.libraries:
            try:
                host.library(library.file)
            except OSError:
                raise ProviderError(
                    f"{self.name} cannot run: {library.file} was not found; {self.library_advice}"
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


# packages


def _onnxruntime(name: str, host: Host) -> str:
    if not host.has_package("onnxruntime"):
        raise ProviderError(
            f"{name} cannot run: the package onnxruntime is not installed;"
            " install one wheel of it: `pip install onnxruntime-gpu` (Linux x86-64) or"
            " `pip install onnxruntime`"
        )
    wheels = ("onnxruntime-gpu", "onnxruntime", "onnxruntime-directml", "onnxruntime-migraphx")
    return next((f"{w} {host.version(w)}" for w in wheels if host.version(w)), "onnxruntime")


def _cpu_onnxruntime(host: Host) -> str:
    return _onnxruntime("cpu:onnxruntime", host)


def _built_in(name: str, runtime_name: str, advice: str) -> Callable[[Host], str]:
    """Make the check for a provider that only some wheels of onnxruntime hold."""

    def installed(host: Host) -> str:
        version = _onnxruntime(name, host)
        if runtime_name not in host.runtime_providers():
            raise ProviderError(
                f"{name} cannot run: this onnxruntime was built without"
                f" {runtime_name.removesuffix('ExecutionProvider')}; {advice}"
            )
        return version

    return installed


def _on(system: str, word: str, name: str, check: Callable[[Host], str]) -> Callable[[Host], str]:
    """Make the check for a provider that one operating system has."""

    def installed(host: Host) -> str:
        if host.system != system:
            raise ProviderError(
                f"{name} cannot run: only {word} has it; use OP_DBUS_EXECUTION_PROVIDER=auto"
            )
        return check(host)

    return installed


def _openvino(name: str) -> Callable[[Host], str]:
    def installed(host: Host) -> str:
        if not host.has_package("openvino"):
            raise ProviderError(
                f"{name} cannot run: the package openvino is not installed; `pip install openvino`"
            )
        return f"openvino {host.version('openvino')}"

    return installed


def _webgpu(host: Host) -> str:
    _onnxruntime("webgpu", host)
    if not host.has_package("onnxruntime_ep_webgpu"):
        raise ProviderError(
            "webgpu cannot run: the package onnxruntime-ep-webgpu is not installed;"
            " `pip install onnxruntime-ep-webgpu`"
        )
    return f"onnxruntime-ep-webgpu {host.version('onnxruntime-ep-webgpu')}"


# devices


def _processors(host: Host) -> list[Gpu]:
    return [Gpu(host.processor())]


def _nvidia(name: str) -> Callable[[Host], list[Gpu]]:
    def devices(host: Host) -> list[Gpu]:
        try:
            found = nvidia(host)
        except OSError:
            raise ProviderError(
                f"{name} cannot run: there is no NVIDIA driver here (libcuda.so.1 was not found);"
                " install the driver for your GPU, or use OP_DBUS_EXECUTION_PROVIDER=cpu"
            ) from None
        if not found:
            raise ProviderError(
                f"{name} cannot run: the NVIDIA driver finds no GPU; check `nvidia-smi`, and that"
                " this service may open /dev/nvidia*"
            )
        return found

    return devices


def _amd(host: Host) -> list[Gpu]:
    try:
        found = amd(host)
    except OSError:
        raise ProviderError(
            "migraphx cannot run: there is no ROCm here (libamdhip64.so was not found); install"
            " ROCm 7 with MIGraphX, or use OP_DBUS_EXECUTION_PROVIDER=cpu"
        ) from None
    if not found:
        raise ProviderError(
            "migraphx cannot run: ROCm finds no GPU; check `rocminfo`, and that this service may"
            " open /dev/kfd and /dev/dri/render*"
        )
    return found


def _apple(host: Host) -> list[Gpu]:
    if host.system != "darwin":
        raise ProviderError("coreml cannot run: this is no Apple computer; use another provider")
    return [Gpu("Apple GPU and Neural Engine")]


def _adapters(name: str, runtime_name: str) -> Callable[[Host], list[Gpu]]:
    def devices(host: Host) -> list[Gpu]:
        found = host.adapters(runtime_name)
        real = [Gpu(adapter.name) for adapter in found if adapter.is_hardware]
        if real:
            return real
        software = [adapter.name for adapter in found if adapter.is_software]
        why = f"only {software[0]}, which computes on the CPU" if software else "none"
        raise ProviderError(
            f"{name} cannot run: of hardware GPUs there is {why}; install the GPU's driver, or use"
            " OP_DBUS_EXECUTION_PROVIDER=cpu"
        )

    return devices


def accelerators(host: Host) -> dict[str, str]:
    """Give OpenVINO's GPUs, then its NPUs, each with its hardware's name."""
    found = host.openvino_devices()
    kinds = ("GPU", "NPU")
    return {name: found[name] for kind in kinds for name in sorted(found) if name.startswith(kind)}


def _intel(host: Host) -> list[Gpu]:
    found = accelerators(host)
    if not found:
        raise ProviderError(
            "openvino cannot run: it finds no Intel GPU or NPU; install their drivers"
            " (intel-opencl-icd, or the NPU's), or use cpu:openvino"
        )
    return [Gpu(f"{hardware} ({name})") for name, hardware in found.items()]


# libraries


_CUDA_LIBRARIES: Final = (
    SharedLibrary("CUDA", "libcudart.so.13", "cudaRuntimeGetVersion", by_reference=True),
    SharedLibrary("cuBLASLt", "libcublasLt.so.13", "cublasLtGetVersion"),
    SharedLibrary("cuBLAS", "libcublas.so.13"),
    SharedLibrary("cuRAND", "libcurand.so.10"),
    # loaded by the first attention: without it only the first run would fail
    SharedLibrary("cuDNN", "libcudnn.so.9", "cudnnGetVersion"),
)
_TENSORRT: Final = SharedLibrary("TensorRT", "libnvinfer.so.10", "getInferLibVersion")
_CUDA_ADVICE: Final = "`pip install 'op-dbus[gpu]'` brings the CUDA 13 and cuDNN 9 libraries"


# precisions


def _openvino_precisions(host: Host) -> tuple[str, ...]:
    features = host.features()
    return (
        *(("int8",) if features & _INT8 else ()),
        *(("bf16",) if features & _BF16 else ()),
        "fp32",
    )


def _onnxruntime_precisions(host: Host) -> tuple[str, ...]:
    return ("int8", "fp32") if host.features() & (_INT8 | _INT8_ARM) else ("fp32",)


# options


def _cuda_options(placement: Placement) -> dict[str, Any]:
    options: dict[str, Any] = {
        "device_id": placement.device,
        "arena_extend_strategy": "kSameAsRequested",
        # else fp32 would be multiplied in 19 bits
        "use_tf32": 0,
    }
    if placement.memory_limit:
        options["gpu_mem_limit"] = placement.memory_limit
    return options


# Past these it would build another engine; memory is set aside for as many of the longest rows.
_PROFILE_ROWS: Final = 512


def _tensorrt_options(placement: Placement) -> dict[str, Any]:
    # without profiles it would build an engine anew for each shape, for minutes
    options: dict[str, Any] = {
        "device_id": placement.device,
        "trt_fp16_enable": placement.precision == "fp16",
        "trt_profile_min_shapes": "input_ids:1x1",
        "trt_profile_opt_shapes": "input_ids:64x32",
        "trt_profile_max_shapes": f"input_ids:{_PROFILE_ROWS}x{placement.longest}",
    }
    if placement.memory_limit:
        options["trt_max_workspace_size"] = placement.memory_limit
    if placement.cache:
        options |= {
            "trt_engine_cache_enable": True,
            "trt_engine_cache_path": str(placement.cache),
            "trt_timing_cache_enable": True,
            "trt_timing_cache_path": str(placement.cache),
        }
    return options


def _device_id(placement: Placement) -> dict[str, Any]:
    return {"device_id": placement.device}


def _coreml_options(_placement: Placement) -> dict[str, Any]:
    return {"ModelFormat": "MLProgram", "MLComputeUnits": "ALL"}


def _openvino_options(placement: Placement) -> dict[str, Any]:
    """Give OpenVINO's settings for its CPU: as many streams as there are lanes."""
    hints = {"fp32": "f32", "bf16": "bf16", "int8": "bf16" if _has_bf16() else "f32"}
    options = {
        "INFERENCE_PRECISION_HINT": hints[placement.precision],
        "NUM_STREAMS": str(placement.lanes),
        "INFERENCE_NUM_THREADS": str(placement.threads),
    }
    if placement.precision == "int8":
        options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = _INT8_GROUP
    return {"device": "CPU", "config": options}


def _has_bf16() -> bool:
    return bool(HERE.features() & _BF16)


def _openvino_accelerator(placement: Placement) -> dict[str, Any]:
    hint = {"fp32": "f32", "fp16": "f16"}[placement.precision]
    device = list(accelerators(HERE))[placement.device]
    return {"device": device, "config": {"INFERENCE_PRECISION_HINT": hint}}


_CUDA_WHEEL: Final = "`pip uninstall onnxruntime` and `pip install 'op-dbus[gpu]'`"
# Only operators of the ONNX standard, for providers that know no others.
_STANDARD: Final = {"fp16": "standard-half", "fp32": "standard"}

PROVIDERS: Final = {
    provider.name: provider
    for provider in (
        Provider(
            "cpu:openvino",
            "CPU",
            ("openvino",),
            installed=_openvino("cpu:openvino"),
            devices=_processors,
            dialects={"int8": "rounded-int8", "bf16": "rounded", "fp32": "rounded"},
            precisions=_openvino_precisions,
            options=_openvino_options,
            most_tokens=2048,
            uses_openvino=True,
            is_cpu=True,
        ),
        Provider(
            "cpu:onnxruntime",
            "CPUExecutionProvider",
            ("onnxruntime",),
            installed=_cpu_onnxruntime,
            devices=_processors,
            dialects={"int8": "int8-dynamic", "fp32": "float"},
            precisions=_onnxruntime_precisions,
            options=lambda _placement: {},
            single=frozenset({"int8"}),
            has_solo=True,
            most_tokens=2048,
            is_cpu=True,
        ),
        Provider(
            "openvino",
            "GPU or NPU",
            ("openvino",),
            installed=_openvino("openvino"),
            devices=_intel,
            dialects={"fp16": "float", "fp32": "float"},
            options=_openvino_accelerator,
            uses_openvino=True,
        ),
        Provider(
            "cuda",
            "CUDAExecutionProvider",
            ("onnxruntime-gpu[cuda,cudnn]",),
            installed=_built_in("cuda", "CUDAExecutionProvider", _CUDA_WHEEL),
            devices=_nvidia("cuda"),
            libraries=_CUDA_LIBRARIES,
            library_advice=_CUDA_ADVICE,
            dialects={"fp16": "fused-half", "fp32": "fused"},
            options=_cuda_options,
        ),
        Provider(
            "tensorrt",
            "TensorrtExecutionProvider",
            ("onnxruntime-gpu[cuda,cudnn]", "tensorrt>=10,<11"),
            installed=_built_in("tensorrt", "TensorrtExecutionProvider", _CUDA_WHEEL),
            devices=_nvidia("tensorrt"),
            libraries=(*_CUDA_LIBRARIES, _TENSORRT),
            library_advice=f"{_CUDA_ADVICE}, `pip install 'tensorrt>=10,<11'` brings TensorRT 10",
            dialects=_STANDARD,
            options=_tensorrt_options,
            also=frozenset({"CUDAExecutionProvider"}),
            most_tokens=1 << 14,
            most_rows=_PROFILE_ROWS,
            compiles=True,
        ),
        Provider(
            "directml",
            "DmlExecutionProvider",
            ("onnxruntime-directml",),
            installed=_on(
                "win32",
                "Windows",
                "directml",
                _built_in(
                    "directml", "DmlExecutionProvider", "`pip install onnxruntime-directml` alone"
                ),
            ),
            devices=_adapters("directml", "DmlExecutionProvider"),
            dialects=_STANDARD,
            options=_device_id,
            most_tokens=1 << 14,
        ),
        Provider(
            "coreml",
            "CoreMLExecutionProvider",
            ("onnxruntime",),
            installed=_on(
                "darwin",
                "macOS",
                "coreml",
                _built_in("coreml", "CoreMLExecutionProvider", "`pip install onnxruntime` anew"),
            ),
            devices=_apple,
            dialects=_STANDARD,
            options=_coreml_options,
            most_tokens=1 << 13,
        ),
        Provider(
            "webgpu",
            "WebGpuExecutionProvider",
            ("onnxruntime-ep-webgpu",),
            installed=_webgpu,
            devices=_adapters("webgpu", "WebGpuExecutionProvider"),
            dialects=_STANDARD,
            options=lambda _placement: {},
            plugin="onnxruntime_ep_webgpu",
            most_tokens=1 << 14,
        ),
        Provider(
            "migraphx",
            "MIGraphXExecutionProvider",
            ("onnxruntime-migraphx",),
            installed=_built_in(
                "migraphx",
                "MIGraphXExecutionProvider",
                "`pip uninstall onnxruntime-gpu` and `pip install onnxruntime-migraphx`",
            ),
            devices=_amd,
            dialects=_STANDARD,
            options=_device_id,
            most_tokens=1 << 14,
            compiles=True,
        ),
    )
}


def cpu_features() -> frozenset[str]:
    """Give the features of processors that decide on a number format."""
    return _BF16 | _INT8 | _INT8_ARM


def cpu_engines(host: Host = HERE) -> tuple[str, ...]:
    """Give the engines that `cpu` means, the one that suits the processor first.

    OpenVINO has code for bf16 on AMX, the fastest there is. Without AMX its int8 is as fast as ONNX
    Runtime's for one shape, and slower where lengths change (MiniLM-L6 on Zen 4), which they do.
    """
    engines = ("cpu:onnxruntime", "cpu:openvino")
    return engines[::-1] if "amx_bf16" in host.features() else engines


def candidates(names: Sequence[str], host: Host = HERE) -> list[Provider]:
    """Give the table's rows for requested names, in order, `cpu` expanded to its engines."""
    rows = []
    for name in names:
        rows += [PROVIDERS[n] for n in (cpu_engines(host) if name == "cpu" else (name,))]
    return list(dict.fromkeys(rows))
