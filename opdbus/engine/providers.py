"""Table of execution providers with their session options, and the rows that names select."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from opdbus.engine import cpus, discovery
from opdbus.engine.discovery import Gpu, openvino_accelerators
from opdbus.engine.host import HERE, Host
from opdbus.engine.provider import Placement, Provider
from opdbus.platform import pip
from opdbus.settings.parsing import REMOTE, remote_url

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
        options=openvino_accelerator_options,
        runtime="openvino",
    ),
    Provider(
        "cuda",
        "CUDAExecutionProvider",
        _GPU,
        discovery.find_nvidia,
        dialects={"fp16": "fused-half", "fp32": "fused"},
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


def cpu_engines(host: Host = HERE) -> tuple[str, ...]:
    """Return the installed engines that `cpu` stands for, the most suitable first.

    This order holds until the gate has decided. With AMX, OpenVINO is first because of its bf16
    code; it is listed there even if not installed, since the fallback's reason then is a hint to
    the user. If none is installed, return cpu:onnxruntime.
    """
    engines = ("cpu:onnxruntime", "cpu:openvino")
    installed = tuple(name for name in engines if host.has_package(PROVIDERS[name].runtime))
    if not installed:
        return engines[:1]
    return engines[::-1] if "amx_bf16" in host.features() else installed


def candidates(names: Sequence[str], host: Host = HERE) -> list[Provider]:
    """Return the table's rows for requested names, in order, `cpu` expanded to its engines."""
    rows = []
    for name in names:
        rows += [provider_row(n) for n in (cpu_engines(host) if name == "cpu" else (name,))]
    return list(dict.fromkeys(rows))
