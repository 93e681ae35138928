"""The steps that check what this machine has, and whether its results are right."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

from kit import KINDS, Kit, built, least_cosine, read, recording

from opdbus import config
from opdbus.bench import measures
from opdbus.engine import accelerators, provider_survey
from opdbus.engine.host import versions
from opdbus.engine.proof import Probe, prove

if TYPE_CHECKING:
    from kit import Findings

PACKAGES = (
    "onnxruntime-gpu onnxruntime onnx numpy tokenizers safetensors torch transformers"
    " sentence-transformers tensorrt nvidia-cublas nvidia-cudnn-cu13 nvidia-cuda-runtime"
).split()


def environment(kit: Kit) -> Findings:
    """Name the machine, the driver and the versions."""
    yield "machine", dataclasses.asdict(measures.describe())
    yield "hardware", dataclasses.asdict(accelerators.hardware())
    yield "packages", versions(PACKAGES)
    if kit.device == "cuda" and shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False)
        yield "nvidia-smi", done.stdout.splitlines()


def providers(kit: Kit) -> Findings:
    """Give op-dbus' own verdict on every provider."""
    settings = config.load({"HOME": kit.scratch})
    for finding in asyncio.run(provider_survey.survey(settings, None)):
        yield finding.provider, dataclasses.asdict(finding)


def models(kit: Kit) -> Findings:
    """Make the texts and build every graph, with the seconds that each takes."""
    for kind in KINDS:
        began = time.monotonic()
        kit.texts(kind)
        yield f"{kind} texts", round(time.monotonic() - began, 1)
    for level in kit.levels:
        model = read(kit, level)
        for precision in kit.precisions:
            began = time.monotonic()
            built(kit, model, kit.provider.dialects[precision])
            yield f"{level} {precision}", round(time.monotonic() - began, 1)


def proof(kit: Kit) -> Findings:
    """Prove every level in every precision, and let the gate choose for the medium one."""
    for level, precision in itertools.product(kit.levels, kit.precisions):
        model = read(kit, level)
        made = built(kit, model, kit.provider.dialects[precision])
        began = time.monotonic()
        try:
            session = recording(kit, model, precision)
            seen = prove(session, kit.provider, precision, Probe.read(made.proof))
            yield f"{level} {precision}", dataclasses.asdict(seen)
        except Exception as error:  # noqa: BLE001 -- the report says what happened
            yield f"{level} {precision}", {"failure": str(error)}
        yield f"{level} {precision} seconds", round(time.monotonic() - began, 1)
    if len(kit.precisions) > 1:
        with kit.embedder("medium") as embedder:
            report = embedder.engine.proven.report
            yield "gate", dataclasses.asdict(report) if report else None


def memory(kit: Kit) -> Findings:
    """Embed with too little memory: batches halve, and nothing fails that fits alone."""
    if kit.device != "cuda":
        yield "skipped", "only CUDA's memory can be limited"
        return
    some = kit.texts("object")
    with kit.embedder("medium", "fp16") as free:
        expected = free.embed(some)
        yield "free", [dataclasses.asdict(found) for found in accelerators.hardware().accelerators]
    for limit in ("256M", "128M", "96M"):
        try:
            little = kit.embedder("medium", "fp16", gpu_mem_limit=limit, batch_tokens=1 << 18)
            with little as embedder:
                found = embedder.embed(some)
                yield (
                    limit,
                    {
                        "next_batch_tokens": embedder.engine.scheduler.budget,
                        "min_cosine": least_cosine(found, expected),
                    },
                )
        except Exception as error:  # noqa: BLE001 -- the report says what happened
            yield limit, {"failure": str(error)}
