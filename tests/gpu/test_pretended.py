"""The graphs for CUDA before ONNX Runtime's own CUDA provider, on a CUDA that only pretends."""

import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
from harness.tiny import shape_of, weights, write_tiny_model
from safetensors.numpy import save_file

from opdbus.engine.providers import PROVIDERS
from opdbus.models import build
from opdbus.models.dialects import DIALECTS
from opdbus.models.shape import FAMILIES

HERE = Path(__file__).parent
CUDA = PROVIDERS["cuda"]
FILES = ["libcuda.so.1", *(library.file for library in CUDA.libraries)]
# where `make onnxruntime-gpu` puts it: it cannot be installed beside onnxruntime
BESIDE = str(Path(sys.prefix) / "onnxruntime-gpu")

pytestmark = pytest.mark.gpu_package


def has_cuda(*paths: str) -> bool:
    """Whether the onnxruntime that is imported from these folders was built with CUDA."""
    found = PathFinder.find_spec("onnxruntime", paths or None)
    inside = Path("capi", "libonnxruntime_providers_cuda.so")
    return bool(found and (Path(found.origin or "").parent / inside).is_file())


@pytest.fixture(scope="module")
def pretended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library and put it in the place of CUDA's."""
    compiler = shutil.which("cc")
    if not compiler or sys.platform != "linux":
        pytest.skip("there is no C compiler to make a pretended CUDA with")
    if not has_cuda() and not has_cuda(BESIDE):
        pytest.skip("onnxruntime-gpu is not installed: `make onnxruntime-gpu`")
    home = tmp_path_factory.mktemp("pretended")
    library = home / "pretended.so"
    command = [compiler, "-w", "-shared", "-fPIC", "-o", library, HERE / "pretend.c"]
    subprocess.run(command, check=True)
    for name in FILES:
        (home / name).symlink_to(library)
    return home


def told(pretended: Path, *arguments: object, **environ: str) -> dict[str, Any]:
    """Run the child, and read what it found."""
    beside = {} if has_cuda() else {"PYTHONPATH": BESIDE}
    beside |= environ
    done = subprocess.run(
        [sys.executable, HERE / "placing.py", *map(str, arguments)],
        env={**os.environ, **beside, "LD_LIBRARY_PATH": str(pretended)},
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("precision", CUDA.dialects)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_is_cudas(pretended: Path, tmp_path: Path, family: str, precision: str) -> None:
    """Place every node on CUDA in the precision asked for, and copy once there and once back."""
    source = tmp_path / "model.safetensors"
    save_file(weights(60, family=family), source)
    build.fill(source, tmp_path, shape_of(family), DIALECTS[CUDA.dialects[precision]])
    found = told(pretended, "placed", build.Built(tmp_path).graph, precision)
    assert found["hardware"] == "Pretended GPU"
    assert found["nodes"].keys() == {"CUDAExecutionProvider"}
    assert found["products"].keys() == {precision}
    assert found["shape"] == [3, 32]
    to, back, kernels = found["copies"]
    assert (to, back) == (1, 1)
    assert kernels > 0


def test_a_gpu_that_computes_nothing_is_refused(pretended: Path, tmp_path: Path) -> None:
    """Fall back with the reason from a device that runs every node and gives garbage."""
    model = write_tiny_model(tmp_path / "model")
    found = told(pretended, "chosen", model, tmp_path / "home")
    assert found["provider"] == "cpu:onnxruntime"
    (reason,) = found["reasons"]
    assert "cannot be trusted" in reason


def test_a_driver_that_is_too_old_is_named(pretended: Path, tmp_path: Path) -> None:
    """Say which driver CUDA 13 needs where the driver has another CUDA, and try nothing."""
    model = write_tiny_model(tmp_path / "model")
    found = told(pretended, "chosen", model, tmp_path / "home", PRETEND_CUDA="12020")
    assert found["provider"] == "cpu:onnxruntime"
    (reason,) = found["reasons"]
    assert "is too old for CUDA 13: it has CUDA 12.2; CUDA 13 needs the NVIDIA driver 580" in reason
