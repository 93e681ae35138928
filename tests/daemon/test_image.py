"""The image that `make image` made, run by an OCI runtime as etc/container/compose.yaml says."""

import asyncio
import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import ROOT
from daemon.test_container_files import STATE, mounts, service
from harness.running import Bus, run_program

from opdbus.client import Client
from opdbus.errors import OpDbusError

IMAGE = ROOT / "dist" / "image"
# a bus refuses who has no account
USER = pwd.getpwnam("nobody")
needs_image = pytest.mark.skipif(not IMAGE.exists(), reason="there is no image: make image")
needs_runtime = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("umoci") or not shutil.which("runc"),
    reason="an image is run by root with umoci and runc: apt install umoci runc",
)


class Container(NamedTuple):
    """A container that runs, the bus that it serves, and the command that runs it."""

    bus: str
    process: subprocess.Popen[bytes]
    runc: tuple[str, ...]
    name: str


def bundle_in(folder: Path, bus: str) -> Path:
    """Unpack the image, with the settings and mounts of the compose file, for a bus of our own."""
    bundle, state = folder / "bundle", folder / "state"
    state.mkdir()
    os.chown(state, USER.pw_uid, USER.pw_gid)
    run_program(["umoci", "unpack", "--image", f"{IMAGE}:latest", str(bundle)], check=True)
    file = bundle / "config.json"
    found: dict[str, Any] = json.loads(file.read_text())
    found["root"]["readonly"] = service()["read_only"]
    found["process"] |= {"terminal": False, "noNewPrivileges": True, "capabilities": {}}
    found["process"]["user"] = {"uid": USER.pw_uid, "gid": USER.pw_gid}
    found["process"]["env"] += ["OP_DBUS_VECTOR_LEVEL=static"]
    # no control group is made for it
    del found["linux"]["resources"]
    socket = Path(bus.removeprefix("unix:path=").partition(",")[0])
    found["process"]["env"] += [f"OP_DBUS_BUS=unix:path=/run/dbus/{socket.name}"]
    here = {STATE: str(state), "/run/dbus": str(socket.parent)}
    of_image = [m for m in found["mounts"] if m["destination"] not in {STATE, "/sys/fs/cgroup"}]
    found["mounts"] = of_image + [
        {
            "type": "none",
            "source": here.get(source, source),
            "destination": target,
            "options": ["rbind", "rw" if is_writable else "ro"],
        }
        for source, target, is_writable in sorted(mounts()[0])
        if Path(here.get(source, source)).exists()
    ]
    found["mounts"] += [{"type": "tmpfs", "source": "tmpfs", "destination": "/tmp"}]  # noqa: S108
    file.write_text(json.dumps(found))
    return bundle


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    """Run the image beside a private bus until the test ends."""
    bus, name = Bus(), f"op-dbus-test-{os.getpid()}"
    runc = ("runc", f"--root={tmp_path}/runc")
    # pytest's folders are for their owner alone
    folder = tempfile.TemporaryDirectory(prefix="op-dbus-image-")
    Path(folder.name).chmod(0o755)
    with folder, (tmp_path / "log").open("w") as log:
        bundle = bundle_in(Path(folder.name), bus.address)
        process = subprocess.Popen(
            [*runc, "run", f"--bundle={bundle}", name], stdout=log, stderr=log
        )
        yield Container(bus.address, process, runc, name)
        run_program([*runc, "delete", "--force", name])
        process.wait()
    bus.kill()


async def until_observed(container: Container, client: Client) -> dict[str, Any]:
    """Wait until each observer has listed what it sees, and give the status."""
    while container.process.poll() is None:
        with suppress(OpDbusError):  # it does not serve yet
            status = await client.status()
            is_listed = all(row[1] != "starting" for row in status["Observers"])
            if is_listed and status["State"] == "ready" and not status["Pending"]:
                return status
        await asyncio.sleep(0.05)
    raise AssertionError("the container has ended")


@needs_image
@needs_runtime
def test_it_observes_and_answers_without_rights(container: Container) -> None:
    """A user without capabilities, on a root that is read-only, sees the host and answers."""

    async def ask() -> tuple[dict[str, Any], list[Any]]:
        async with Client(container.bus) as client:
            return await until_observed(container, client), await client.search("root", 3, {})

    status, hits = asyncio.run(ask())
    assert status["Level"] == "static"
    observers = {name: (state, count) for name, state, count, _ in status["Observers"]}
    assert all(observers[name][0] == "up" for name in ("users", "files", "network", "host"))
    passwd = Path("/etc/passwd").read_text().splitlines()
    assert observers["users"][1] >= len(passwd)
    assert hits
    pid = json.loads(run_program([*container.runc, "state", container.name]).stdout)["pid"]
    rights = Path(f"/proc/{pid}/status").read_text()
    assert re.search(rf"^Uid:(\t{USER.pw_uid}){{4}}$", rights, re.MULTILINE)
    assert re.findall(r"^Cap\w+:\t(\w+)$", rights, re.MULTILINE) == ["0" * 16] * 5
    mounted = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    (root,) = (line.split() for line in mounted if line.split()[4] == "/")
    assert "ro" in root[5].split(",")
