"""Runs every benchmark whose figures README and docs quote: `make bench`, as root.

Each writes `results/NAME.json`, in place of its last report. `--only NAME...` runs some of them.
Peers need `make peers`; what is not there is left out of a report. `fleet_scale.py` with 10,000
hosts and `gpu/run.py` are run by hand. All together take about 90 minutes on two processors.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import Final

from harness import ROOT, say

RESULTS: Final = ROOT / "benchmarks" / "results"
# A script of this folder and its arguments, or another command.
SCRIPTS: Final = {
    "size": "size.py",
    "answers": "answers/run.py measure --levels static medium",
    "exams": "answers/run.py exams",
    "strangers": "answers/run.py strangers",
    "peers": "engine/peers.py --rounds 1",
    "http-servers": "http_load.py servers",
    "http-hostile": "http_load.py hostile --seconds 20",
    "fleet": "fleet.py hosts",
    "fleet-workers": "fleet.py workers",
}


def main() -> None:
    """Run each in a process of its own, and exit with 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*SCRIPTS, "host"], default=[*SCRIPTS, "host"])
    failed = []
    for name in parser.parse_args().only:
        report, began = RESULTS / f"{name}.json", time.monotonic()
        say(f"{name}...")
        if name == "host":
            command = ["make", "bench-host", f"REPORT={report}"]
        else:
            script, *arguments = SCRIPTS[name].split()
            place = str(ROOT / "benchmarks" / script)
            command = [sys.executable, place, *arguments, "--json", str(report)]
        code = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode
        say(f"{name}: {'failed' if code else 'done'} after {time.monotonic() - began:.0f} s")
        failed += [name] if code else []
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
