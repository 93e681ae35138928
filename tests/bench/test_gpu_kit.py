"""The script that measures a CUDA machine, on a CPU and with a tiny model."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "run.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Read the script as a module."""
    spec = importlib.util.spec_from_file_location("gpu_kit_run", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, Any]:
    """Run every step, and read the report."""
    home = tmp_path_factory.mktemp("kit")
    given = ["--device", "cpu", "--quick", "--seconds", "0.05", "--model", tiny_model]
    folders = ["--out", home, "--scratch", home / "scratch"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *given, *folders],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == str(home / "report.json")
    return dict(json.loads((home / "report.json").read_text()))


def test_every_step_runs_here(report: dict[str, Any], script: ModuleType) -> None:
    """End every step without a fault, and those that need a GPU with the reason."""
    steps = report["steps"]
    assert steps.keys() == {*script.STEPS, "all"}
    # where there is torch, it cannot open the tiny model
    own = {name: found for name, found in steps.items() if name not in {"peer", "parity"}}
    assert {name: found["failure"] for name, found in own.items() if "failure" in found} == {}
    assert steps["all"]["left out"] == []
    assert "only CUDA" in steps["memory"]["skipped"]


def test_the_report_holds_the_proof(report: dict[str, Any]) -> None:
    """Tell where the nodes ran and how far the vectors are from the reference."""
    proof = report["steps"]["proof"]["medium fp32"]
    assert proof["nodes"].keys() == {"CPUExecutionProvider"}
    assert 0 < proof["max_deviation"] < 1e-5


def test_the_report_holds_rates_beside_targets(report: dict[str, Any]) -> None:
    """Give the engine's and the model's texts a second, and what is wanted."""
    found = report["steps"]["all"]["summary"]["medium"]
    assert all(found[name] > 0 for name in ("engine", "model"))
    assert found["target"] == 320_000
    assert "failure" in report["steps"]["peer"] or "torch" in report["steps"]["peer"]["skipped"]


def test_a_step_ends_at_its_limit(tmp_path: Path, script: ModuleType, tiny_model: Path) -> None:
    """Kill a step that takes too long, and say so in the report."""
    kit = {"device": "cpu", "quick": False, "seconds": 600.0}
    kit |= {"scratch": str(tmp_path), "model": str(tiny_model)}
    into = script.Report(tmp_path / "report.json", kit)
    script.step("engine", 1.5, kit, script.environment(None), into)
    found = json.loads((tmp_path / "report.json").read_text())["steps"]["engine"]
    assert found["failure"][0] == "stopped at its limit of 1.5 s"
    assert 1.5 <= found["seconds"] < 10


def test_split_wheels_are_joined(tmp_path: Path, script: ModuleType) -> None:
    """Install whole wheels and those in parts from a folder, without a network."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("gpukitone", "gpukittwo"):
        make_wheel(wheels, name)
    (whole,) = wheels.glob("gpukittwo*.whl")
    content = whole.read_bytes()
    whole.unlink()
    for number, start in enumerate(range(0, len(content), 300)):
        part = wheels / f"{whole.name}.part{number:02}"
        part.write_bytes(content[start : start + 300])
    site = script.unpacked(wheels, tmp_path / "scratch")
    code = "import gpukitone, gpukittwo; print(gpukitone.NAME, gpukittwo.NAME)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["gpukitone", "gpukittwo"]


def test_a_folder_without_wheels(tmp_path: Path, script: ModuleType) -> None:
    """Say what to read where a folder holds no wheels."""
    with pytest.raises(SystemExit, match=r"holds no wheels; README\.md"):
        script.unpacked(tmp_path, tmp_path / "scratch")


def make_wheel(folder: Path, name: str) -> None:
    """Write a wheel of one module."""
    info = f"{name}-1.0.dist-info"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        f"{name}.py": f'NAME = "{name}"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": tag,
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)
