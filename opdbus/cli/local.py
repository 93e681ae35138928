"""Commands that need no running daemon: daemon itself, config, doctor and check."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opdbus import config
from opdbus.cli import output
from opdbus.cli.root import as_json, load_settings, root
from opdbus.errors import StateFileError
from opdbus.wording.change_words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.state.judge import Judgement
    from opdbus.state.object import Json, ObjectId

# number of names of a state file that are listed for people
_MOST_NAMES = 10
# width of the longest verdict of doctor
_VERDICT_WIDTH = len("warning")


def _daemon_options(command: Callable[..., None]) -> Callable[..., None]:
    for setting in reversed(config.SETTINGS):
        text = (setting.doc[0].upper() + setting.doc[1:]).replace("`", "") + "."
        default = setting.default or ("by user" if setting.key.endswith("_dir") else "none")
        option = click.option(
            setting.flag, setting.key, metavar="VALUE", help=f"{text} [{default}]"
        )
        command = option(command)
    return command


@root.command()
@_daemon_options
@click.pass_context
def daemon(context: click.Context, /, **flags: str | None) -> None:
    """Serve on the bus until SIGTERM.

    Every setting of `op-dbus config` can be given as a flag.
    """
    # until the daemon handles it: the imports below take half a second
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # imports create no garbage; collecting took a sixth of that time
    gc.disable()
    from opdbus.platform.lean_imports import import_structlog

    import_structlog()
    from opdbus.daemon import main

    gc.enable()
    given = {key: value for key, value in flags.items() if value is not None}
    code = main(os.environ, context.obj | given)
    sys.stdout.flush()
    sys.stderr.flush()
    # All work is committed and answered; do not wait for a thread that still reads a large file.
    os._exit(code)


root.add_command(daemon, "run")


@root.command(name="config")
@as_json
@click.pass_context
def config_(context: click.Context, json_: bool) -> None:
    """Show every setting, its value, and where it came from.

    If the service exists, root sees the service's settings; others see those of their own
    shell.
    """
    from opdbus.systemd import unit

    found = load_settings(context.obj)
    service = unit.find_unit() if found.bus == "system" and os.geteuid() == 0 else None
    if service:
        found = config.load(os.environ, context.obj, service=service.environ())
        output.print_note(f"what {unit.NAME} runs with; variables of this shell win over its own")
        for where in service.ignored():
            output.print_note(f"{where} {unit.IGNORED}")
    elif Path(unit.SETTINGS).parent.exists():
        hint = f"the service has settings of its own in {unit.SETTINGS}, which are not shown here"
        output.print_note(f"{hint}: `op-dbus doctor` checks them")
    if json_:
        rows = ((name, {"value": value, "source": at}) for name, value, at in found.rows())
        output.print_json(dict(rows))
    else:
        output.print_table(("setting", "value", "from"), found.rows())


@root.command()
@as_json
@click.pass_context
def doctor(context: click.Context, json_: bool) -> int:
    """Say what keeps op-dbus from working, and what to do.

    Where systemd has the service op-dbus, its settings are the ones that are checked; variables of
    this shell win over them. The exit code is 1 if something is wrong.
    """
    import asyncio

    from opdbus.doctor import examine

    def load(service: Mapping[str, config.Given]) -> config.Config:
        return config.load(os.environ, context.obj, service=service)

    verdicts = asyncio.run(examine(load))
    if json_:
        output.print_json([verdict._asdict() for verdict in verdicts])
    else:
        for verdict in verdicts:
            colour = {"ok": "green", "warning": "yellow", "wrong": "red"}[verdict.status]
            label = output.add_style(verdict.status.ljust(_VERDICT_WIDTH), colour)
            output.print_labelled(label, _VERDICT_WIDTH, f"{verdict.subject}: {verdict.finding}")
            if verdict.advice:
                output.print_labelled(" " * _VERDICT_WIDTH, _VERDICT_WIDTH, verdict.advice)
    return 1 if any(verdict.status == "wrong" for verdict in verdicts) else 0


@root.command()
@click.argument("file", type=click.Path(readable=False, allow_dash=True))
@as_json
def check(file: str, json_: bool) -> int:
    """Judge a state file: FILE, or - for standard input.

    Needs no daemon. Shows how many objects it declares, which names are not the file's own,
    which fields are hidden as secrets, and what looks wrong. The exit code is 1 if the daemon
    would refuse it.
    """
    from opdbus.drift import observed_kinds
    from opdbus.state import judge

    name = "standard input" if file == "-" else file
    try:
        found = judge.judge(_read_content(file, Path(name)), observed_kinds.puzzles)
    except StateFileError as error:
        if not json_:
            raise
        output.print_json({"file": name, "valid": False, "error": str(error)})
        return error.exit_code
    if json_:
        output.print_json({"file": name, "valid": True, **_judgement_json(found)})
    else:
        _print_judgement(name, found)
    return 0


def _read_content(file: str, name: Path) -> dict[str, Json]:
    from opdbus.state import file as state_file

    if file != "-":
        return state_file.parse(state_file.read_bytes(name), name)
    data = sys.stdin.buffer.read(state_file.MAX_BYTES + 1)
    state_file.require_size(len(data), name)
    return state_file.parse(data, name)


def _judgement_json(found: Judgement) -> dict[str, Any]:
    """Return a judgement for JSON."""
    objects = ((*names, count) for names, count in found.objects.items())
    hidden = ((*names, count) for names, count in found.hidden.items())
    return {
        "objects": output.as_dicts(("plugin", "kind", "count"), objects),
        "hidden": output.as_dicts(("plugin", "kind", "field", "count"), hidden),
        "names": {
            key: ["/".join(object_id) for object_id in getattr(found, key)]
            for key in ("made", "cut", "redacted")
        },
        "not_observed": _unobserved_kinds(found),
        "warnings": list(found.warnings),
    }


def _print_judgement(name: str, found: Judgement) -> None:
    count = sum(found.objects.values())
    objects = f"{count:,} {plural('object', count)}"
    print(output.escape_hidden(f"{name}: the daemon takes it, with {objects}"))
    if count:
        print()
        rows = [(*key, n) for key, n in found.objects.items()]
        output.print_table(("plugin", "kind", "objects"), rows)
    hidden = [f"{a}/{b} {field} ({n})" for (a, b, field), n in found.hidden.items()]
    names = {
        "made": _list_names(found.made, "from the content, since the file has none"),
        "cut": _list_names(found.cut, "since they are too long"),
        "redacted": _list_names(found.redacted, "since they hold secrets"),
    }
    output.print_section("names that are not the file's", names)
    output.print_section("secrets", {"hidden": output.join_lines(hidden)})
    output.print_section("not observed", {"objects": output.join_lines(_unobserved_kinds(found))})
    output.print_section("probably not meant", {"warning": output.join_lines(found.warnings)})


def _unobserved_kinds(found: Judgement) -> list[str]:
    """Return a line for each declared kind that op-dbus does not observe: it cannot drift."""
    from opdbus.drift import observed_kinds

    kind_ids = (kind_id for kind_id in found.objects if not observed_kinds.is_observed(kind_id))
    return ["{}/{}: {}".format(*kind_id, observed_kinds.why_not(kind_id)) for kind_id in kind_ids]


def _list_names(object_ids: Sequence[ObjectId], why: str) -> str:
    """Return the number of objects, why they are listed, and the first names, one a line."""
    if not object_ids:
        return ""
    names = ["/".join(object_id) for object_id in object_ids[:_MOST_NAMES]]
    more = len(object_ids) - len(names)
    lines = [f"{len(object_ids):,} {why}:", *names]
    return output.join_lines([*lines, f"and {more:,} more"] if more else lines)
