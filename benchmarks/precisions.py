"""Have the accuracy gate grade every precision of every level, and write its reports into results/.

With a folder, what is kept there of graphs and reports is used. OP_DBUS_MODEL_DIR has the models.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from opdbus import config
from opdbus.bench import machine
from opdbus.engine.provider_chain import Chain
from opdbus.models import folder
from opdbus.models.level_table import LEVELS

HERE = Path(__file__).parent


async def graded(level: str, state: str) -> object:
    """Return the gate's report about a level on `cpu`."""
    settings = config.load(os.environ, {"state_dir": state, "execution_provider": "cpu"})
    proven = await Chain(folder.load_model(LEVELS[level], settings), settings).choose()
    return asdict(proven.report) if proven.report else None


def main() -> None:
    """Grade the levels that have a graph."""
    with tempfile.TemporaryDirectory() as scratch:
        state = sys.argv[1] if len(sys.argv) > 1 else scratch
        levels = {name: asyncio.run(graded(name, state)) for name in ("low", "medium", "high")}
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    report = {"date": date, "machine": asdict(machine.describe()), "levels": levels}
    path = HERE / "results" / f"{date}-precisions.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
