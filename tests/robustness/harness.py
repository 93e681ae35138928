"""What the robustness runs share: a made-up state, the command line, and the report."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opdbus import __version__
from opdbus.bench.machine import describe
from opdbus.client import Client
from opdbus.errors import OpDbusError

QUESTIONS = (
    "what keeps the clock right?",
    "which service sends mail?",
    "container for the shop",
    "who resolves names?",
    "interface eth17",
    "nightly copy of the database",
)
ROLES = "mail web database cache backup monitoring proxy directory print queue".split()
PLACES = "Vienna Linz Graz Salzburg Innsbruck Bregenz Klagenfurt Villach Wels Steyr".split()


def state(count: int) -> dict[str, Any]:
    """Make a believable state of `count` objects, each with a text of its own."""
    units = {
        f"{ROLES[i % 10]}-{i}.service": {
            "description": f"{ROLES[i % 10]} server {i} for the office in {PLACES[i // 10 % 10]}",
            "active_state": "active",
            "enabled": i % 3 > 0,
            "properties": {
                "ExecStart": f"/usr/sbin/{ROLES[i % 10]}d --port {2000 + i}",
                "MainPID": i,
            },
        }
        for i in range(count // 2)
    }
    interfaces = [
        {
            "name": f"eth{i}",
            "type": "ethernet",
            "description": f"cable {i} to {PLACES[i % 10]}",
            "ipv4": {
                "enabled": True,
                "address": [{"ip": f"10.{i >> 8 & 255}.{i & 255}.1", "prefix": 24}],
            },
        }
        for i in range(count - count // 2)
    ]
    return {
        "version": 1,
        "plugins": {"systemd": {"units": units}, "net": {"interfaces": interfaces}},
    }


async def until_ready(bus: str) -> None:
    """Wait until the daemon serves and every object has its vector, however long that takes."""
    async with Client(bus) as client:
        while True:
            with suppress(OpDbusError):
                status = await client.status()
                if status["State"] == "ready" and not status["Pending"]:
                    return
            await asyncio.sleep(0.01)


def parser(text: str | None, objects: int = 0) -> argparse.ArgumentParser:
    """Make a parser with the options that most runs have."""
    made = argparse.ArgumentParser(description=text)
    made.add_argument("--json", type=Path, help="write the report there")
    if objects:
        made.add_argument("--objects", type=int, default=objects)
        made.add_argument("--tiny", action="store_true", help="with a tiny model")
    return made


def write(given: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """Give the report of what was found, written as JSON where `--json` says."""
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    report = {"date": today, "op-dbus": __version__, "machine": describe().line, **found}
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def finish(given: argparse.Namespace, found: dict[str, Any], failures: list[str]) -> int:
    """Print and write what was found, and give the exit code.

    Readings of each second are written only.
    """
    report = write(given, found)
    shown = {name: value for name, value in report.items() if not name.endswith("each second")}
    print(json.dumps(shown, indent=1))
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0
