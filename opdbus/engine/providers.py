"""Table of execution providers, and the rows that a setting's names select."""

from collections.abc import Sequence
from typing import Final

from opdbus.engine import gpus, libraries, options
from opdbus.engine.host import HERE, Host
from opdbus.engine.provider import Provider
from opdbus.platform import pip

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
        gpus.processors,
        dialects={"int8": "rounded-int8", "bf16": "rounded", "fp32": "rounded"},
        options=options.openvino_cpu,
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
        gpus.processors,
        dialects={"int8": "int8-dynamic", "int8-blocks": "int8-blocks", "fp32": "float"},
        options=options.none,
        most_tokens=2048,
        single=frozenset({"int8"}),
        has_solo=True,
        is_cpu=True,
    ),
    Provider(
        "openvino",
        "GPU or NPU",
        _OPENVINO,
        gpus.intel,
        dialects={"fp16": "float", "fp32": "float"},
        options=options.openvino_accelerator,
        runtime="openvino",
    ),
    Provider(
        "cuda",
        "CUDAExecutionProvider",
        _GPU,
        gpus.nvidia,
        dialects={"fp16": "fused-half", "fp32": "fused"},
        options=options.cuda,
        libraries=libraries.CUDA,
        library_advice=f"{pip.install(_GPU)} brings the CUDA 13 and cuDNN 9 libraries",
    ),
    Provider(
        "tensorrt",
        "TensorrtExecutionProvider",
        _GPU,
        gpus.nvidia,
        dialects=_STANDARD,
        options=options.tensorrt,
        libraries=libraries.TENSORRT,
        library_advice=f"{pip.install(_TENSORRT)} brings CUDA 13, cuDNN 9 and TensorRT 10",
        also=frozenset({"CUDAExecutionProvider"}),
        most_tokens=1 << 14,
        most_rows=options.TENSORRT_ROWS,
        compiles=True,
    ),
    Provider(
        "directml",
        "DmlExecutionProvider",
        _GPU,
        gpus.adapters("DmlExecutionProvider"),
        dialects=_STANDARD,
        options=options.device_id,
        system="win32",
        most_tokens=1 << 14,
    ),
    Provider(
        "coreml",
        "CoreMLExecutionProvider",
        _CPU,
        gpus.apple,
        dialects=_STANDARD,
        options=options.coreml,
        system="darwin",
        most_tokens=1 << 13,
    ),
    Provider(
        "webgpu",
        "WebGpuExecutionProvider",
        f"{_CPU} onnxruntime-ep-webgpu",
        gpus.adapters("WebGpuExecutionProvider"),
        dialects=_STANDARD,
        options=options.none,
        plugin="onnxruntime_ep_webgpu",
        most_tokens=1 << 14,
    ),
    Provider(
        "migraphx",
        "MIGraphXExecutionProvider",
        "onnxruntime-migraphx",
        gpus.amd,
        dialects=_STANDARD,
        options=options.device_id,
        most_tokens=1 << 14,
        compiles=True,
    ),
)
PROVIDERS: Final = {provider.name: provider for provider in _ROWS}


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
        rows += [PROVIDERS[n] for n in (cpu_engines(host) if name == "cpu" else (name,))]
    return list(dict.fromkeys(rows))
