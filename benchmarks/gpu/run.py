"""Prove and measure op-dbus on a CUDA machine that has nothing of ours, into one JSON report.

    python benchmarks/gpu/run.py --wheels FOLDER --out FOLDER [--quick] [--device cuda|cpu]

README.md beside this says what the folder of wheels holds. Each step is a process of its own with
a time limit, and the report is written after each, so whatever ends a run leaves what it found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, cast

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent

# The steps in the order of their worth, with their limits in seconds: of a whole run, and of a
# quick one.
STEPS: Final = {
    "environment": (30, 30),
    "providers": (30, 30),
    "models": (75, 40),
    "proof": (70, 40),
    "engine": (60, 20),
    "model": (90, 20),
    "tokenizing": (30, 30),
    "latency": (30, 30),
    "peer": (70, 15),
    "parity": (30, 12),
    "memory": (30, 30),
    "variants": (45, 30),
}
# All together; what no longer fits is left out, and the report says so.
LIMITS: Final = (540, 120)
# Short sentences a second, from texts to vectors in the host's memory, on an H200; and how many
# times sentence-transformers in fp16 on the same device.
TARGETS: Final = {"low": 450_000, "medium": 320_000, "high": 85_000, "times_peer": 3.0}


def unpacked(wheels: Path, scratch: Path) -> Path:
    """Install the folder's wheels, split ones joined, into a folder of their own."""
    site, joined = scratch / "site", scratch / "wheels"
    done = site / ".installed"
    if done.is_file():
        return site
    joined.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[Path]] = {}
    for part in sorted(wheels.glob("*.whl.part*")):
        parts.setdefault(part.name.rpartition(".part")[0], []).append(part)
    for name, pieces in parts.items():
        with (joined / name).open("wb") as whole:
            for piece in pieces:
                with piece.open("rb") as opened:
                    shutil.copyfileobj(opened, whole)
    files = [*sorted(wheels.glob("*.whl")), *sorted(joined.glob("*.whl"))]
    if not files:
        sys.exit(f"{wheels} holds no wheels; README.md beside {HERE / 'run.py'} says which")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--no-compile", "--target", site, *files], check=True)
    done.touch()
    return site


def libraries() -> list[str]:
    """Find the folders of the CUDA libraries in installed packages, such as torch's."""
    homes = [Path(home) for home in sys.path if home]
    return [str(found) for home in homes for found in sorted(home.glob("nvidia/*/lib"))]


def environment(site: Path | None) -> dict[str, str]:
    """Give the environment of the steps: our wheels first, and CUDA's libraries in reach."""
    paths = [str(site)] if site else []
    paths += [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    reach = [*libraries(), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, reach)),
        "ORT_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "true",
        "HF_HUB_OFFLINE": "1",
    }


class Report:
    """What was found so far, on disk after every change."""

    def __init__(self, path: Path, kit: dict[str, Any]) -> None:
        self._path = path
        self.content: dict[str, Any] = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "kit": {name: kit[name] for name in ("device", "quick")},
            "targets": TARGETS,
            "steps": {},
        }

    def put(self, step: str, name: str, value: object) -> None:
        """Add what a step found."""
        self.content["steps"].setdefault(step, {})[name] = value
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        part.replace(self._path)
        print(f"{step:12} {name}: {json.dumps(value)[:300]}", flush=True)


def step(name: str, limit: float, kit: dict[str, Any], env: dict[str, str], into: Report) -> None:
    """Run one step in a process that is killed at its limit, and keep each line of its findings."""
    began = time.monotonic()
    log = Path(kit["scratch"]) / f"{name}.log"
    command = [sys.executable, "-u", str(HERE / "steps.py"), name, json.dumps(kit)]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        ) as child,
    ):
        end = threading.Timer(limit, os.killpg, (child.pid, 9))
        end.start()
        for line in cast("IO[bytes]", child.stdout):
            if line.startswith(b'["'):
                into.put(name, *json.loads(line))
        code = child.wait()
        end.cancel()
        with suppress(ProcessLookupError):
            # what it may have left running
            os.killpg(child.pid, 9)
    seconds = round(time.monotonic() - began, 1)
    if code:
        last = log.read_text(errors="replace").strip().splitlines()[-12:]
        why = f"stopped at its limit of {limit} s" if seconds >= limit else f"ended with {code}"
        into.put(name, "failure", [why, *last])
    into.put(name, "seconds", seconds)


def summary(steps: dict[str, Any]) -> dict[str, Any]:
    """Compare the most short texts a second of each level with the targets."""
    found = {}
    for level in ("low", "medium", "high"):
        rates = {name: _most(steps, name, level, "texts") for name in ("engine", "model")}
        peer = _most(steps, "peer", level, "best", "float16")
        times = round(rates["engine"] / peer, 2) if peer else None
        found[level] = {**rates, "target": TARGETS[level], "peer": peer, "times_peer": times}
    return found


def _most(steps: dict[str, Any], step: str, level: str, key: str, end: str = "") -> float:
    found = steps.get(step, {})
    names = [name for name in found if name.startswith(f"{level} short") and name.endswith(end)]
    return max((found[name][key] for name in names), default=0)


def main() -> None:
    """Make ready, run the steps, and name the report."""
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    given.scratch.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    env = environment(unpacked(given.wheels, given.scratch) if given.wheels else None)
    kit = {
        "device": given.device,
        "quick": given.quick,
        "scratch": str(given.scratch),
        "model": str(given.model or ""),
        "precision": given.precision,
        "seconds": given.seconds or (0.3 if given.quick else 2.0),
    }
    path = given.out / "report.json"
    into, left_out = Report(path, kit), []
    for name in given.steps.split(",") if given.steps else STEPS:
        room = LIMITS[given.quick] - (time.monotonic() - began)
        if room < 5 and not given.steps:
            left_out.append(name)
            continue
        step(name, min(STEPS[name][given.quick], room), kit, env, into)
    into.put("all", "summary", summary(into.content["steps"]))
    into.put("all", "left out", left_out)
    into.put("all", "seconds", round(time.monotonic() - began, 1))
    print(path)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--wheels", type=Path, help="folder of wheels that this machine lacks")
    add("--out", type=Path, required=True, help="folder for report.json")
    add("--quick", action="store_true", help="within 2 minutes instead of 9")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--steps", default="", help=f"only these, comma-separated: {','.join(STEPS)}")
    add("--model", type=Path, help="a model folder to measure instead of all levels")
    add("--precision", default="", help="measure in fp32, or fp16, instead of the fastest")
    add("--seconds", type=float, help="how long one figure is measured")
    scratch = Path(tempfile.gettempdir()) / "op-dbus-gpu-kit"
    add("--scratch", type=Path, default=scratch, help="installed wheels, models and graphs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
