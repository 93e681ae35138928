"""What is told of each provider: installed, usable, proven, or why not."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from harness.machines import host
from harness.running import Running
from test_providers import WHY_NOT

from opdbus.engine.host import HERE
from opdbus.engine.provider_survey import (
    NO_MODEL,
    Finding,
    Outcome,
    examine_provider,
    prove,
    survey,
)
from opdbus.engine.providers import PROVIDERS

if TYPE_CHECKING:
    from pathlib import Path

    from opdbus.config import Config
    from opdbus.engine.host import Host
    from opdbus.engine.provider_survey import Prove


def surveyed(settings: Config, prove: Prove | None, machine: Host = HERE) -> dict[str, Finding]:
    """Survey to the end."""
    found = asyncio.run(survey(settings, prove, machine))
    return {finding.provider: finding for finding in found}


def test_a_row_for_each_provider(settings: Config) -> None:
    """Tell of every provider of the table, in its order, and try to prove what is usable only."""
    asked: list[str] = []

    async def proving(name: str, _settings: Config) -> Outcome:
        asked.append(name)
        return Outcome("", "x", "fp32")

    found = surveyed(settings, proving, host("cuda", without=["libnvinfer.so.10", "openvino"]))
    assert list(found) == list(PROVIDERS)
    assert asked == [name for name, finding in found.items() if not finding.reason]
    assert asked == ["cpu:onnxruntime", "cuda", "webgpu", "migraphx"]
    assert all((finding.outcome is None) == bool(finding.reason) for finding in found.values())


def test_only_looking(settings: Config) -> None:
    """Prove nothing when only asked to look."""
    found = surveyed(settings, None, host("cuda"))
    assert {finding.outcome for finding in found.values()} == {None}
    assert found["cuda"].reason == ""


@pytest.mark.parametrize(("name", "broken", "missing", "advice"), WHY_NOT)
def test_why_not(settings: Config, name: str, broken: Host, missing: str, advice: str) -> None:
    """Give each row's reason and advice as the table does, without the provider's name."""
    found = examine_provider(PROVIDERS[name], settings, broken)
    assert missing in found.reason
    assert advice in found.reason
    assert not found.reason.startswith(name)


def test_what_is_there_though_it_is_not_usable(settings: Config) -> None:
    """Name the GPU though its library is missing, and the libraries with their versions."""
    found = examine_provider(PROVIDERS["cuda"], settings, host("cuda", without=["libcudnn.so.9"]))
    assert found.reason.startswith("libcudnn.so.9 was not found")
    assert found.installed == "onnxruntime-gpu 1.2.3"
    assert found.devices == ("Example GPU 40", "Example GPU 41")
    versions = {version.library: (version.wanted, version.found) for version in found.libraries}
    assert versions["CUDA"] == ("13", "13.1")
    assert versions["cuDNN"] == ("9", "")


def test_what_is_not_there(settings: Config) -> None:
    """Claim no package, device or library where there is none."""
    machine = host("cuda", without=["onnxruntime", "libcuda.so.1", "libcudart.so.13"])
    found = examine_provider(PROVIDERS["cuda"], settings, machine)
    assert (found.installed, found.devices, found.libraries[0].found) == ("", (), "")


def test_a_wanted_device_that_is_not_there(settings: Config) -> None:
    """Call a provider unusable whose device of the settings is not there."""
    found = examine_provider(PROVIDERS["cuda"], replace(settings, gpu_device=("7",)), host("cuda"))
    assert "device 7: there are 2" in found.reason


@pytest.mark.parametrize("name", ["cpu:openvino", "cpu:onnxruntime"])
def test_a_real_proof(settings: Config, name: str) -> None:
    """Prove the level's model in a child process, with the figures of that proof."""
    if examine_provider(PROVIDERS[name], settings, HERE).reason:
        pytest.skip(f"{name} is not usable here")
    found = asyncio.run(prove(name, settings))
    assert found.reason == ""
    assert found.hardware == HERE.processor()
    assert found.precision == "fp32"
    assert 0 < found.max_deviation < 1e-5
    assert found.nodes
    assert found.nodes.keys() == {PROVIDERS[name].runtime_name}


def test_proofs_that_fail(settings: Config) -> None:
    """Say in a sentence why a proof could not be had: provider, model, or no level."""
    refused = asyncio.run(prove("coreml", settings))
    assert refused.reason.startswith("coreml cannot run: ")
    nowhere = replace(settings, model=settings.state_dir / "nowhere")
    assert "nowhere" in asyncio.run(prove("cpu", nowhere)).reason
    none = replace(settings, vector_level="none")
    assert asyncio.run(prove("cpu", none)).reason == NO_MODEL.format("none")


@pytest.fixture
def cli(tmp_path: Path, tiny_model: Path) -> Running:
    """Give the command line where there is no bus."""
    here = Running(tmp_path, "unix:path=/nonexistent", MODEL=tiny_model, PRECISION="fp32")
    here.state_dir.mkdir()
    return here


def test_the_command(cli: Running) -> None:
    """Print a row for each provider without a bus, and why those that are not usable are not."""
    ran = cli.cli("providers")
    assert ran.returncode == 0
    rows, _, below = ran.stdout.partition("why not, and what to do")
    lines = {line.split()[0]: line for line in rows.splitlines() if line}
    assert list(lines) == ["provider", *PROVIDERS]
    assert " yes " in lines["cpu:onnxruntime"]
    assert "fp32, off by " in lines["cpu:onnxruntime"]
    assert "only macOS has it" in below
    assert "CUDA" in below.partition("libraries")[2]


def test_the_command_as_json(cli: Running) -> None:
    """Print nothing but JSON, and prove nothing with --no-proof."""
    ran = cli.cli("providers", "--json", "--no-proof")
    found = {row["provider"]: row for row in json.loads(ran.stdout)}
    assert list(found) == list(PROVIDERS)
    assert {row["outcome"] for row in found.values()} == {None}
    assert found["cpu:onnxruntime"]["reason"] == ""
    proven = json.loads(cli.cli("providers", "--json").stdout)
    (row,) = [row for row in proven if row["provider"] == "cpu:onnxruntime"]
    assert row["outcome"]["max_deviation"] < 1e-5
    assert "not tried" in cli.cli("providers", "--no-proof").stdout
    assert list(cli.state_dir.iterdir()) == [cli.state_dir / "graphs"]
