"""Commands about engines: vectors of texts, providers, devices and measurements."""

from __future__ import annotations

import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opdbus.cli import output
from opdbus.cli.daemon_calls import ask, without_empty
from opdbus.cli.root import NUMBER, as_json, level_names, load_settings, root
from opdbus.errors import ConfigError, InvalidArgs
from opdbus.wording.change_words import plural

if TYPE_CHECKING:
    from opdbus.bench.profile import Profile
    from opdbus.client import Client
    from opdbus.config import Config
    from opdbus.engine.accelerators import Accelerator
    from opdbus.engine.provider_survey import Finding, Outcome

_FILE = click.Path(dir_okay=False, path_type=Path)
# numpy's names of the vector types; for ubinary, of its bytes.
_NUMPY_TYPES = {"float32": "<f4", "float16": "<f2", "int8": "|i1", "ubinary": "|u1"}
_GIB = 1 << 30
# Columns of tables that are written into a pipe.
_WIDE = 200
_REQUESTS = 100


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
        print(f"proving {name} ...", end="\r", file=sys.stderr, flush=True)
    outcome = await prove(name, given)
    if sys.stderr.isatty():
        print(" " * (len(name) + 12), end="\r", file=sys.stderr, flush=True)
    return outcome


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
    for accelerator in found.accelerators:
        shown[f"{accelerator.providers} {accelerator.index}"] = _describe_accelerator(accelerator)
    if not found.accelerators:
        shown["accelerators"] = "none; `op-dbus providers` says what is missing for each"
    shown |= {f"remote {url}": answer for url, answer in found.servers.items()}
    output.print_pairs(shown)
    for note in found.notes:
        output.print_note(note)


def _describe_accelerator(device: Accelerator) -> str:
    """Return the name, driver and memory of an accelerator, one a line."""
    lines = [device.name, device.uuid, f"driver {device.driver}" if device.driver else ""]
    if memory := device.memory:
        peak = "unknown" if memory.peak is None else f"{memory.peak / _GIB:.1f} GiB a process"
        used = f"{memory.allocated / _GIB:.1f} of {memory.total / _GIB:.1f} GiB allocated"
        lines.append(f"memory {used}, peak {peak}")
    return output.join_lines(filter(None, lines))


@root.command()
@click.option("--level", "levels", multiple=True, metavar="LEVEL", help="Only this; repeatable.")
@click.option("--random", is_flag=True, help="Random weights for levels whose model is not here.")
@click.option("--quick", is_flag=True, help="Half a minute's look at few texts, one round.")
@click.option("--long", is_flag=True, help="Stream 100,000 texts too.")
@click.option("--json", "json_", metavar="FILE", help="Write the report as JSON.")
@click.option("--rounds", default=0, metavar="N", help="Rounds; the median counts. [3]")
@click.pass_context
def bench(context: click.Context, /, **given: Any) -> None:
    """Measure how fast the engine is, and how much memory it takes.

    Also its share of what the device could do. Takes minutes, which should be quiet ones.
    """
    # exit by an exception, so that files and processes are removed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    config = load_settings(context.obj)
    # the engine takes a third of a second to import
    from rich.console import Console

    from opdbus.bench import report_tables
    from opdbus.bench.benchmark import Options, bench

    file = given.pop("json_")
    if file and not (folder := Path(file).parent).is_dir():
        raise ConfigError(f"there is no folder {folder} to write into: make it first")
    report = bench(Options(**given), config, _show_progress)
    if file:
        Path(file).write_text(report.to_json(), encoding="utf-8")
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    with console.capture() as captured:
        console.print(*report_tables.everything(report), sep="\n")
    for line in captured.get().splitlines():
        print(line.rstrip())


def _show_progress(doing: str) -> None:
    """Print progress on stderr; on a terminal each line overwrites the one before."""
    if not sys.stderr.isatty():
        print(doing, file=sys.stderr, flush=True)
        return
    room = shutil.get_terminal_size().columns - 1
    print(f"\r{output.escape_hidden(doing)[:room]}\x1b[K", end="", file=sys.stderr, flush=True)


@root.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--texts", "count", type=click.IntRange(1, 4096), metavar="N", help="Generated texts."
)
@click.option("--operators", is_flag=True, help="Also by kind of operator, inside the model.")
@as_json
@click.pass_context
def profile(
    context: click.Context, texts: tuple[str, ...], count: int | None, operators: bool, json_: bool
) -> None:
    """Show where the time of a request goes.

    By default of one short text. The texts are embedded together, 100 times; figures are
    medians.
    """
    import asyncio

    config = load_settings(context.obj)
    from opdbus.bench.profile import profile
    from opdbus.bench.texts import shorts
    from opdbus.errors import NoModel
    from opdbus.models import folder
    from opdbus.models.level_table import LEVELS

    if config.vector_level == "none":
        raise NoModel("the level none has no model to profile: set OP_DBUS_VECTOR_LEVEL")
    model = folder.load_model(LEVELS[config.vector_level], config)
    if model.format.is_table:
        raise NoModel(
            f"the level {model.level} has no steps to tell apart: `op-dbus bench` measures it"
        )
    some = texts or shorts(count or 1)
    found = asyncio.run(profile(model, config, some, _REQUESTS, operators=operators))
    if json_:
        output.print_json(asdict(found))
    else:
        _print_profile(found)


def _print_profile(found: Profile) -> None:
    steps = asdict(found.steps)
    batches, whole = steps.pop("runs"), steps["whole"]
    print(
        f"{found.texts} {plural('text', found.texts)}, {found.tokens}"
        f" {plural('token', found.tokens)}, in {batches} {plural('batch', batches)}"
        f" on {found.provider} in {found.precision}"
    )
    rows = [(step, f"{spent:.3f}", f"{spent / whole:.0%}") for step, spent in steps.items()]
    output.print_table(("step", "ms", "share"), rows)
    if found.operators:
        print()
        shown = [
            (each.kind, each.count, f"{each.milliseconds:.3f}", f"{each.share:.0%}")
            for each in found.operators
        ]
        output.print_table(("operator, for one text", "count", "ms", "share"), shown)
