"""Writes the manual pages into a folder; without one, the settings' file into this repository."""

import sys
from pathlib import Path

import commands
import interfaces
import settings

PAGES = {"op-dbus.1": commands, "op-dbus.env.5": settings, "org.opdbus.5": interfaces}
ENV = Path(__file__).parents[2] / "etc" / "op-dbus" / "op-dbus.env"

if len(sys.argv) > 1:
    for name, made in PAGES.items():
        Path(sys.argv[1], name).write_text(made.page(), encoding="utf-8")
else:
    ENV.write_text(settings.file(), encoding="utf-8")
