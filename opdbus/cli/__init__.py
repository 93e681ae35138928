"""The command `op-dbus`: parses, asks the daemon, prints. One place turns errors into sentences."""

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from opdbus.errors import OpDbusError


def main() -> None:
    """Run the command line and exit with its code."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # Exact search multiplies one matrix by one vector: a second thread only costs memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    modules()
    from opdbus.cli.root import OutputClosed, root

    if sys.stdout is None:  # closed by who started us
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 -- to the end
    # whatever a name holds, it is printed as well as this terminal can
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = root(standalone_mode=False, prog_name="op-dbus")
        sys.stdout.flush()
        sys.exit(code)
    except OpDbusError as error:
        from opdbus.cli import output

        output.note(f"op-dbus: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except (BrokenPipeError, OutputClosed):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def modules() -> Sequence[ModuleType]:
    """Import what adds commands to the root, in the order of the manual.

    First being a daemon, then asking one, then what it runs with.
    """
    from opdbus.cli import (
        bench,
        changing,
        checking,
        distilling,
        drifting,
        engine,
        finding,
        history,
        insight,
        local,
        mapping,
        models,
        proving,
        questions,
        reading,
        status,
        top,
        vectorizing,
    )

    return (
        *(
            local,
            checking,
            status,
            top,
            reading,
            questions,
            drifting,
            finding,
            insight,
            mapping,
            history,
        ),
        *(proving, changing, vectorizing, models, distilling, engine, bench),
    )
