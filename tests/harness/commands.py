"""Commands of `op-dbus` beside a daemon, and what they print."""

import json
import os
import sys
from collections.abc import Mapping
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from harness.running import Running, environment
from opdbus import cli

ESCAPE = "\x1b"


def run(daemon: Running, *arguments: str, stdin: str = "", **more: str) -> CompletedProcess[str]:
    """Run `op-dbus` beside a daemon, in this process.

    `Running.cli` starts it, for what has to do with its being a process.
    """
    environ = environment(daemon.bus, daemon.state_dir, daemon.settings) | more
    return invoke(environ, *arguments, stdin=stdin)


def invoke(environ: Mapping[str, str], *arguments: str, stdin: str = "") -> CompletedProcess[str]:
    """Run `op-dbus` in this process, without a terminal: starting Python takes far longer."""
    command = ["op-dbus", *arguments]
    with (
        patch.dict(os.environ, environ, clear=True),
        patch.object(sys, "argv", command),
        CliRunner().isolation(stdin) as (out, err, _),
    ):
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        sys.stderr.flush()
    return CompletedProcess(command, code, out.getvalue().decode(), err.getvalue().decode())


def ok(daemon: Running, *arguments: str, stdin: str = "") -> str:
    """Run a command that succeeds quietly, and give what it prints."""
    done = run(daemon, *arguments, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    assert ESCAPE not in done.stdout
    return done.stdout


def as_json(daemon: Running, *arguments: str) -> Any:
    """Run a command with --json, and give what it prints as values."""
    return json.loads(ok(daemon, *arguments, "--json"))


def fails(daemon: Running, code: int, *arguments: str, **more: str) -> str:
    """Run a command that fails with one sentence, and give the sentence."""
    done = run(daemon, *arguments, **more)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("op-dbus: ")
    assert "Traceback" not in done.stderr
    return done.stderr
