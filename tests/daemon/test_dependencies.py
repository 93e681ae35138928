"""Dependencies: what each extra installs, and what works, or is said, where one is missing."""

import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT
from harness.extras import without
from harness.running import Running, run_program
from packaging.requirements import Requirement

from opdbus.platform import pip

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PLATFORMS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")]


def installed(rows: list[str], platform: tuple[str, str]) -> dict[str, Requirement]:
    """Give what these rows install on a platform, by name."""
    here = {"sys_platform": platform[0], "platform_machine": platform[1]}
    needed = (Requirement(row) for row in rows)
    return {each.name: each for each in needed if not each.marker or each.marker.evaluate(here)}


@pytest.mark.parametrize("platform", PLATFORMS, ids="-".join)
@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_one_wheel_of_onnxruntime(extra: str, platform: tuple[str, str]) -> None:
    """Install one wheel of onnxruntime on every platform: all of them own one folder."""
    wheels = [name for name in installed(EXTRAS[extra], platform) if name.startswith("onnxruntime")]
    assert len(wheels) == 1


@pytest.mark.parametrize("platform", PLATFORMS, ids="-".join)
def test_the_base_runs_no_model(platform: tuple[str, str]) -> None:
    """Install nothing that runs a model unless it was asked for."""
    names = installed(PROJECT["dependencies"], platform).keys()
    assert not [name for name in names if name.startswith(("onnxruntime", "openvino", "torch"))]


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs find what an installation of the base alone has."""
    for name, value in without("onnxruntime", "openvino", "huggingface_hub").items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("base")
def test_level_none_needs_no_runtime(daemons: Callable[..., Running]) -> None:
    """Serve lists and lexical search from an installation of the base alone."""
    with daemons(VECTOR_LEVEL="none") as daemon:
        daemon.vectorized()
        found = daemon.cli("search", "--mode", "lexical", "chronyd")
    assert "systemd/unit/chronyd.service" in found.stdout, found.stderr


OPENED = """
import sys
from opdbus import Embedder
from opdbus.errors import ProviderError

for provider in sys.argv[3:]:
    try:
        Embedder(model=sys.argv[1], state_dir=sys.argv[2], provider=provider).open()
    except ProviderError as error:
        print(error)
"""


@pytest.mark.usefixtures("base")
def test_a_missing_runtime_is_named(
    daemons: Callable[..., Running], tiny_model: Path, tmp_path: Path
) -> None:
    """End with one sentence that names the extra to install where nothing can run a model."""
    packages = {
        "cpu": ("onnxruntime", "cpu"),
        "cpu:openvino": ("openvino", "openvino"),
        "openvino": ("openvino", "openvino"),
        "cuda": ("onnxruntime", "gpu"),
        "tensorrt": ("onnxruntime", "gpu"),
    }
    said = [
        f"cannot run: the package {package} is not installed; {pip.install(f'op-dbus[{extra}]')}"
        for package, extra in packages.values()
    ]
    opened = run_program([sys.executable, "-c", OPENED, tiny_model, tmp_path / "state", *packages])
    for line, sentence in zip(opened.stdout.splitlines(), said, strict=True):
        assert sentence in line
    with daemons(EXECUTION_PROVIDER="cpu") as daemon:
        assert daemon.exit_code() == 3
    assert said[0] in daemon.log


@pytest.mark.usefixtures("base")
def test_a_missing_hub_is_named(daemons: Callable[..., Running]) -> None:
    """Say what to install where models cannot be pulled."""
    done = daemons().cli("models", "pull", "low")
    assert done.returncode == 2
    assert "pip install 'op-dbus[pull]'" in done.stderr
    assert "Traceback" not in done.stderr


EMBEDDED = """
import sys
from opdbus import Embedder

with Embedder(model=sys.argv[1], model_dir=sys.argv[1], state_dir=sys.argv[2]) as embedder:
    print(embedder.embed(["a unit"]).shape, embedder.provider, len(embedder.fallbacks))
"""


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_one_runtime_is_enough(tiny_model: Path, tmp_path: Path, runtime: str) -> None:
    """Embed on `cpu` with either runtime alone, graded and proven, in child processes too."""
    pytest.importorskip(runtime)
    missing = "openvino" if runtime == "onnxruntime" else "onnxruntime"
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules['{missing}'] = None\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    embedded = run_program(
        [sys.executable, "-c", EMBEDDED, tiny_model, tmp_path / "state"], env=environment
    )
    assert f"(1, 32) cpu:{runtime}" in embedded.stdout, embedded.stderr
