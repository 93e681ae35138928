"""Write docs/recording.svg and docs/top.svg: op-dbus as a terminal of 80 columns shows it."""

import fcntl
import html
import io
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from harness.running import Bus, Running
from harness.screens import Screen
from rich.console import Console
from rich.text import Text

from opdbus import config
from opdbus.models import folder
from opdbus.models.level_table import LEVELS

ROOT = Path(__file__).parents[2]
WIDTH = 80
# of one letter, in rich's SVG
CELL = 12.2
_LINE = re.compile(
    r'x="([\d.]+)"( y="[\d.]+" )textLength="[\d.]+"([^>]*)>((?:&#160;)*)([^<]*?)(?:&#160;)*<'
)
COMMANDS = (
    "op-dbus search -n 2 'what keeps the clock right?'",
    "op-dbus search -n 2 'which disk is failing?'",
    "op-dbus search -n 2 'who has administrator rights?'",
)
OBSERVED = "cron,devices,files,filesystems,kernel,network,packages,users"
DECLARED = {name: {"active_state": "active"} for name in ("nginx.service", "chrony.service")}
UNITS = {
    "up": {"active_state": "active", "sub_state": "running"},
    "down": {"active_state": "inactive", "sub_state": "dead"},
    "failed": {"active_state": "failed", "sub_state": "failed", "result": "exit-code"},
}
HAPPENED = (
    [(f"{name}.service", "up") for name in ("nginx", "chrony", "postgresql", "ssh", "cron")],
    [("postgresql.service", "down"), ("chrony.service", "down")],
    [("postgresql.service", "up")],
    [("nginx.service", "failed")],
)


def shown(daemon: Running, command: str) -> str:
    """Run a command on a terminal of its own, and give what it shows there."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    environ = {"OP_DBUS_BUS": daemon.bus, "TERM": "xterm-256color", "HOME": "/nonexistent"}
    words = [sys.executable, "-m", "opdbus", *shlex.split(command)[1:]]
    with subprocess.Popen(words, env=environ, cwd=ROOT, stdout=inner, stderr=inner) as process:
        os.close(inner)
        parts = []
        while part := _read(outer):
            parts.append(part)
    os.close(outer)
    assert process.returncode == 0, b"".join(parts)
    return b"".join(parts).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the program has closed its side
        return b""


def answers(home: Path, bus: str, console: Console) -> None:
    """Show questions about the example, and their answers."""
    with _serving(home, bus, STATE_FILE=ROOT / "state.example.json") as daemon:
        for command in COMMANDS:
            console.print(f"[green]$[/] [bold]{command}[/]", highlight=False)
            console.print(Text.from_ansi(shown(daemon, command)), soft_wrap=True)


def live(home: Path, bus: str, console: Console) -> None:
    """Show `op-dbus top` beside a host on which services fail and restart."""
    declared = home / "state.json"
    declared.write_text(json.dumps({"version": 1, "plugins": {"systemd": {"units": DECLARED}}}))
    with _serving(home, bus, STATE_FILE=declared, OBSERVE=OBSERVED) as daemon:
        for units in HAPPENED:
            unit = {"plugin": "systemd", "kind": "unit"}
            objects = [{**unit, "name": name, "properties": UNITS[is_]} for name, is_ in units]
            daemon.cli("publish", "units", stdin=json.dumps(objects))
        environ = {"OP_DBUS_BUS": bus, "HOME": "/nonexistent"}
        with Screen(environ, "top", columns=WIDTH) as screen:
            # a search, so that there is a time to tell, and what drifted, told after 2 seconds
            daemon.cli("search", "web server")
            screen.until(lambda text: " ms to a" in text and "nginx.service: declared" in text)
            console.print(Text.from_ansi(screen.coloured), soft_wrap=True)


def _serving(home: Path, bus: str, **settings: object) -> Running:
    """Start a daemon, in a precision that needs no grading first."""
    daemon = Running(home, bus, PRECISION="fp32", **settings).start()
    daemon.wait_for_log("vectorized")
    return daemon


PICTURES = {"recording": answers, "top": live}


def main() -> None:
    """Write the pictures that are named, or all of them, beside daemons with the medium model."""
    folder.load_model(LEVELS["medium"], config.load({"HOME": "/nonexistent"}))
    for name in sys.argv[1:] or PICTURES:
        console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=True)
        bus = Bus()
        try:
            with tempfile.TemporaryDirectory() as home:
                PICTURES[name](Path(home), bus.address, console)
        finally:
            bus.kill()
        svg = console.export_svg(title="op-dbus", unique_id="op-dbus")
        # only fonts that the reader has: the picture loads nothing from elsewhere
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
        svg = re.sub(r"font-family: [^;]*", "font-family: monospace", svg)
        picture = ROOT / "docs" / f"{name}.svg"
        picture.write_text(_LINE.sub(_trimmed, svg), encoding="utf-8")


def _trimmed(line: re.Match[str]) -> str:
    """Place a text where its first letter is: some programs leave out blanks at the beginning."""
    x, y, more, blanks, text = line.groups()
    at, long = float(x) + blanks.count(";") * CELL, len(html.unescape(text)) * CELL
    return f'x="{at:g}"{y}textLength="{long:g}"{more}>{text}<'


if __name__ == "__main__":
    main()
