"""Links into a file system that hangs, of FUSE without a server, cost one row each."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import asyncio, json, os, sys
from pathlib import Path
from harness.hung_mount import mount_what_hangs

top = Path(sys.argv[1])
try:
    mount_what_hangs(top / "away")
except OSError as error:
    print(error)
    os._exit(77)

from harness.observing import observed
from opdbus.observe.core.report import Observer
from opdbus.observe.host.config_files import Files, Sources
from opdbus.observe.host.cron import Cron
from opdbus.observe.packages.documents import Places
from opdbus.observe.systemd.unit_files import describe_units
from opdbus.platform.regular_files import answers
from opdbus.state.watch import Watch

async def no_services(names):
    return []

async def main():
    found = {}
    (top / "cron").mkdir()
    source = Cron(top / "etc", "", os.getuid(), no_services)
    async with observed(top / "cron", Observer("cron", "cron", source.observe)) as host:
        await host.until(lambda: host.status.state == "up")
        found["jobs"], found["detail"] = sorted(host.names), host.status.detail
    (top / "files").mkdir()
    sources = Sources(Places(dpkg=top / "dpkg"), top, (top / "units",), top / "etc")
    async with observed(top / "files", Observer("files", "files", Files(sources).observe)) as host:
        await host.until(lambda: host.status.state == "up")
        found["files"] = sorted(host.names)
    units = ["near.service", "far.service"]
    found["units"] = describe_units(units, [str(top / "units")])
    # while the first look hangs, no second is begun
    found["answers"] = [answers(top / "units" / name) for name in units]
    with Watch([str(top / "etc" / "far.conf")]):
        print(json.dumps(found))

asyncio.run(main())
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Observe a host with links to a file system that hangs, in a process of its own."""
    top = tmp_path_factory.mktemp("hung")
    for folder in ("away", "etc/cron.d", "etc/cron.daily", "units", "dpkg"):
        (top / folder).mkdir(parents=True)
    (top / "etc/cron.daily/rotate").write_text("")
    (top / "etc/cron.daily/rotate").chmod(0o755)
    (top / "etc/cron.d/sane").write_text("0 3 * * * root /opt/a\n")
    (top / "units/near.service").write_text("[Unit]\nDescription=Near\n")
    (top / "etc/near.conf").write_text("")
    for link in (
        *("etc/crontab", "etc/cron.d/far", "etc/cron.daily/far", "etc/cron.weekly"),
        *("units/far.service", "units/far.service.d", "etc/far.conf"),
    ):
        (top / link).symlink_to(top / "away" / "x")
    conffiles = "".join(f" {top}/etc/{name}.conf {'0' * 32}\n" for name in ("near", "far"))
    (top / "dpkg/status").write_text(
        "Package: a\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n"
        f"Conffiles:\n{conffiles}"
    )
    command = [sys.executable, "-c", PROGRAM, str(top)]
    here = Path(__file__).parent.parent
    done = subprocess.run(
        command, check=False, cwd=here, capture_output=True, text=True, timeout=120
    )
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) | {"top": str(top)}
    return result


def test_cron_lists_all_others(found: dict[str, Any]) -> None:
    """A crontab, a script or a folder that hangs is left out and noted; other jobs are listed."""
    etc = f"{found['top']}/etc"
    assert found["jobs"] == [f"cron/job/{etc}/cron.d/sane a", f"cron/job/{etc}/cron.daily/rotate"]
    left_out = f"{etc}/cron.d/far, {etc}/crontab, {etc}/cron.daily/far"
    assert f"3 files not read or not understood: {left_out}" in found["detail"]


def test_configuration_files_are_listed(found: dict[str, Any]) -> None:
    """A configuration file whose link hangs hides no other."""
    files = {f"files/file/{found['top']}/etc/{name}.conf" for name in ("near", "far")}
    assert files <= set(found["files"])


def test_unit_files_are_read(found: dict[str, Any]) -> None:
    """A unit file whose link hangs hides no other, and no folder of drop-ins does."""
    assert found["units"]["near.service"] == {"description": "Near"}
    assert found["answers"] == [True, False]
