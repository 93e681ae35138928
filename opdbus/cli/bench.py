"""Commands that measure the engine on this host; they need no bus."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opdbus.cli import output
from opdbus.cli.root import as_json, root, settings
from opdbus.cli.telling import plural
from opdbus.errors import ConfigError

if TYPE_CHECKING:
    from opdbus.bench.profile import Profile

# Columns of tables that are written into a pipe.
_WIDE = 200
_REQUESTS = 100


@root.command()
@click.option("--level", "levels", multiple=True, metavar="LEVEL", help="Only this; repeatable.")
@click.option("--random", is_flag=True, help="Random weights for levels whose model is not here.")
@click.option("--quick", is_flag=True, help="Half a minute's look at few texts, one round.")
@click.option("--long", is_flag=True, help="Stream 100,000 texts too.")
@click.option("--json", "json_", metavar="FILE", help="Write the report as JSON.")
@click.option("--rounds", default=0, metavar="N", help="Rounds; the median counts. [3]")
@click.pass_context
def bench(context: click.Context, /, **given: Any) -> None:  # noqa: ANN401 -- click's values
    """Measure how fast the engine is, and how much memory it takes.

    Also its share of what the device could do. Takes minutes, which should be quiet ones.
    """
    # exit by an exception, so that files and processes are removed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    config = settings(context.obj)
    # the engine takes a third of a second to import
    from opdbus.bench import report_tables
    from opdbus.bench.benchmark import Options, bench

    file = given.pop("json_")
    if file and not (folder := Path(file).parent).is_dir():
        raise ConfigError(f"there is no folder {folder} to write into: make it first")
    report = bench(Options(**given), config, _notify)
    if file:
        Path(file).write_text(report.to_json(), encoding="utf-8")
    console = _console()
    with console.capture() as captured:
        console.print(*report_tables.everything(report), sep="\n")
    for line in captured.get().splitlines():
        print(line.rstrip())


def _notify(doing: str) -> None:
    """Print progress on stderr; on a terminal each line overwrites the one before."""
    if not sys.stderr.isatty():
        print(doing, file=sys.stderr, flush=True)
        return
    room = shutil.get_terminal_size().columns - 1
    print(f"\r{output.visible(doing)[:room]}\x1b[K", end="", file=sys.stderr, flush=True)


def _console() -> Any:  # noqa: ANN401 -- rich's, imported late
    from rich.console import Console

    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)


@root.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--texts", "count", type=click.IntRange(1, 4096), metavar="N", help="Generated texts."
)
@click.option("--operators", is_flag=True, help="Also by kind of operator, inside the model.")
@as_json
@click.pass_context
def profile(
    context: click.Context,
    texts: tuple[str, ...],
    count: int | None,
    operators: bool,  # noqa: FBT001
    json_: bool,  # noqa: FBT001
) -> None:
    """Show where the time of a request goes.

    By default of one short text. The texts are embedded together, 100 times; figures are
    medians.
    """
    config = settings(context.obj)
    from opdbus.bench.profile import profile
    from opdbus.bench.texts import shorts
    from opdbus.errors import NoModel
    from opdbus.models import folder
    from opdbus.models.catalogue import LEVELS

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
        output.as_json(asdict(found))
    else:
        _show(found)


def _show(found: Profile) -> None:
    steps = asdict(found.steps)
    batches, whole = steps.pop("runs"), steps["whole"]
    print(
        f"{found.texts} {plural('text', found.texts)}, {found.tokens}"
        f" {plural('token', found.tokens)}, in {batches} {plural('batch', batches)}"
        f" on {found.provider} in {found.precision}"
    )
    rows = [(step, f"{spent:.3f}", f"{spent / whole:.0%}") for step, spent in steps.items()]
    output.table(("step", "ms", "share"), rows)
    if found.operators:
        print()
        shown = [
            (each.kind, each.count, f"{each.milliseconds:.3f}", f"{each.share:.0%}")
            for each in found.operators
        ]
        output.table(("operator, for one text", "count", "ms", "share"), shown)
