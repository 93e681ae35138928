"""Session options for each provider's runtime."""

from typing import Any, Final

from opdbus.engine import cpus
from opdbus.engine.gpus import openvino_accelerators
from opdbus.engine.host import HERE
from opdbus.engine.session import Placement

# Columns of activations that share a scale in OpenVINO's int8: more exact than one scale a row.
_INT8_GROUP: Final = "128"
# TensorRT builds another engine for more rows; it reserves memory for this many of the longest.
TENSORRT_ROWS: Final = 512


def none(_placement: Placement) -> dict[str, Any]:
    """Return no options."""
    return {}


def device_id(placement: Placement) -> dict[str, Any]:
    """Return only the device number."""
    return {"device_id": placement.device}


def cuda(placement: Placement) -> dict[str, Any]:
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


def tensorrt(placement: Placement) -> dict[str, Any]:
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


def coreml(_placement: Placement) -> dict[str, Any]:
    """Return Core ML's program format, with all its compute units."""
    return {"ModelFormat": "MLProgram", "MLComputeUnits": "ALL"}


def openvino_cpu(placement: Placement) -> dict[str, Any]:
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


def openvino_accelerator(placement: Placement) -> dict[str, Any]:
    """Return OpenVINO's GPU or NPU with the placement's device number."""
    hint = {"fp32": "f32", "fp16": "f16"}[placement.precision]
    device = list(openvino_accelerators(HERE))[placement.device]
    return {"device": device, "config": {"INFERENCE_PRECISION_HINT": hint}}
