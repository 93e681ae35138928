"""Run the benchmarks and write one report, with the machine described, into results/.

The README's figures come from the newest report that is committed.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from opdbus import __version__
from opdbus.engine import cpus

HERE = Path(__file__).parent
PARTS = ("quality", "scale")
PACKAGES = ("onnxruntime-gpu", "onnxruntime", "numpy", "tokenizers", "dbus-fast")
# Processor features that decide which engine is fastest.
FEATURES = ("avx2", "avx512f", "avx512_vnni", "amx_bf16", "amx_int8")


def machine() -> dict[str, Any]:
    """Describe what the figures depend on."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(":") for line in info)
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    installed = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    return {
        "processor": fields.get("model name", platform.processor()),
        "processors": cpus.usable(),
        "features": [name for name in FEATURES if name in fields.get("flags", "").split()],
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "packages": {name: installed[name] for name in PACKAGES if name in installed},
    }


def main() -> None:
    """Run each part in a process of its own."""
    report: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "op-dbus": __version__,
        "machine": machine(),
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
