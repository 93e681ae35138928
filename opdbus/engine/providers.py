"""Table of execution providers with their session options, and the rows that names select."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from opdbus.engine import cpus, discovery
from opdbus.engine.discovery import Gpu, openvino_accelerators
from opdbus.engine.host import HERE, Host
from opdbus.engine.provider import Placement, Provider
from opdbus.platform import pip
from opdbus.settings.parsing import AUTO, REMOTE, remote_url

if TYPE_CHECKING:
    from opdbus.config import Config

# Columns of activations that share a scale in OpenVINO's int8: more exact than one scale a row.
_INT8_GROUP: Final = "128"
# TensorRT builds another engine for more rows; it reserves memory for this many of the longest.
TENSORRT_ROWS: Final = 512


def no_options(_placement: Placement) -> dict[str, Any]:
    """Return no options."""
    return {}


def device_options(placement: Placement) -> dict[str, Any]:
    """Return only the device number."""
    return {"device_id": placement.device}


def cuda_options(placement: Placement) -> dict[str, Any]:
    """Return CUDA's device and memory limit."""
    options: dict[str, Any] = {
        "device_id": placement.device,
        "arena_extend_strategy": "kSameAsRequested",
        # TF32 would multiply fp32 in 19 bits
        "use_tf32": 0,
    }
    if placement.memory_limit:
        options["gpu_mem_limit"] = placement.memory_limit
    return options


def tensorrt_options(placement: Placement) -> dict[str, Any]:
    """Return one optimization profile for all shapes: else TensorRT builds an engine for each."""
    options: dict[str, Any] = {
        "device_id": placement.device,
        "trt_fp16_enable": placement.precision == "fp16",
        "trt_profile_min_shapes": "input_ids:1x1",
        "trt_profile_opt_shapes": "input_ids:64x32",
        "trt_profile_max_shapes": f"input_ids:{TENSORRT_ROWS}x{placement.longest}",
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


def coreml_options(_placement: Placement) -> dict[str, Any]:
    """Return Core ML's program format, with all its compute units."""
    return {"ModelFormat": "MLProgram", "MLComputeUnits": "ALL"}


def openvino_cpu_options(placement: Placement) -> dict[str, Any]:
    """Return OpenVINO's CPU options, with one stream for each lane."""
    has_bf16 = HERE.features() & cpus.BF16
    hints = {"fp32": "f32", "bf16": "bf16", "int8": "bf16" if has_bf16 else "f32"}
    config = {
        "INFERENCE_PRECISION_HINT": hints[placement.precision],
        "NUM_STREAMS": str(placement.lanes),
        "INFERENCE_NUM_THREADS": str(placement.threads),
    }
    if placement.precision == "int8":
        config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = _INT8_GROUP
    return {"device": "CPU", "config": config}


def openvino_accelerator_options(placement: Placement) -> dict[str, Any]:
    """Return OpenVINO's GPU or NPU with the placement's device number."""
    hint = {"fp32": "f32", "fp16": "f16"}[placement.precision]
    device = list(openvino_accelerators(HERE))[placement.device]
    return {"device": device, "config": {"INFERENCE_PRECISION_HINT": hint}}


# Dialects with operators of the ONNX standard only, for providers that support no others.
_STANDARD: Final = {"fp16": "standard-half", "fp32": "standard"}
_NVIDIA: Final = frozenset({"nvidia"})
_AMX: Final = frozenset({"amx_tile", "amx_bf16"})
_CPU: Final = "op-dbus[cpu]"
_GPU: Final = "op-dbus[gpu]"
_OPENVINO: Final = "op-dbus[openvino]"
_TENSORRT: Final = f"{_GPU} tensorrt>=10,<11"


_ROWS: Final = (
    Provider(
        "cpu:openvino",
        "CPU",
        _OPENVINO,
        discovery.find_processor,
        dialects={"int8": "rounded-int8", "bf16": "rounded", "fp32": "rounded"},
        options=openvino_cpu_options,
        runtime="openvino",
        most_tokens=2048,
        whole_batches=True,
        has_solo=True,
        is_cpu=True,
    ),
    Provider(
        "cpu:onnxruntime",
        "CPUExecutionProvider",
        _CPU,
        discovery.find_processor,
        dialects={"int8": "int8-dynamic", "int8-blocks": "int8-blocks", "fp32": "float"},
        options=no_options,
        most_tokens=2048,
        single=frozenset({"int8"}),
        has_solo=True,
        is_cpu=True,
    ),
    Provider(
        "openvino",
        "GPU or NPU",
        _OPENVINO,
        discovery.find_intel,
        dialects={"fp16": "float", "fp32": "float"},
        vendors=frozenset({"intel"}),
        options=openvino_accelerator_options,
        runtime="openvino",
    ),
    Provider(
        "cuda",
        "CUDAExecutionProvider",
        _GPU,
        discovery.find_nvidia,
        dialects={"fp16": "fused-half", "fp32": "fused"},
        vendors=_NVIDIA,
        options=cuda_options,
        libraries=discovery.CUDA_LIBRARIES,
        library_advice=f"{pip.install(_GPU)} brings the CUDA 13 and cuDNN 9 libraries",
    ),
    Provider(
        "tensorrt",
        "TensorrtExecutionProvider",
        _GPU,
        discovery.find_nvidia,
        dialects=_STANDARD,
        vendors=_NVIDIA,
        options=tensorrt_options,
        libraries=discovery.TENSORRT_LIBRARIES,
        library_advice=f"{pip.install(_TENSORRT)} brings CUDA 13, cuDNN 9 and TensorRT 10",
        also=frozenset({"CUDAExecutionProvider"}),
        most_tokens=1 << 14,
        most_rows=TENSORRT_ROWS,
        compiles=True,
    ),
    Provider(
        "directml",
        "DmlExecutionProvider",
        _GPU,
        discovery.adapter_finder("DmlExecutionProvider"),
        dialects=_STANDARD,
        options=device_options,
        system="win32",
        most_tokens=1 << 14,
    ),
    Provider(
        "coreml",
        "CoreMLExecutionProvider",
        _CPU,
        discovery.find_apple,
        dialects=_STANDARD,
        options=coreml_options,
        system="darwin",
        most_tokens=1 << 13,
    ),
    Provider(
        "webgpu",
        "WebGpuExecutionProvider",
        f"{_CPU} onnxruntime-ep-webgpu",
        discovery.adapter_finder("WebGpuExecutionProvider"),
        dialects=_STANDARD,
        vendors=frozenset({"amd", "intel", "nvidia"}),
        options=no_options,
        plugin="onnxruntime_ep_webgpu",
        most_tokens=1 << 14,
    ),
    Provider(
        "migraphx",
        "MIGraphXExecutionProvider",
        "onnxruntime-migraphx",
        discovery.find_amd,
        dialects=_STANDARD,
        vendors=frozenset({"amd"}),
        options=device_options,
        most_tokens=1 << 14,
        compiles=True,
    ),
)
PROVIDERS: Final = {provider.name: provider for provider in _ROWS}


@cache
def provider_row(name: str) -> Provider:
    """Return the row of a provider; a remote one's is made from its addresses."""
    if not name.startswith(REMOTE):
        return PROVIDERS[name]
    server = Gpu(remote_url(name))
    return Provider(name, name, "op-dbus", lambda _host: [server], {}, no_options, runtime="http")


def suits_openvino(level: str, features: AbstractSet[str]) -> bool:
    """Return whether OpenVINO is the faster engine of `cpu` for a level on a processor.

    It is with AMX and, for the level high, with the instructions for products of int8 or bf16
    (benchmarks/results/2026-11-23-precisions.json). `.ci/choose-extras` has the same rule.
    """
    is_high = level == "high"
    return bool(features & _AMX or (is_high and features & {"avx512_vnni", "avx512_bf16"}))


def cpu_engines(host: Host = HERE, precision: str = AUTO) -> tuple[str, ...]:
    """Return the installed engines that `cpu` stands for, the most suitable first.

    This order holds until the gate has decided. With AMX, OpenVINO is first because of its bf16
    code. If a precision is set, only engines that compute in it count. If none is installed, return
    one of those that could be.
    """
    engines = tuple(
        name
        for name in ("cpu:onnxruntime", "cpu:openvino")
        if precision == AUTO or precision in PROVIDERS[name].dialects
    ) or ("cpu:onnxruntime",)
    installed = tuple(name for name in engines if host.has_package(PROVIDERS[name].runtime))
    if not installed:
        return engines[:1]
    return installed[::-1] if host.features() & _AMX else installed


def unused_device(config: Config) -> str:
    """Return a sentence if OP_DBUS_GPU_DEVICE is set and no requested provider uses a device."""
    rows = candidates(config.execution_provider.names)
    if config.is_default("gpu_device") or not all(row.is_cpu or row.is_remote for row in rows):
        return ""
    return (
        f"OP_DBUS_GPU_DEVICE={','.join(config.gpu_device)} has no effect on"
        f" {config.execution_provider}; set OP_DBUS_EXECUTION_PROVIDER to an accelerator's provider"
        " such as cuda, or to auto, or leave the device out"
    )


def candidates(names: Sequence[str], host: Host = HERE, precision: str = AUTO) -> list[Provider]:
    """Return the table's rows for requested names, in order, `cpu` expanded to its engines."""
    rows = []
    for name in names:
        engines = cpu_engines(host, precision) if name == "cpu" else (name,)
        rows += [provider_row(engine) for engine in engines]
    return list(dict.fromkeys(rows))
