"""Writes manual pages and completions into a folder; without one, the settings' file here."""

import sys
from pathlib import Path

import commands
import interfaces
import settings
from click.shell_completion import get_completion_class

from opdbus.cli.root import root

PAGES = {"op-dbus.1": commands, "op-dbus.env.5": settings, "org.opdbus.5": interfaces}
ENV = Path(__file__).parents[2] / "etc" / "op-dbus" / "op-dbus.env"

if len(sys.argv) > 1:
    for name, made in PAGES.items():
        Path(sys.argv[1], name).write_text(made.page(), encoding="utf-8")
    for shell in ("bash", "zsh", "fish"):
        if completion := get_completion_class(shell):
            source = completion(root, {}, "op-dbus", "_OP_DBUS_COMPLETE").source()
            Path(sys.argv[1], shell).write_text(source, encoding="utf-8")
else:
    ENV.write_text(settings.file(), encoding="utf-8")
