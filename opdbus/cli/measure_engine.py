"""Commands about engines: vectors of texts, providers, devices and measurements."""

from __future__ import annotations

import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opdbus import __version__
from opdbus.cli import output
from opdbus.cli.daemon_calls import ask, without_empty
from opdbus.cli.root import NUMBER, as_json, level_names, load_settings, root
from opdbus.cli.status import describe_proof
from opdbus.errors import ConfigError, InvalidArgs

if TYPE_CHECKING:
    from opdbus.bench.measures import EngineFigures
    from opdbus.client import Client
    from opdbus.config import Config
    from opdbus.engine.provider_survey import Finding, Outcome

_FILE = click.Path(dir_okay=False, path_type=Path)
# numpy's names of the vector types; for ubinary, of its bytes.
_NUMPY_TYPES = {"float32": "<f4", "float16": "<f2", "int8": "|i1", "ubinary": "|u1"}
_GIB = 1 << 30


@root.command()
@click.argument("texts", nargs=-1)
@click.option(
    "--level",
    default="",
    metavar="LEVEL",
    help="The level whose model to use.",
    shell_complete=level_names,
)
@click.option(
    "--dimensions", type=NUMBER, metavar="N", help="Only the first so many numbers of each vector."
)
@click.option("--dtype", type=click.Choice(list(_NUMPY_TYPES)), help="Of the vectors in --output.")
@click.option("--bulk", type=_FILE, help="The texts: a file of JSON strings, one a line.")
@click.option("--output", type=_FILE, help="Where the vectors go: a .npy file, or raw rows.")
@as_json
def vectorize(texts: tuple[str, ...], json_: bool, **options: Any) -> None:
    """Print the vectors of TEXTS.

    Without TEXTS, the lines of standard input are the texts. With --bulk and --output, the vectors
    of a file of texts are written into a file.
    """
    bulk, out = options.pop("bulk"), options.pop("output")
    if bulk and out and not texts:
        _vectorize_file(bulk, out, without_empty(**options), json_=json_)
        return
    if bulk or out or options.pop("dtype"):
        raise InvalidArgs("--bulk, --output and --dtype go together, and without TEXTS")
    given = list(texts) or [line.rstrip("\n") for line in sys.stdin]

    async def both(client: Client) -> tuple[list[list[float]], int, list[int]]:
        counted = await client.count_tokens(given, without_empty(level=options["level"]))
        return await client.vectorize(given, without_empty(**options)), *counted

    vectors, most, tokens = ask(both)
    cut = sum(count > most for count in tokens)
    if cut:
        output.print_note(f"op-dbus: {cut} of {len(given)} texts were cut at {most} tokens")
    if json_:
        keys = ("text", "tokens", "truncated", "vector")
        rows = [(t, n, n > most, v) for t, n, v in zip(given, tokens, vectors, strict=True)]
        output.print_json_rows(keys, rows)
        return
    for vector in vectors:
        print(" ".join(f"{x:.6f}" for x in vector))


def _vectorize_file(texts: Path, target: Path, options: dict[str, Any], *, json_: bool) -> None:
    """Write the vectors of a file of texts into a file, and print its shape."""
    vectors = ask(lambda client: client.vectorize_bulk(texts, options))
    is_binary = vectors.dtype == "ubinary"
    shape = (vectors.rows, (vectors.dimension + 7) // 8 if is_binary else vectors.dimension)
    try:
        with vectors.file, target.open("wb") as out:
            if target.suffix == ".npy":
                # imported late, because numpy is slow to import
                from numpy.lib import format as npy

                head = {"descr": _NUMPY_TYPES[vectors.dtype], "fortran_order": False}
                npy.write_array_header_1_0(out, {**head, "shape": shape})
            shutil.copyfileobj(vectors.file, out)
    except OSError as error:
        raise InvalidArgs(f"cannot write {target}: {error}") from None
    if json_:
        shown = {"file": str(target), "rows": vectors.rows}
        output.print_json({**shown, "dimension": vectors.dimension, "dtype": vectors.dtype})
    else:
        print(f"{vectors.rows} x {vectors.dimension} {vectors.dtype}: {target}")


@root.command()
@as_json
@click.option("--no-proof", is_flag=True, help="Only look; open no model.")
@click.pass_context
def providers(context: click.Context, json_: bool, no_proof: bool) -> None:
    """Say which providers are installed, usable and proven here.

    For those that are not, say why and what to do. The first proof of a provider takes some
    seconds, TensorRT's minutes.
    """
    # the engine takes a third of a second to import
    import asyncio

    from opdbus.engine.provider_survey import survey

    given = load_settings(context.obj)
    findings = asyncio.run(survey(given, None if no_proof else _prove))
    if json_:
        output.print_json([asdict(finding) for finding in findings])
        return
    columns = ("provider", "installed", "device", "usable", "proven")
    rows = []
    reasons, libraries = dict[str, str](), dict[str, str]()
    for each in findings:
        devices = ", ".join(each.devices) or "none"
        usable = "no" if each.reason else "yes"
        rows.append((each.provider, each.installed or "no", devices, usable, _proof_result(each)))
        reasons[each.provider] = each.reason or (each.outcome.reason if each.outcome else "")
        libraries[each.provider] = ", ".join(
            f"{version.library} {version.found or 'not found'} (wanted {version.wanted})"
            for version in each.libraries
        )
    output.print_table(columns, rows)
    output.print_section("why not, and what to do", reasons)
    output.print_section("libraries", libraries)


async def _prove(name: str, given: Config) -> Outcome:
    """Prove a provider, and name it on a terminal meanwhile."""
    from opdbus.engine.provider_survey import prove

    if sys.stderr.isatty():
        output.print_note(f"proving {name} ...")
    return await prove(name, given)


def _proof_result(finding: Finding) -> str:
    """Return the precision that was proven, and its deviation from the reference."""
    outcome = finding.outcome
    if finding.reason or (outcome and outcome.reason):
        return "no"
    if outcome is None:
        return "not tried"
    if outcome.precision == "fp32":
        return f"fp32, off by {outcome.max_deviation:.0e}"
    return f"{outcome.precision}, cosine {outcome.min_cosine:.4f}"


@root.command()
@as_json
@click.pass_context
def devices(context: click.Context, json_: bool) -> None:
    """List accelerators, embedding servers, and the CPU's share.

    Servers are those of OP_DBUS_EXECUTION_PROVIDER; of the CPU, what this process may use.
    """
    from opdbus.engine.accelerators import hardware

    found = hardware(providers=load_settings(context.obj).execution_provider.names)
    if json_:
        output.print_json(asdict(found))
        return
    cpu = found.processors
    quota = f"a quota of {cpu.quota:g}" if cpu.quota else "no quota"
    usable = f"{cpu.usable} of {cpu.count} processors may be used"
    formats = f"fast formats: {' '.join(cpu.features) or 'none but fp32'}"
    shown: dict[str, str] = {
        "cpu": output.join_lines(
            (cpu.name, f"{usable} (affinity {cpu.affinity}, {quota})", formats)
        )
    }
    for device in found.accelerators:
        lines = [device.name, device.uuid, f"driver {device.driver}" if device.driver else ""]
        if memory := device.memory:
            peak = "unknown" if memory.peak is None else f"{memory.peak / _GIB:.1f} GiB a process"
            used = f"{memory.allocated / _GIB:.1f} of {memory.total / _GIB:.1f} GiB allocated"
            lines.append(f"memory {used}, peak {peak}")
        shown[f"{device.providers} {device.index}"] = output.join_lines(filter(None, lines))
    if not found.accelerators:
        shown["accelerators"] = "none; `op-dbus providers` says what is missing for each"
    shown |= {f"remote {url}": answer for url, answer in found.servers.items()}
    output.print_pairs(shown)
    for note in found.notes:
        output.print_note(note)


@root.command()
@click.option("--level", "levels", multiple=True, metavar="LEVEL", help="Only this; repeatable.")
@click.option("--seconds", default=1.0, metavar="N", help="Of each measurement. [1]")
@click.option("--json", "json_", metavar="FILE", help="Write the figures as JSON.")
@click.pass_context
def bench(
    context: click.Context, levels: tuple[str, ...], seconds: float, json_: str | None
) -> None:
    """Measure how fast each level is here, on each provider.

    Takes about ten seconds for each of them, which should be quiet ones.
    """
    settings = load_settings(context.obj)
    if json_ and not (folder := Path(json_).parent).is_dir():
        raise ConfigError(f"there is no folder {folder} to write into: make it first")
    # the engine takes a third of a second to import
    import asyncio

    from opdbus.bench import measures

    async def measure(level: str, provider: str) -> EngineFigures:
        # ends the child too; an exception, wherever it came, could lose one that has just begun
        if task := asyncio.current_task():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await measures.measure_in_child(level, provider, settings, seconds)

    found = []
    for level, provider in measures.find_engines(levels, settings):
        output.print_note(f"measuring {level} on {provider} ...")
        try:
            found.append(asyncio.run(measure(level, provider)))
        except asyncio.CancelledError:
            sys.exit(128 + signal.SIGTERM)
        _print_figures(found[-1])
    here = measures.describe()
    print(f"\n{here.line}")
    if json_:
        whole = {"version": __version__, "machine": asdict(here), "engines": [*map(asdict, found)]}
        Path(json_).write_text(output.json_text(whole, indent=1), encoding="utf-8")


def _print_figures(found: EngineFigures) -> None:
    """Print a title, the proof, and a row for each kind of texts."""
    place = f"{found.level} on {found.provider}"
    if not found.proof:
        print(f"{place}: {output.escape_hidden(found.failure)}", flush=True)
        return
    opened = f"in {found.precision}, opened in {found.load_seconds:.1f} s"
    print(f"{place} {opened}: {describe_proof(found.proof)}")
    rows = []
    for kind, rates in found.texts_per_second.items():
        points = found.latency[kind].values()
        rows.append((kind, *(f"{x:.0f}" for x in rates.values()), *(f"{x:.2f}" for x in points)))
    columns = (*rates, "ms of one: p50", "p95", "p99")
    output.print_table(("texts/s by texts a call", *columns), rows)
