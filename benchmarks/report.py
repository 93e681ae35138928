"""Run the benchmarks and write one report, with the machine described, into results/.

The README's figures come from the newest report that is committed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opdbus import __version__
from opdbus.bench import machine
from opdbus.engine.host import versions

HERE = Path(__file__).parent
PARTS = ("quality", "scale")
PACKAGES = ("onnxruntime-gpu", "onnxruntime", "numpy", "tokenizers", "dbus-fast")


def main() -> None:
    """Run each part in a process of its own."""
    report: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "op-dbus": __version__,
        "machine": {**asdict(machine.describe()), "packages": versions(PACKAGES)},
    }
    for part in PARTS:
        print(f"measuring {part}...", file=sys.stderr)
        done = subprocess.run(
            [sys.executable, str(HERE / f"{part}.py")], check=True, stdout=subprocess.PIPE
        )
        report[part] = json.loads(done.stdout)
    path = HERE / "results" / f"{report['date']}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
