"""Commands of `op-dbus` beside a daemon, and what they print."""

import json
from typing import Any

from running import Running

ESCAPE = "\x1b"


def ok(daemon: Running, *arguments: str, stdin: str = "") -> str:
    """Run a command that succeeds quietly, and give what it prints."""
    done = daemon.cli(*arguments, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    assert ESCAPE not in done.stdout
    return str(done.stdout)


def as_json(daemon: Running, *arguments: str) -> Any:
    """Run a command with --json, and give what it prints as values."""
    return json.loads(ok(daemon, *arguments, "--json"))


def fails(daemon: Running, code: int, *arguments: str, **more: str) -> str:
    """Run a command that fails with one sentence, and give the sentence."""
    done = daemon.cli(*arguments, **more)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("op-dbus: ")
    assert "Traceback" not in done.stderr
    return str(done.stderr)
