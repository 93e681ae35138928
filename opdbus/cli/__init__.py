"""Command line `op-dbus`: commands that call the daemon and print; `main` reports errors."""

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from opdbus.errors import OpDbusError


def main() -> None:
    """Run the command line and exit with its code."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # Exact search multiplies one matrix by one vector: a second thread only costs memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    modules(*sys.argv[1:2])
    from opdbus.cli.root import OutputClosed, root

    # where the parent process closed them
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 -- to the end
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 -- to the end
    # names may contain characters that this terminal cannot encode
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = root(standalone_mode=False, prog_name="op-dbus")
        sys.stdout.flush()
        sys.exit(code)
    except OpDbusError as error:
        from opdbus.cli import output

        # a name in it may have a newline: only the first line begins like one of ours
        first, *more = f"op-dbus: {error}".split("\n")
        output.print_note(output.join_lines([first, *(f"  {each.strip()}" for each in more)]))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except (BrokenPipeError, OutputClosed):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


# The modules that add commands to the root, each with the commands that need it.
_COMMANDS: Final = {
    "local": "daemon run config doctor check",
    "status": "status metrics levels show",
    "top": "top",
    "drifting": "drift",
    "declaring": "declare",
    "find_objects": "ask search similar fields list",
    "show_insight": "topics odd",
    "mapping": "map",
    "show_history": "changes history",
    "alerts": "notify",
    "proving": "history",
    "facts": "facts",
    "changing": "publish withdraw reload set-provider",
    "models": "models",
    "measure_engine": "vectorize providers devices bench",
    "gateway": "gateway",
    "gateway.mcp": "mcp",
    "gateway.open_page": "page",
    "fleet": "fleet",
    "fleet.ask_fleet": "fleet",
    "fleet.ask_peers": "fleet",
    "fleet.ask_past": "fleet",
    "fleet.serve_fleet": "fleet",
    "fleet.fleet_hosts": "fleet",
    "fleet.sending": "fleet",
    "fleet.working": "fleet",
    "fleet.witnessing": "fleet",
}


def modules(command: str = "") -> Sequence[ModuleType]:
    """Import the modules that add commands to the root, in the order of the manual.

    With the name of a command these are the modules that it needs, which takes half as long.
    Commands of the daemon itself come first, then those that query it, then those about engines.
    """
    needed = [name for name, commands in _COMMANDS.items() if command in commands.split()]
    return [import_module(f"opdbus.cli.{name}") for name in needed or _COMMANDS]
