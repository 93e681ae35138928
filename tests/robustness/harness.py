"""A made-up state of any size, and the wait until a daemon serves it: benchmarks use them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

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
