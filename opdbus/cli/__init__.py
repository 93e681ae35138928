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
    modules("local" if sys.argv[1:2] in (["daemon"], ["run"]) else _COMMANDS)
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


_COMMANDS: Final = (
    "local status top drifting declaring find_objects show_insight mapping show_history alerts"
    " proving facts changing models measure_engine gateway gateway.mcp gateway.open_page fleet"
    " fleet.ask_fleet fleet.ask_peers fleet.ask_past fleet.serve_fleet fleet.fleet_hosts"
    " fleet.sending fleet.working fleet.witnessing"
)


def modules(names: str = _COMMANDS) -> Sequence[ModuleType]:
    """Import the modules that add commands to the root, in the order of the manual.

    Commands of the daemon itself come first, then those that query it, then those about engines.
    """
    return [import_module(f"opdbus.cli.{name}") for name in names.split()]
