"""Commands that need no running daemon: daemon itself, config and doctor."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from opdbus import config
from opdbus.cli import output
from opdbus.cli.root import as_json, root, settings

# width of the longest verdict of doctor
_WIDTH = len("warning")


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
def config_(context: click.Context, json_: bool) -> None:  # noqa: FBT001
    """Show every setting, its value, and where it came from.

    Where systemd has the service op-dbus, root sees what that runs with, from
    /etc/op-dbus/op-dbus.env; others see the settings of their own shell's commands.
    """
    from opdbus.systemd import unit

    found = settings(context.obj)
    service = unit.find_unit() if found.bus == "system" and os.geteuid() == 0 else None
    if service:
        found = config.load(os.environ, context.obj, service=service.environ())
        output.note(f"what {unit.NAME} runs with; variables of this shell win over its own")
        for where in service.ignored():
            output.note(f"{where} {unit.IGNORED}")
    elif Path(unit.SETTINGS).parent.exists():
        hint = f"the service has settings of its own in {unit.SETTINGS}, which are not shown here"
        output.note(f"{hint}: `op-dbus doctor` checks them")
    if json_:
        rows = ((name, {"value": value, "source": at}) for name, value, at in found.rows())
        output.as_json(dict(rows))
    else:
        output.table(("setting", "value", "from"), found.rows())


@root.command()
@as_json
@click.pass_context
def doctor(context: click.Context, json_: bool) -> int:  # noqa: FBT001
    """Say what keeps op-dbus from working, and what to do.

    Where systemd has the service op-dbus, its settings are the ones that are checked; variables of
    this shell win over them. The exit code is 1 if something is wrong.
    """
    import asyncio

    from opdbus.doctor.examine import examine

    def load(service: Mapping[str, config.Given]) -> config.Config:
        return config.load(os.environ, context.obj, service=service)

    verdicts = asyncio.run(examine(load))
    if json_:
        output.as_json([verdict._asdict() for verdict in verdicts])
    else:
        for verdict in verdicts:
            colour = {"ok": "green", "warning": "yellow", "wrong": "red"}[verdict.status]
            label = output.style(verdict.status.ljust(_WIDTH), colour)
            output.labelled(label, _WIDTH, f"{verdict.subject}: {verdict.finding}")
            if verdict.advice:
                output.labelled(" " * _WIDTH, _WIDTH, verdict.advice)
    return 1 if any(verdict.status == "wrong" for verdict in verdicts) else 0
