"""How many processors we may use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opdbus.engine import cpus


def host(root: Path, cgroup: str | bytes, files: dict[str, str | bytes]) -> Path:
    """Make a root folder with our cgroups and their files."""
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def test_no_cgroups_leave_the_affinity(tmp_path: Path) -> None:
    """Use every processor of the affinity where nothing sets a quota."""
    assert cpus.usable(tmp_path) == len(os.sched_getaffinity(0))


def test_affinity_counts() -> None:
    """Use one processor where the affinity holds one."""
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from opdbus.engine import cpus; print(cpus.usable())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert answer.stdout.strip() == b"1"


_ONE = """
import json, os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from opdbus import Embedder
found = []
settings = {"model": sys.argv[1], "state_dir": sys.argv[2], "precision": "fp32"}
for provider in ("cpu:onnxruntime", "cpu:openvino"):
    with Embedder(provider=provider, **settings) as e:
        placement, solo = e.engine.proven.placement, e.engine.proven.solo
        e.embed(["mail"])
        lanes = e.engine.scheduler.lanes
        found.append([e.provider, placement.threads, placement.lanes, lanes, solo is None])
print(json.dumps(found))
"""


def test_one_processor_is_one_lane(tiny_model: Path, tmp_path: Path) -> None:
    """Run one thread, one lane and no session for single texts where there is one processor."""
    answer = subprocess.run(
        [sys.executable, "-c", _ONE, tiny_model, tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [[name, 1, 1, 1, True] for name in ("cpu:onnxruntime", "cpu:openvino")]
    assert json.loads(answer.stdout) == expected


def test_v2_quota(tmp_path: Path) -> None:
    """Read quota and period of our own group in cgroup v2."""
    root = host(tmp_path, "0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"})
    assert cpus.quota(root) == 1.5


def test_v2_tightest_ancestor_counts(tmp_path: Path) -> None:
    """Take the smallest quota of a group and of those above it."""
    files = {
        "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
        "sys/fs/cgroup/a/cpu.max": "50000 100000",
        "sys/fs/cgroup/cpu.max": "max 100000",
    }
    assert cpus.quota(host(tmp_path, "0::/a/b\n", files)) == 0.5


def test_v2_inside_a_container(tmp_path: Path) -> None:
    """Read the mount's root where the group's own path is not visible."""
    root = host(tmp_path, "0::/docker/1f\n", {"sys/fs/cgroup/cpu.max": "300000 100000"})
    assert cpus.quota(root) == 3.0


def test_v2_namespaced_path_above_the_mount(tmp_path: Path) -> None:
    """Read the mount's root for a group that lies above our cgroup namespace."""
    root = host(tmp_path, "0::/../../x\n", {"sys/fs/cgroup/cpu.max": "200000 100000"})
    assert cpus.quota(root) == 2.0


def test_v1_quota(tmp_path: Path) -> None:
    """Read quota and period of the cpu controller in cgroup v1, and of no other controller."""
    files = {
        "sys/fs/cgroup/cpu/u/cpu.cfs_quota_us": "250000",
        "sys/fs/cgroup/cpu/u/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu/cpuset/cpu.cfs_quota_us": "1000",
        "sys/fs/cgroup/cpu/cpuset/cpu.cfs_period_us": "100000",
    }
    root = host(tmp_path, "5:cpuset:/cpuset\n4:cpu,cpuacct:/u\n1:name=systemd:/x\n", files)
    assert cpus.quota(root) == 2.5


def test_v1_without_a_limit(tmp_path: Path) -> None:
    """Take -1 as no quota."""
    files = {
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    assert cpus.quota(host(tmp_path, "4:cpu:/\n", files)) is None


def test_quota_of_less_than_one(tmp_path: Path) -> None:
    """Use one processor at least, and round a quota up."""
    root = host(tmp_path, "0::/\n", {"sys/fs/cgroup/cpu.max": "10000 100000"})
    assert cpus.usable(root) == 1


def test_quota_above_the_affinity(tmp_path: Path) -> None:
    """Use no more processors than the affinity holds, whatever the quota."""
    root = host(tmp_path, "0::/\n", {"sys/fs/cgroup/cpu.max": "99900000 100000"})
    assert cpus.usable(root) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("cgroup", "limit"),
    [
        ("0::/\n", ""),
        ("0::/\n", "many few"),
        ("0::/\n", "1 2 3"),
        ("0::/\n", "100000 0"),
        ("0::/\n", "-5 100000"),
        ("0::/\n", "0 100000"),
        ("nonsense\n\n::\n7\n", "100000 100000 "),
        (b"\xff\xfe\n", "100000 100000"),
        ("4:cpu:/\n", "100000 100000"),
    ],
)
def test_garbage_is_no_quota(tmp_path: Path, cgroup: str | bytes, limit: str) -> None:
    """Take what cannot be read as no quota."""
    files = {
        "sys/fs/cgroup/cpu.max": limit,
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "0",
    }
    # "::" is a line of cgroup v2 in all but its number, so it counts
    expected = 1.0 if b"::\n" in os.fsencode(cgroup) and limit.endswith("100000 ") else None
    assert cpus.quota(host(tmp_path, cgroup, files)) == expected


def test_features_of_x86(tmp_path: Path) -> None:
    """Read the flags of the first processor, whole words as Linux names them."""
    text = (
        "processor\t: 0\nmodel name\t: Example\nflags\t\t: fpu avx2 avx512_vnni\n\nflags : other\n"
    )
    assert cpus.features(host(tmp_path, "", {"proc/cpuinfo": text})) == {
        "fpu",
        "avx2",
        "avx512_vnni",
    }


def test_features_of_arm(tmp_path: Path) -> None:
    """Read what ARM calls features."""
    text = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd asimddp i8mm\n"
    found = cpus.features(host(tmp_path, "", {"proc/cpuinfo": text}))
    assert found == {"fp", "asimd", "asimddp", "i8mm"}


@pytest.mark.parametrize("text", ["", "flags\n", "model name : flags", b"\xff\xfe\n"])
def test_features_that_cannot_be_read(tmp_path: Path, text: str | bytes) -> None:
    """Know of no features where there are none to read."""
    assert cpus.features(tmp_path) == frozenset()
    assert cpus.features(host(tmp_path, "", {"proc/cpuinfo": text})) == frozenset()
