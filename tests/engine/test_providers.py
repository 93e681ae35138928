"""The table of providers: what each needs, and every reason why one cannot be used."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from harness import hardware
from harness.machines import PACKAGES, RADEON, UUID, Library, host

from opdbus import config
from opdbus.engine.discovery import openvino_accelerators
from opdbus.engine.host import (
    HERE,
    Adapter,
    Host,
    find_vendors,
    hardware_gpus,
    read_adapter,
)
from opdbus.engine.proof import LEAST_COSINE
from opdbus.engine.provider import Placement, explain
from opdbus.engine.providers import PROVIDERS, candidates, cpu_engines, unused_device
from opdbus.errors import ProviderError
from opdbus.models.dialects import DIALECTS
from opdbus.platform import pip
from opdbus.settings import parsing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WANTED = ("0",)
HARDWARE = {
    "cpu:openvino": "Example CPU",
    "cpu:onnxruntime": "Example CPU",
    "openvino": "Arc A (GPU.0)",
    "cuda": "Example GPU 40",
    "tensorrt": "Example GPU 40",
    "directml": "AMD Radeon Example",
    "coreml": "Apple GPU and Neural Engine",
    "webgpu": "AMD Radeon Example",
    "migraphx": "Example Instinct 0",
}


@pytest.mark.parametrize("name", PROVIDERS)
def test_everything_is_there(name: str) -> None:
    """Name the hardware of each row's first device where nothing is missing."""
    assert PROVIDERS[name].require(WANTED, host(name)) == {0: HARDWARE[name]}


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("cpu:openvino", "openvino 1.2.3"),
        ("openvino", "openvino 1.2.3"),
        ("cpu:onnxruntime", "onnxruntime-gpu 1.2.3"),
        ("tensorrt", "onnxruntime-gpu 1.2.3"),
        ("webgpu", "onnxruntime-ep-webgpu 1.2.3"),
    ],
)
def test_versions(name: str, version: str) -> None:
    """Name the package and its version that a provider comes from."""
    assert PROVIDERS[name].installed(host(name)) == version


def test_two_wheels_in_one_folder() -> None:
    """Name both wheels of ONNX Runtime where the later one overwrote the other's files."""
    both = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}
    machine = replace(host("cpu:onnxruntime"), version=lambda name: both.get(name, ""))
    found = PROVIDERS["cpu:onnxruntime"].installed(machine)
    wheels = "onnxruntime-gpu 1.31.1 and onnxruntime 1.31.1"
    assert found == f"{wheels}, which overwrite each other"
    without_cuda = replace(machine, runtime_providers=lambda: ["CPUExecutionProvider"])
    advice = r"uninstall onnxruntime-gpu onnxruntime`, then `.* -m pip install 'op-dbus\[gpu\]'`"
    with pytest.raises(ProviderError, match=advice):
        PROVIDERS["cuda"].require(WANTED, without_cuda)


def without(name: str, *missing: str) -> Host:
    """Make a machine that lacks packages or libraries."""
    return host(name, without=missing)


DRIVER = "libcuda.so.1"
SOFTWARE = (
    Adapter("llvmpipe (LLVM 19.1.7, 256 bits)", is_gpu=True),
    Adapter("Microsoft Basic Render Driver", is_gpu=True),
    Adapter("Google SwiftShader", is_gpu=True),
    Adapter("Mesa lavapipe", is_gpu=True),
    Adapter("D3D12 (WARP)", is_gpu=True),
)
PROCESSOR = Adapter("AMD EPYC", is_gpu=False)
WHY_NOT = [
    ("cpu:openvino", without("", "openvino"), "openvino is not", "'op-dbus[openvino]'"),
    ("cpu:onnxruntime", without("", "onnxruntime"), "package onnxruntime is not", "'op-dbus[cpu]'"),
    ("openvino", without("openvino", "openvino"), "openvino is not", "'op-dbus[openvino]'"),
    ("openvino", host("openvino", openvino={"CPU": "x"}), "no Intel GPU or NPU", "cpu:openvino"),
    ("directml", host("directml", system="linux"), "only Windows has it", "=auto"),
    ("directml", without("directml", "onnxruntime"), "onnxruntime is not", "op-dbus[gpu]"),
    ("coreml", host("coreml", system="linux"), "only macOS has it", "=auto"),
    ("coreml", without("coreml", "onnxruntime"), "onnxruntime is not", "op-dbus[cpu]"),
    ("webgpu", without("webgpu", "onnxruntime"), "package onnxruntime is not", "pip install"),
    (
        "webgpu",
        without("webgpu", "onnxruntime_ep_webgpu"),
        "the package onnxruntime-ep-webgpu is not installed",
        "-m pip install 'op-dbus[cpu]' onnxruntime-ep-webgpu`",
    ),
    ("migraphx", without("migraphx", "onnxruntime"), "is not", "onnxruntime-migraphx"),
    ("migraphx", without("migraphx", "libamdhip64.so"), "no ROCm here (libamdhip64.so", "ROCm 7"),
    ("migraphx", host("migraphx", library=Library(0)), "ROCm finds no GPU", "rocminfo"),
    ("migraphx", host("migraphx", library=Library(fault=100)), "ROCm finds no GPU", "/dev/kfd"),
    ("migraphx", host("migraphx", library=Library(0)), "ROCm finds no GPU", "gpu.conf.example"),
    ("openvino", host("openvino", openvino={}), "no Intel GPU or NPU", "gpu.conf.example"),
    *[
        (name, host(name, providers=["CPUExecutionProvider"]), f"was built without {built}", advice)
        for name, built, advice in (
            ("cuda", "CUDA", "op-dbus[gpu]"),
            ("tensorrt", "Tensorrt", "op-dbus[gpu]"),
            ("directml", "Dml", "op-dbus[gpu]"),
            ("coreml", "CoreML", "op-dbus[cpu]"),
            ("migraphx", "MIGraphX", "onnxruntime-migraphx"),
        )
    ],
    *[
        (name, broken, missing, advice)
        for name in ("cuda", "tensorrt")
        for broken, missing, advice in (
            (without(name, "onnxruntime"), "package onnxruntime is not installed", "op-dbus[gpu]"),
            (without(name, DRIVER), "no NVIDIA driver here (libcuda.so.1", "install the driver"),
            (host(name, library=Library(0)), "the NVIDIA driver finds no GPU", "nvidia-smi"),
            (host(name, library=Library(fault=100)), "driver finds no GPU", "/dev/nvidia*"),
            (host(name, library=Library(fault=100)), "driver finds no GPU", "gpu.conf.example"),
            (without(name, "libcudart.so.13"), "libcudart.so.13 was not found", "op-dbus[gpu]"),
            (without(name, "libcublasLt.so.13"), "libcublasLt.so.13 was not", "op-dbus[gpu]"),
            (without(name, "libcublas.so.13"), "libcublas.so.13 was not", "op-dbus[gpu]"),
            (without(name, "libcurand.so.10"), "libcurand.so.10 was not", "op-dbus[gpu]"),
            (without(name, "libcudnn.so.9"), "libcudnn.so.9 was not found", "op-dbus[gpu]"),
        )
    ],
    ("tensorrt", without("", "libnvinfer.so.10"), "libnvinfer.so.10 was not", "tensorrt>=10,<11"),
    *[
        (
            name,
            host(name, adapters=[PROCESSOR, adapter]),
            f"only {adapter.name}, which comp",
            "=cpu",
        )
        for name in ("directml", "webgpu")
        for adapter in SOFTWARE
    ],
    *[
        (name, host(name, adapters=adapters), "of hardware GPUs there is none", "the GPU's driver")
        for name in ("directml", "webgpu")
        for adapters in ((), (PROCESSOR,))
    ],
]


@pytest.mark.parametrize(("name", "broken", "missing", "advice"), WHY_NOT)
def test_why_not(name: str, broken: Host, missing: str, advice: str) -> None:
    """Say in one sentence what a provider lacks, and what to do."""
    with pytest.raises(ProviderError) as caught:
        PROVIDERS[name].require(WANTED, broken)
    sentence = str(caught.value)
    assert sentence.startswith(f"{name} cannot run: ")
    finding, _, what_to_do = sentence.partition("; ")
    assert missing in finding
    assert advice in what_to_do
    assert "\n" not in sentence


def test_every_row_has_a_reason() -> None:
    """WHY_NOT has a case for every provider."""
    assert {name for name, *_ in WHY_NOT} == set(PROVIDERS)


def test_hardware_beside_software() -> None:
    """Pass over an adapter that draws in software where there is a real one."""
    both = host("webgpu", adapters=[SOFTWARE[0], PROCESSOR, RADEON])
    assert PROVIDERS["webgpu"].require(WANTED, both) == {0: RADEON.name}


def test_the_session_counts_as_the_settings_do() -> None:
    """Open a plugin's session on the device of that number among the real ones."""

    def offered(kind: str, name: str, vendor: str = "Example") -> Any:
        metadata = {"Description": name} if name else {}
        device = SimpleNamespace(type=SimpleNamespace(name=kind), metadata=metadata, vendor=vendor)
        return SimpleNamespace(device=device)

    radeon, arc = offered("GPU", "Radeon"), offered("GPU", "", "Intel")
    devices = [offered("GPU", "llvmpipe"), offered("CPU", "EPYC"), radeon, arc]
    assert hardware_gpus(devices) == [radeon, arc]
    machine = host("webgpu", adapters=[read_adapter(found) for found in devices])
    assert PROVIDERS["webgpu"].require(("all",), machine) == {0: "Radeon", 1: "Intel"}


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("error", [ImportError("libx.so: no\n such file"), RuntimeError("bad ABI")])
def test_a_broken_installation(name: str, error: Exception) -> None:
    """Say what to install again where a runtime fails in its own way."""

    def broken(*_: object) -> Any:
        raise error

    machine = replace(
        host(name),
        runtime_providers=broken,
        openvino_devices=broken,
        adapters=broken,
        version=broken,
    )
    with pytest.raises(ProviderError) as caught:
        PROVIDERS[name].require(WANTED, machine)
    finding, _, advice = str(caught.value).partition("; ")
    assert finding == f"{name} cannot run: {' '.join(str(error).split())}"
    assert advice == f"install it again: {pip.install(PROVIDERS[name].install)}"


@pytest.mark.parametrize(
    ("cuda", "version", "named"),
    [
        (12020, "535.183.01", "driver 535.183.01 is too old for CUDA 13: it has CUDA 12.2"),
        (12090, "575.57", "driver 575.57 is too old for CUDA 13: it has CUDA 12.9"),
        (11040, "", "the NVIDIA driver is too old for CUDA 13: it has CUDA 11.4"),
    ],
)
@pytest.mark.parametrize("name", ["cuda", "tensorrt"])
def test_a_driver_that_is_too_old(name: str, cuda: int, version: str, named: str) -> None:
    """Name the driver's version and the one that CUDA 13 needs."""
    machine = host(name, library=Library(cuda=cuda), nvidia_driver=lambda: version)
    with pytest.raises(ProviderError) as caught:
        PROVIDERS[name].require(WANTED, machine)
    assert named in str(caught.value)
    assert "; CUDA 13 needs the NVIDIA driver 580 or newer" in str(caught.value)
    for newer in (13000, 13020, 14010):
        assert PROVIDERS[name].require(WANTED, host(name, library=Library(cuda=newer)))


def test_a_gpu_that_is_too_old() -> None:
    """Refuse a GPU that CUDA 13 has no code for, by name, and take the others for `all`."""
    machine = host("cuda", library=Library(capabilities=[(7, 0), (8, 6)]))
    cuda = PROVIDERS["cuda"]
    reason = r"device 0: Example GPU 40 has compute capability 7.0, and CUDA 13 needs 7.5 .*; set"
    with pytest.raises(ProviderError, match=reason):
        cuda.require(("0",), machine)
    assert cuda.require(("1",), machine) == cuda.require(("all",), machine) == {1: "Example GPU 41"}
    old = host("cuda", library=Library(capabilities=[(6, 1), (5, 2)]))
    with pytest.raises(ProviderError, match=r"compute capability 6\.1"):
        cuda.require(("all",), old)


def test_a_mig_instance() -> None:
    """Find the MIG instance that the process sees by its UUID, and say why there is no other."""
    machine = host("cuda", library=Library(1, title="NVIDIA H100 MIG 1g.10gb"))
    seen = f"MIG-28{UUID.removeprefix('GPU-29')}"
    (wanted,) = parsing.devices(seen)
    assert PROVIDERS["cuda"].require((wanted,), machine) == {0: "NVIDIA H100 MIG 1g.10gb 40"}
    with pytest.raises(ProviderError, match="one MIG instance, the one that CUDA_VISIBLE_DEVICES"):
        PROVIDERS["cuda"].require(parsing.devices(seen.replace("28", "27")), machine)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=x ; expr=cudaMalloc(&p, size);",
        "[ONNXRuntimeError] : 1 : FAIL : bfc_arena.cc:376 Failed to allocate memory for 1024 bytes",
        "bfc_arena.cc:398 Available memory of 10 is smaller than requested bytes of 20",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cublasCreate(&handle);",
        "CUDNN failure 2: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ; GPU=0",
        "HIP failure 2: hipErrorOutOfMemory ; GPU=0",
        "TensorRT EP failed: OutOfMemory (Requested size was 40 bytes.)",
        "Exception from src/inference\n[GPU] CL_OUT_OF_MEMORY",
        "[GPU] clEnqueueMapBuffer: CL_MEM_OBJECT_ALLOCATION_FAILURE",
        "std::bad_alloc",
        "8007000E Not enough memory resources are available to complete this operation.",
    ],
)
def test_a_lack_of_memory_is_advised_on(message: str) -> None:
    """Say what to lower where a model does not fit into a device, and name no host."""
    found, _, advice = explain(RuntimeError(message)).partition("; ")
    assert found
    assert "hostname" not in found
    for name in ("OP_DBUS_GPU_MEM_LIMIT", "OP_DBUS_BATCH_TOKENS", "OP_DBUS_VECTOR_LEVEL"):
        assert name in advice


@pytest.mark.parametrize(
    ("message", "explained"),
    [
        (
            "CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version ; GPU=0",
            "for CUDA runtime version; CUDA 13 needs the NVIDIA driver 580 or newer",
        ),
        ("CUDA failure 700: an illegal memory access ; GPU=0", "an illegal memory access"),
        ("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Protobuf parsing failed.", "parsing failed."),
    ],
)
def test_failures_are_explained(message: str, explained: str) -> None:
    """Advise on a driver that is too old, and add nothing to what is not known."""
    found = explain(RuntimeError(message))
    assert explained in found
    assert ("580" in found) == ("580" in explained)
    assert "OP_DBUS" not in found


@pytest.mark.parametrize(
    ("provider", "device", "is_unused"),
    [
        ("cpu", "1", True),
        ("cpu:openvino", "0", True),
        ("cpu", "", False),
        ("cuda,cpu", "1", False),
        ("auto", "1", False),
    ],
)
def test_a_device_that_nothing_uses(provider: str, device: str, *, is_unused: bool) -> None:
    """Say that OP_DBUS_GPU_DEVICE has no effect where only processors are asked for."""
    given = {"execution_provider": provider} | ({"gpu_device": device} if device else {})
    sentence = unused_device(config.load({}, given))
    assert (f"OP_DBUS_GPU_DEVICE={device} has no effect on {provider}" in sentence) == is_unused


def test_vendors_of_accelerators(tmp_path: Path) -> None:
    """Find the vendors of displays and accelerators on the PCI bus, and by files elsewhere."""
    if sys.platform != "linux":
        pytest.skip("other systems are not looked at")
    assert find_vendors(tmp_path) == frozenset()
    link = "bus/pci/devices"
    sys_folder = tmp_path / "sys"
    hardware.device(sys_folder, "0", link, **{"class": "0x020000", "vendor": "0x8086"})
    hardware.device(sys_folder, "1", link, **{"class": "0x030000", "vendor": "0x1a03"})
    assert find_vendors(tmp_path) == frozenset()
    hardware.device(sys_folder, "2", link, **{"class": "0x030200", "vendor": "0x10de"})
    hardware.device(sys_folder, "3", link, **{"class": "0x120000", "vendor": "0x1002"})
    assert find_vendors(tmp_path) == {"nvidia", "amd"}
    (tmp_path / "dev/accel").mkdir(parents=True)
    (tmp_path / "dev/accel/accel0").touch()
    assert find_vendors(tmp_path) == {"nvidia", "amd", "intel"}


def test_cuda_needs_no_tensorrt() -> None:
    """Ask CUDA for no library of TensorRT's."""
    assert PROVIDERS["cuda"].require(WANTED, without("cuda", "libnvinfer.so.10"))


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (("1",), {1: "Example GPU 41"}),
        (("1", "0"), {1: "Example GPU 41", 0: "Example GPU 40"}),
        (("all",), {0: "Example GPU 40", 1: "Example GPU 41"}),
        ((UUID,), {1: "Example GPU 41"}),
        ((UUID.upper(),), {1: "Example GPU 41"}),
        ((UUID.replace("GPU-29", "gpu-28"), UUID), {0: "Example GPU 40", 1: "Example GPU 41"}),
    ],
)
def test_devices_that_are_wanted(wanted: Sequence[str], chosen: dict[int, str]) -> None:
    """Find devices by number, by UUID in any case, or all of them, in the order asked."""
    found = PROVIDERS["cuda"].require(wanted, host("cuda"))
    assert list(found.items()) == list(chosen.items())


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [(("2",), "device 2"), (("0", "7", "9"), "device 7, 9"), (("GPU-0",), "device GPU-0")],
)
def test_a_device_that_is_not_there(wanted: Sequence[str], missing: str) -> None:
    """Say which devices are missing, and how many there are."""
    reason = rf"cuda cannot run on {missing}: there are 2, .* OP_DBUS_GPU_DEVICE \(`op-dbus devic"
    with pytest.raises(ProviderError, match=reason):
        PROVIDERS["cuda"].require(wanted, host("cuda"))


def test_a_device_without_a_uuid() -> None:
    """Find no device by an empty name where the driver gives no UUIDs."""
    with pytest.raises(ProviderError, match="cannot run on device"):
        PROVIDERS["migraphx"].require(("",), host("migraphx"))


def test_the_processor_is_one_device() -> None:
    """Run on the processor whatever accelerator the settings name: a chain may end there."""
    for name in ("cpu:openvino", "cpu:onnxruntime"):
        assert PROVIDERS[name].require((UUID,), host(name)) == {0: "Example CPU"}


def test_libraries_are_preloaded_before_they_are_sought() -> None:
    """Bring the libraries of packages within reach, then look for them."""
    events: list[str] = []

    def library(name: str) -> Library:
        events.append(name)
        return Library()

    watched = replace(host("cuda"), preload=lambda: events.append("preload"), library=library)
    PROVIDERS["cuda"].require(WANTED, watched)
    assert events.index(DRIVER) < events.index("preload") < events.index("libcudart.so.13")


def test_what_cannot_be_had_is_not_asked_for_more() -> None:
    """Load no driver where the package is missing already."""

    def library(name: str) -> Library:
        raise AssertionError(name)

    bare = replace(host("cuda", providers=[]), library=library)
    with pytest.raises(ProviderError, match="was built without CUDA"):
        PROVIDERS["cuda"].require(WANTED, bare)


def test_here() -> None:
    """Name this machine's processor, and the driver as what is missing where there is none."""
    assert PROVIDERS["cpu:onnxruntime"].require(WANTED)[0].strip()
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        pass
    else:
        pytest.skip("this machine has an NVIDIA driver")
    missing = r"no NVIDIA driver here .*; install the driver|built without CUDA; .*op-dbus\[gpu\]"
    with pytest.raises(ProviderError, match=missing):
        PROVIDERS["cuda"].require(WANTED)


def test_accelerators_are_gpus_then_npus() -> None:
    """Number OpenVINO's GPUs first, then its NPUs, and never its CPU."""
    assert list(openvino_accelerators(host("openvino"))) == ["GPU.0", "GPU.1", "NPU"]


@pytest.mark.parametrize(
    ("features", "first"),
    [
        ("amx_bf16 amx_int8 avx512_vnni", "openvino"),
        ("avx512_bf16 avx512_vnni", "onnxruntime"),
        ("avx2", "onnxruntime"),
        ("asimd i8mm", "onnxruntime"),
        ("", "onnxruntime"),
    ],
)
def test_cpu_engines(features: str, first: str) -> None:
    """Take OpenVINO first where there is AMX, and ONNX Runtime first everywhere else."""
    engines = cpu_engines(host("", features=lambda: frozenset(features.split())))
    assert engines[0] == f"cpu:{first}"
    assert set(engines) == {"cpu:openvino", "cpu:onnxruntime"}


def test_cpu_is_what_is_installed() -> None:
    """Take `cpu` for the engines that are installed; without any, name the extra `cpu` alone."""
    for missing, engine in (("onnxruntime", "cpu:openvino"), ("openvino", "cpu:onnxruntime")):
        machine = host("", without=[missing], features=frozenset[str])
        assert cpu_engines(machine) == (engine,)
    for features in (frozenset[str](), frozenset({"amx_bf16"})):
        bare = host("", without=PACKAGES, features=lambda features=features: features)
        (row,) = candidates(("cpu",), bare)
        with pytest.raises(ProviderError, match=r"; `.* -m pip install 'op-dbus\[cpu\]'`$"):
            row.require(WANTED, bare)


def test_candidates() -> None:
    """Expand `cpu` to its engines and name each row once, in the order of the request."""
    engines = [PROVIDERS[name] for name in cpu_engines()]
    assert candidates(("cpu",)) == engines
    assert candidates(("cuda", "cpu")) == [PROVIDERS["cuda"], *engines]
    asked = ("cpu", "cuda", "cpu:onnxruntime", "cpu")
    assert candidates(asked) == [*engines, PROVIDERS["cuda"]]


def test_every_setting_has_a_row() -> None:
    """Know every provider that the settings accept, and list none twice."""
    assert set(parsing.PROVIDERS) == {"cpu", *PROVIDERS}
    assert {name for name, row in PROVIDERS.items() if name != row.name} == set()
    assert set(parsing.AUTO_CHAIN) <= set(parsing.PROVIDERS)
    assert set(parsing.PROVIDER_ALIASES.values()) <= set(PROVIDERS)


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_precision_has_its_graph(name: str) -> None:
    """Every precision, fp32 among them, has an existing dialect and a known limit."""
    row = PROVIDERS[name]
    assert "fp32" in row.dialects
    assert row.dialects.keys() <= set(config.PRECISIONS)
    assert set(row.dialects.values()) <= DIALECTS.keys()
    assert row.single <= row.dialects.keys() <= LEAST_COSINE.keys()


@pytest.mark.parametrize("name", ["tensorrt", "directml", "coreml", "webgpu", "migraphx"])
def test_drivers_compilers_get_standard_graphs(name: str) -> None:
    """Give providers that know no operators of ONNX Runtime's a graph without them."""
    for dialect in PROVIDERS[name].dialects.values():
        assert not DIALECTS[dialect].is_contrib
        assert DIALECTS[dialect].opset <= 17


def test_libraries_tell_their_versions() -> None:
    """Read each library's version in its own way, beside the one wanted, or only find it."""
    machine = host("tensorrt", without=["libcublasLt.so.13"])
    found = {}
    for library in PROVIDERS["tensorrt"].libraries:
        try:
            found[library.name] = (library.version(machine), library.wanted)
        except OSError:
            found[library.name] = ("", library.wanted)
    assert found == {
        "CUDA": ("13.1", "13"),
        "cuBLASLt": ("", "13"),
        "cuBLAS": ("13", "13"),
        "cuRAND": ("10", "10"),
        "cuDNN": ("9.10.2", "9"),
        "TensorRT": ("10.13.3", "10"),
    }


def test_options_of_cuda() -> None:
    """Tell CUDA its device and its memory's limit, and no limit where none is set."""
    options = PROVIDERS["cuda"].options
    given = options(Placement(device=3, memory_limit=1 << 30))
    assert (given["device_id"], given["gpu_mem_limit"]) == (3, 1 << 30)
    assert given["use_tf32"] == 0
    assert "gpu_mem_limit" not in options(Placement())


def test_options_of_tensorrt(tmp_path: Path) -> None:
    """Tell TensorRT one profile for all shapes, the precision, and where to keep its engines."""
    options = PROVIDERS["tensorrt"].options
    given = options(Placement(device=1, precision="fp16", memory_limit=5, cache=tmp_path))
    assert given["trt_fp16_enable"]
    assert (given["device_id"], given["trt_max_workspace_size"]) == (1, 5)
    assert given["trt_engine_cache_path"] == given["trt_timing_cache_path"] == str(tmp_path)
    bare = options(Placement())
    assert not bare["trt_fp16_enable"]
    assert not any("cache" in name for name in bare)


def test_tensorrt_builds_one_engine() -> None:
    """Keep every batch of TensorRT's within the profile that its engine is built for."""
    row = PROVIDERS["tensorrt"]
    options = row.options(Placement(longest=256))
    assert options["trt_profile_min_shapes"] == "input_ids:1x1"
    # a graph has no positions past its model's longest row
    assert options["trt_profile_max_shapes"] == f"input_ids:{row.most_rows}x256"


def test_options_of_openvino() -> None:
    """Tell OpenVINO the precision in its own words, streams and threads."""
    options = PROVIDERS["cpu:openvino"].options
    given = options(Placement(precision="bf16", threads=6, lanes=3))
    assert given["device"] == "CPU"
    hints = ("INFERENCE_PRECISION_HINT", "NUM_STREAMS", "INFERENCE_NUM_THREADS")
    assert [given["config"][name] for name in hints] == ["bf16", "3", "6"]
    assert "DYNAMIC_QUANTIZATION_GROUP_SIZE" not in given["config"]
    assert "DYNAMIC_QUANTIZATION_GROUP_SIZE" in options(Placement(precision="int8"))["config"]


def test_the_host_here() -> None:
    """Ask this machine what it has without raising, and find what these tests run with."""
    assert HERE.has_package("onnxruntime")
    assert not HERE.has_package("no_such_package")
    assert HERE.version("numpy")
    assert HERE.version("no-such-package") == ""
    assert "CPUExecutionProvider" in HERE.runtime_providers()
    assert HERE.processor()
