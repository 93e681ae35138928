"""The packages of `make packages` on a booted host of Debian alone.

`PYTHONPATH=tests python -m system.packaged bookworm --json FILE` measures an installation.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from system.booting import booted, why_not
from system.host import PATIENCE_SECONDS, Host

# The number that a package's version has for each release of Debian.
SUITES = {"bookworm": 12, "trixie": 13}
ROOM = "/usr/lib/op-dbus"
STATE_DIR = "/var/lib/op-dbus"
# its answer in a system of nothing but the packages below
QUESTION, ANSWER = "what is the message bus between programs?", "systemd/unit/dbus.service"
# rpm installs beside dpkg, but knows nothing of what that has installed
_NEEDED = "systemd,systemd-sysv,dbus,polkitd,python3,rpm"
PLACE = "/root/packages"
_UNIT = "op-dbus.service"


def find(folder: Path, suite: str) -> list[Path]:
    """Give the packages for a release of Debian; none if they are not all there."""
    patterns = (f"op-dbus_*+deb{SUITES[suite]}_*.deb", "op-dbus-model-medium_*.deb")
    found = [path for pattern in patterns for path in sorted(folder.glob(pattern))[-1:]]
    return found if len(found) == len(patterns) else []


def find_one(folder: Path, suite: str, name: str) -> Path:
    """Give the newest package of a name for a release of Debian, or for all."""
    fits = re.compile(rf"{name}_.*(\+deb{SUITES[suite]}_|_all\.)")
    return max(path for path in folder.glob("*.deb") if fits.match(path.name))


def find_rpms(folder: Path, host: Host) -> list[Path]:
    """Give the packages of rpm for a host's Python."""
    minor = host.ask("python3", "-c", "import sys; print(sys.version_info.minor)")
    patterns = (f"op-dbus-0*.py3{minor}.*.rpm", f"*-gateway-*.py3{minor}.*.rpm", "*-medium-*.rpm")
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))[-1:]]


def reason_against(folder: Path, suite: str) -> str:
    """Say why the packages cannot be installed here; empty if they can."""
    if not find(folder, suite):
        return f"{folder} has no packages for {suite}: `make packages` there"
    if not shutil.which("mmdebstrap"):
        return "there is no mmdebstrap: `apt install mmdebstrap`"
    return why_not()


def make_root(suite: str, scratch: Path, more: str = "") -> Path:
    """Make the root of a host of Debian alone, with more of its packages, separated by commas."""
    root = scratch / suite
    make = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={_NEEDED},{more}",
        suite,
        str(root),
    ]
    subprocess.run(make, check=True, capture_output=True)
    return root


@contextmanager
def fresh(folder: Path, suite: str, scratch: Path, more: str = "") -> Iterator[Host]:
    """Boot a host of Debian alone, which has the packages in a folder, not installed.

    More of Debian's own packages, separated by commas, are installed.
    """
    with boot(make_root(suite, scratch, more), find(folder, suite)) as host:
        yield host


@contextmanager
def boot(root: Path, packages: Sequence[Path]) -> Iterator[Host]:
    """Boot a host with a root, which stays as it is, and files of packages, not installed."""
    with booted("dbus", base=root) as host:
        place = host.path(PLACE)
        place.mkdir()
        for package in packages:
            shutil.copy(package, place)
        yield host


def install(host: Host) -> None:
    """Install, or upgrade to the same version, as an administrator does without a network."""
    host.ask("sh", "-c", f"apt-get install --yes --reinstall {PLACE}/*.deb")


def started(host: Host) -> float:
    """Give the time of this machine's clock at which the service was started."""
    return int(host.show(_UNIT, "ExecMainStartTimestampMonotonic")) / 1e6


def until_answered(host: Host) -> float:
    """Ask until the answer is right; return the seconds since the service was started."""
    end = time.monotonic() + PATIENCE_SECONDS
    command = ("op-dbus", "search", QUESTION, "--kind", "unit", "-n", "1", "--quiet")
    while time.monotonic() < end:
        if (done := host.run(*command)).stdout.strip() == ANSWER:
            return time.monotonic() - started(host)
    raise AssertionError(f"{QUESTION} is answered by {done.stdout}{done.stderr}\n{host.log()}")


def until_ready(host: Host) -> float:
    """Wait until all objects have the final vectors; return the seconds since it started."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        status = json.loads(host.run("op-dbus", "status", "--json").stdout or "{}")
        if (status.get("State"), status.get("Pending")) == ("ready", 0):
            return time.monotonic() - started(host)
        time.sleep(0.2)
    raise AssertionError(f"it is not ready\n{host.log()}")


def _mib(host: Host, *paths: str) -> dict[str, int]:
    lines = host.ask("sh", "-c", f"du -sm {' '.join(paths)}").splitlines()
    return {Path(path).name: int(size) for size, path in map(str.split, lines)}


def measure(folder: Path, suite: str, scratch: Path) -> dict[str, Any]:
    """Install on a fresh host, and give sizes, times and memory."""
    with fresh(folder, suite, scratch) as host:
        before = sum(_mib(host, "/usr", "/etc").values())
        install(host)
        answered, ready = until_answered(host), until_ready(host)
        pid = host.show(_UNIT, "MainPID")
        status = dict(
            line.split(":\t", 1)
            for line in host.path(f"/proc/{pid}/status").read_text().split("\n")[:-1]
        )
        parts = _mib(host, f"{ROOM}/lib/python3*/site-packages/*", "/usr/share/op-dbus/*")
        return {
            "suite": suite,
            "machine": f"{os.cpu_count()} processors, {os.uname().sysname} {os.uname().machine}",
            "packages MB": {
                path.name: round(path.stat().st_size / 1e6, 1) for path in find(folder, suite)
            },
            "installed MiB": sum(_mib(host, "/usr", "/etc").values()) - before,
            "parts MiB": {
                name: size for name, size in sorted(parts.items(), key=lambda p: -p[1]) if size >= 4
            },
            "state MiB": _mib(host, STATE_DIR)["op-dbus"],
            "first right answer s": round(answered, 1),
            "ready s": round(ready, 1),
            "memory MiB": {
                name: int(status[key].split()[0]) // 1024
                for name, key in (("now", "VmRSS"), ("most", "VmHWM"))
            },
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+", choices=SUITES)
    parser.add_argument("--packages", type=Path, default=Path("dist"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="op-dbus-packages-") as scratch:
        report = [measure(given.packages, suite, Path(scratch)) for suite in given.suites]
    print(text := json.dumps(report, indent=2))
    if given.json:
        given.json.write_text(text + "\n")
