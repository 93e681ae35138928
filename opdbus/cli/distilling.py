"""Command that trains a smaller model to reproduce the vectors of a larger one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from opdbus.cli import output
from opdbus.cli.root import as_json, root, settings
from opdbus.errors import ConfigError

_FILE = click.Path(path_type=Path)


@root.command()
@click.argument("model", metavar="MODEL_FOLDER", type=_FILE)
@click.argument("into", type=_FILE)
@click.option(
    "--to",
    type=click.Choice(["static", "layers"]),
    default="static",
    help="A table, or some of the model's own layers. [static]",
)
@click.option(
    "--texts",
    multiple=True,
    type=_FILE,
    metavar="FILE",
    help="Texts to learn from, one a line; repeatable. [this host's]",
)
@click.option(
    "--pairs", type=_FILE, metavar="FILE", help="Lines of a question, a tab, and what answers it."
)
@click.option(
    "--epochs",
    type=click.FloatRange(0, 1000, min_open=True),
    metavar="N",
    help="Passes over the texts. [static 12, layers 2]",
)
@click.option(
    "--dimension", type=click.IntRange(8, 4096), metavar="N", help="Of a table's rows. [256]"
)
@click.option("--layers", type=click.IntRange(1, 64), metavar="N", help="How many layers stay. [3]")
@click.option(
    "--seed", type=click.IntRange(0, (1 << 32) - 1), metavar="N", help="What decides chance. [14]"
)
@click.option(
    "--work", type=_FILE, metavar="FOLDER", help="Keep vectors and checkpoints here. [INTO.part]"
)
@as_json
@click.pass_context
def distil(
    context: click.Context,
    /,
    model: Path,
    into: Path,
    to: str,
    texts: tuple[Path, ...],
    pairs: Path | None,
    work: Path | None,
    json_: bool,  # noqa: FBT001
    **given: Any,  # noqa: ANN401 -- click's values
) -> None:
    """Train a smaller model to stand for that in MODEL_FOLDER.

    A command that was stopped goes on where it was when it is given again. The report says what was
    lost: on texts that were held out, and on questions.
    """
    # all inputs are local, so the libraries need no network
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    config = settings(context.obj)
    # the engine takes a third of a second to import
    from opdbus.distil import distillation, host_texts
    from opdbus.distil.lesson import RECIPES, Request

    for name, kind in (("dimension", "static"), ("layers", "layers")):
        if given[name] is not None and to != kind:
            raise ConfigError(f"--{name} is for `--to {kind}`: leave it out")
    chosen = {key: value for key, value in given.items() if value is not None}
    recipe = replace(RECIPES[to], **chosen)
    lines = [line for file in texts for line in _lines(file)]
    learned = lines or host_texts.of_host(recipe.seed)
    request = Request(
        model, into, recipe, tuple(dict.fromkeys(learned)), _pairs(pairs) if pairs else (), work
    )
    about = distillation.distil(request, config, output.note)
    if json_:
        output.as_json(about)
    else:
        _show(about, into)


def _lines(file: Path) -> list[str]:
    try:
        found = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the texts {file}: {error}; give a file of UTF-8") from None
    return [line.strip() for line in found if line.strip()]


def _pairs(file: Path) -> tuple[tuple[str, str], ...]:
    found = []
    for number, line in enumerate(_lines(file), 1):
        question, tab, answer = line.partition("\t")
        if not tab or not question.strip() or not answer.strip():
            raise ConfigError(
                f"line {number} of {file} is no pair: write a question, a tab, and its answer"
            )
        found.append((question.strip(), answer.strip()))
    return tuple(found)


def _show(about: dict[str, Any], into: Path) -> None:
    teacher, student = about["served"]["teacher"], about["served"]["student"]
    rows = {
        "teacher": about["teacher"]["name"],
        "cosine to its vectors": f"{_said(about['cosine'])}, {about['held_out']} texts held out",
    }
    for name, ranks in about["ranks"].items():
        rows[f"{name}, {ranks['questions']} questions"] = "mean reciprocal rank of the right text"
        rows |= {f"  {each}": _said(ranks[each]) for each in ("teacher", "student", "lost")}
    for key, unit in (("texts_per_second", "texts/s"), ("bytes", "bytes")):
        rows[unit] = f"{teacher[key]:,.0f}, now {student[key]:,.0f}"
    rows["proven"] = f"on {student['provider']}, within {student['proven_within']}"
    output.pairs(rows)
    level = "static" if about["recipe"]["to"] == "static" else "medium"
    print(f"\nOP_DBUS_VECTOR_LEVEL={level} OP_DBUS_MODEL={into.absolute()} has it served")


def _said(interval: list[float]) -> str:
    mean, low, high = interval
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"
