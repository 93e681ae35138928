"""A real systemd, booted in namespaces of its own on this machine's files.

`PYTHONPATH=tests python -m system.booting dbus-broker bash` boots one and runs a shell inside.
"""

import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from system.host import Host

BOOT_SECONDS = 60.0
STOP_SECONDS = 15.0
_GROUPS = Path("/sys/fs/cgroup")
# a tenth of a second apart
_TRIES = 100
PREFIX = "op-dbus-tests-"
_BOOT = Path(__file__).with_name("boot.sh")
# cpuset is left out: its groups are born without processors, and systemd does not use it
_HIERARCHIES = "cpu cpuacct memory devices pids blkio freezer systemd unified".split()
_NAMESPACES = "--pid --mount --uts --ipc --net --cgroup".split()
# with the death signal, all of it ends with us, however we end
_UNSHARE = ["setpriv", "--pdeathsig=KILL", "unshare", "--fork", "--kill-child", *_NAMESPACES]
_PROGRAMS = (
    *("systemctl", "systemd-id128", "dbus-daemon", "dbus-broker", "/usr/lib/polkit-1/polkitd"),
    *("unshare", "nsenter", "setpriv", "pivot_root", "useradd", "pgrep", "ip"),
)
_PACKAGES = "dbus-daemon dbus-broker polkitd util-linux passwd procps iproute2"
_PROBE = """
mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" "$1/root" &&
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root" &&
mount -t proc proc "$1/root/proc" && mount -t sysfs -o ro sysfs "$1/root/sys"
"""


def why_not() -> str:
    """Say why no systemd can be booted here; empty if it can."""
    if os.geteuid() != 0:
        return "booting systemd in namespaces needs root"
    if missing := [program for program in _PROGRAMS if not shutil.which(program)]:
        return f"there is no {', '.join(missing)}: `apt install systemd {_PACKAGES}`"
    if not _own_groups():
        return f"no control group below {_GROUPS} can be written"
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as folder:
        command = [*_UNSHARE, "sh", "-c", _PROBE, "sh", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        return f"systemd cannot be booted in namespaces here: {done.stderr.strip()}"
    return ""


@contextmanager
def booted(bus: str, layer: Path | None = None, base: Path = Path("/")) -> Iterator[Host]:
    """Boot a host, and leave nothing of it behind.

    It has this machine's files, or those of another root, to which its changes never go, no
    network, and a system bus of its own: `dbus` or `dbus-broker`. A layer is a tree of files that
    it has besides.
    """
    sweep()
    with (
        tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as name,
        _grouped(Path(name).name) as own,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news,
    ):
        folder = Path(name)
        for part in ("root", "host"):
            (folder / part).mkdir()
        news.bind(str(folder / "host" / "notify"))
        news.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        process = _start(
            own, [str(_BOOT), name, bus, str(layer or ""), str(base)], folder / "console"
        )
        init = 0
        try:
            init = _booted(news, process, folder / "console")
            # systemd waits for whoever does not read what it says
            news.close()
            yield Host(init)
        finally:
            _stop(process, init)


def sweep() -> None:
    """Remove the folders and control groups of test runs that were killed."""
    for group in groups(PREFIX):
        if _is_left(group):
            _remove(group)
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)


def groups(prefix: str) -> list[Path]:
    """Give the control groups whose names begin so."""
    return [group for parent in _own_groups() for group in parent.glob(f"{prefix}*")]


def _is_left(path: Path) -> bool:
    """Tell whether the test run that made this is over."""
    pid = path.name.removeprefix(PREFIX).split("-")[0]
    return pid.isdecimal() and not Path("/proc", pid).exists()


def _own_groups() -> list[Path]:
    """Give our own control group in each hierarchy that systemd can use."""
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        own |= {name.removeprefix("name="): path.lstrip("/") for name in names.split(",")}
    if (_GROUPS / "cgroup.controllers").exists():
        found = [_GROUPS / own[""]]
    else:
        own["unified"] = own.get("", "")
        found = [_GROUPS / name / own[name] for name in _HIERARCHIES if name in own]
    return [path for path in found if os.access(path / "cgroup.procs", os.W_OK)]


@contextmanager
def _grouped(name: str) -> Iterator[list[Path]]:
    """Make a control group of this name in each hierarchy."""
    made = [parent / name for parent in _own_groups()]
    try:
        for group in made:
            group.mkdir()
        yield made
    finally:
        for group in made:
            _remove(group)


def _remove(group: Path) -> None:
    """Remove a control group and those below it, whose processes have all ended."""
    for folder, _, _ in os.walk(group, topdown=False):
        # another test run may be faster, and the kernel slower to let the last process go
        for _ in range(_TRIES):
            try:
                Path(folder).rmdir()
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.1)
            else:
                break


def _start(own: list[Path], command: list[str], console: Path) -> subprocess.Popen[bytes]:
    procs = " ".join(shlex.quote(str(group / "cgroup.procs")) for group in own)
    enter = f'for group in {procs}; do echo $$ >"$group" || exit; done; exec "$@"'
    with console.open("wb") as log:
        return subprocess.Popen(
            ["sh", "-c", enter, "sh", *_UNSHARE, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _booted(news: socket.socket, process: subprocess.Popen[bytes], console: Path) -> int:
    """Wait until systemd says that it has booted, and give its process, which the kernel tells."""
    news.settimeout(1.0)
    for _ in range(int(BOOT_SECONDS)):
        assert process.poll() is None, f"systemd did not boot:\n{console.read_text()}"
        with suppress(TimeoutError):
            text, credentials, _, _ = news.recvmsg(4096, socket.CMSG_SPACE(12))
            if b"READY=1" in text:
                return int(struct.unpack("3i", credentials[0][2])[0])
    raise AssertionError(f"systemd did not boot in {BOOT_SECONDS} s:\n{console.read_text()}")


def _stop(process: subprocess.Popen[bytes], init: int) -> None:
    """Shut down as a host does, or else as a power cut does."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if init:
            os.kill(init, signal.SIGRTMIN + 4)
            process.wait(STOP_SECONDS)
    process.kill()
    process.wait()


if __name__ == "__main__":
    if reason := why_not():
        sys.exit(reason)
    kind, *inside = sys.argv[1:]
    with booted(kind, Path(os.environ["LAYER"]) if "LAYER" in os.environ else None) as booted_host:
        sys.exit(subprocess.run(booted_host.enter(*inside), check=False).returncode)
