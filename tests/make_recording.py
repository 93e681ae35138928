"""Write docs/recording.svg: op-dbus on the example, as a terminal of 80 columns shows it."""

import fcntl
import html
import io
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

from rich.console import Console
from rich.text import Text
from running import Bus, Running

from opdbus import config
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS

ROOT = Path(__file__).parent.parent
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


def main() -> None:
    """Run the commands beside a daemon with the medium model, and write the picture."""
    folder.load(LEVELS["medium"], config.load({"HOME": "/nonexistent"}))
    console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=True)
    bus = Bus()
    try:
        with tempfile.TemporaryDirectory() as home:
            # in a precision that needs no grading first
            settings = {"STATE_FILE": ROOT / "state.example.json", "PRECISION": "fp32"}
            with Running(Path(home), bus.address, **settings) as daemon:
                daemon.wait_for_log("vectorized")
                for command in COMMANDS:
                    console.print(f"[green]$[/] [bold]{command}[/]", highlight=False)
                    console.print(Text.from_ansi(shown(daemon, command)), soft_wrap=True)
    finally:
        bus.kill()
    svg = console.export_svg(title="op-dbus", unique_id="op-dbus")
    # only fonts that the reader has: the picture loads nothing from elsewhere
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;]*", "font-family: monospace", svg)
    (ROOT / "docs" / "recording.svg").write_text(_LINE.sub(_trimmed, svg), encoding="utf-8")


def _trimmed(line: re.Match[str]) -> str:
    """Place a text where its first letter is: some programs leave out blanks at the beginning."""
    x, y, more, blanks, text = line.groups()
    at, long = float(x) + blanks.count(";") * CELL, len(html.unescape(text)) * CELL
    return f'x="{at:g}"{y}textLength="{long:g}"{more}>{text}<'


if __name__ == "__main__":
    main()
