"""Times of the page's views in Chromium with very many objects: see docs/page.md.

Needs `make clients` and chromium.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from gateway.test_page import open_page
from harness.gateways import Gateway
from harness.running import Bus, Running
from sizes import objects, until_all_have_vectors

from opdbus.client import Client

ROOT = Path(__file__).parent.parent
NODE = ROOT / ".clients/node"


async def fill(bus: str, count: int) -> None:
    """Publish objects, and wait until all have vectors."""
    await until_all_have_vectors(bus)
    async with Client(bus) as client:
        for first in range(0, count, 10_000):
            made = objects(min(10_000, count - first), first=first, seed=first + 1)
            rows = [(one.plugin, one.kind, one.name, dict(one.properties)) for one in made]
            await client.publish("sizes", rows)
    await until_all_have_vectors(bus)


def measure(count: int, folder: Path) -> dict[str, Any]:
    """Return the times of each view, in milliseconds."""
    bus = Bus()
    settings = {"VECTOR_LEVEL": "static", "STATE_FILE": ROOT / "state.example.json"}
    settings["PUBLISH_OBJECTS"] = count
    try:
        with Running(folder, bus.address, **settings) as daemon:
            began = time.monotonic()
            asyncio.run(fill(bus.address, count))
            filled = time.monotonic() - began
            with Gateway(daemon, folder) as gateway, open_page(gateway) as (link, _):
                command = ["node", str(ROOT / "tests/clients/page_times.mjs"), link, str(NODE)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
    finally:
        bus.kill()
    return {"objects": count, "filled s": round(filled, 1), "views": json.loads(done.stdout)}


def main() -> None:
    """Print the times as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(measure(given.objects, Path(scratch)), indent=1))


if __name__ == "__main__":
    main()
