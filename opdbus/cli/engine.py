"""Commands about execution providers and devices."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from opdbus.cli import output
from opdbus.cli.root import as_json, root, settings

if TYPE_CHECKING:
    from opdbus.config import Config
    from opdbus.engine.accelerators import Accelerator, Processors
    from opdbus.engine.provider_survey import Finding, Outcome

_GIB = 1 << 30


@root.command()
@as_json
@click.option("--no-proof", is_flag=True, help="Only look; open no model.")
@click.pass_context
def providers(context: click.Context, json_: bool, no_proof: bool) -> None:  # noqa: FBT001
    """Say which providers are installed, usable and proven here.

    For those that are not, say why and what to do. The first proof of a provider takes some
    seconds, TensorRT's minutes.
    """
    # the engine takes a third of a second to import
    import asyncio
    from dataclasses import asdict

    from opdbus.engine.provider_survey import survey

    given = settings(context.obj)
    findings = asyncio.run(survey(given, None if no_proof else _prove))
    if json_:
        output.as_json([asdict(finding) for finding in findings])
        return
    columns = ("provider", "installed", "device", "usable", "proven")
    output.table(columns, [_row(finding) for finding in findings])
    output.section("why not, and what to do", {f.provider: _why_not(f) for f in findings})
    output.section("libraries", {f.provider: _libraries(f) for f in findings})


async def _prove(name: str, given: Config) -> Outcome:
    from opdbus.engine.provider_survey import prove

    if sys.stderr.isatty():
        print(f"proving {name} ...", end="\r", file=sys.stderr, flush=True)
    outcome = await prove(name, given)
    if sys.stderr.isatty():
        print(" " * (len(name) + 12), end="\r", file=sys.stderr, flush=True)
    return outcome


def _row(finding: Finding) -> tuple[str, ...]:
    return (
        finding.provider,
        finding.installed or "no",
        ", ".join(finding.devices) or "none",
        "no" if finding.reason else "yes",
        _proven(finding),
    )


def _proven(finding: Finding) -> str:
    outcome = finding.outcome
    if finding.reason or (outcome and outcome.reason):
        return "no"
    if outcome is None:
        return "not tried"
    if outcome.precision == "fp32":
        return f"fp32, off by {outcome.max_deviation:.0e}"
    return f"{outcome.precision}, cosine {outcome.min_cosine:.4f}"


def _why_not(finding: Finding) -> str:
    return finding.reason or (finding.outcome.reason if finding.outcome else "")


def _libraries(finding: Finding) -> str:
    return ", ".join(
        f"{version.library} {version.found or 'not found'} (wanted {version.wanted})"
        for version in finding.libraries
    )


@root.command()
@as_json
def devices(json_: bool) -> None:  # noqa: FBT001
    """List accelerators, and what may be used of the CPU."""
    from dataclasses import asdict

    from opdbus.engine.accelerators import hardware

    found = hardware()
    if json_:
        output.as_json(asdict(found))
        return
    shown = {"cpu": _of_cpu(found.processors)}
    for accelerator in found.accelerators:
        shown[f"{accelerator.providers} {accelerator.index}"] = _of_accelerator(accelerator)
    if not found.accelerators:
        shown["accelerators"] = "none; `op-dbus providers` says what is missing for each"
    output.pairs(shown)
    for note in found.notes:
        output.note(note)


def _of_cpu(cpu: Processors) -> str:
    quota = f"a quota of {cpu.quota:g}" if cpu.quota else "no quota"
    return (
        f"{cpu.name}\n{cpu.usable} of {cpu.count} processors may be used (affinity {cpu.affinity},"
        f" {quota})\nfast formats: {' '.join(cpu.features) or 'none but fp32'}"
    )


def _of_accelerator(device: Accelerator) -> str:
    lines = [device.name, device.uuid, f"driver {device.driver}" if device.driver else ""]
    if memory := device.memory:
        peak = "unknown" if memory.peak is None else f"{memory.peak / _GIB:.1f} GiB a process"
        lines.append(
            f"memory {memory.allocated / _GIB:.1f} of {memory.total / _GIB:.1f} GiB allocated,"
            f" peak {peak}"
        )
    return "\n".join(filter(None, lines))
