"""What files of units say, beside the record of what a booted systemd says of the same files."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from scripts import make_unit_files
from scripts.make_unit_files import FOLDERS, RECORD, Case

from opdbus.observe.systemd import unit_files, unit_syntax

CASES = {f"{case.unit}: {case.about}": case for case in make_unit_files.cases()}
SAYS: dict[str, Any] = json.loads(RECORD.read_text())["units"]


def pretty_hostname() -> str:
    """Give the name that hostnamectl(1) shows of this machine, or the plain one."""
    with suppress(OSError):
        for line in Path("/etc/machine-info").read_text().split("\n"):
            if line.startswith("PRETTY_HOSTNAME="):
                return line.partition("=")[2].strip("'\"") or os.uname().nodename
    return os.uname().nodename


def read(case: Case, tmp_path: Path) -> dict[str, Any]:
    """Read the files of a case as ours are read."""
    make_unit_files.write(tmp_path, case.files)
    found = unit_files.describe_units([case.unit], [str(tmp_path / folder) for folder in FOLDERS])
    return found[case.unit]


@pytest.mark.parametrize("name", CASES)
def test_files_say_what_systemd_says(name: str, tmp_path: Path) -> None:
    """Read description and documents of a unit from its files as a booted systemd does.

    Two answers differ for a reason. A template is never loaded: it keeps the specifiers of its
    instances. And of a masked unit systemd shows only the name: we read the file that is hidden.
    """
    case = CASES[name]
    says = SAYS[case.unit]
    found = read(case, tmp_path)
    where = {str(tmp_path / folder): there for folder, there in FOLDERS.items()}
    if not says:
        assert "@." in case.unit
        prefix = case.unit.partition("@")[0]
        assert found["description"].startswith(f"%n|%N|{prefix}|")
        assert "|%i|" in found["description"]
    elif says["state"] == "masked":
        assert found == ({} if len(case.files) == 1 else read_hidden(case, tmp_path))
    else:
        # without a description it shows the name
        description = found.get("description", case.unit)
        for ours, there in where.items():
            description = description.replace(ours, there)
        assert description == says["description"]
        assert found.get("documentation", []) == sorted(says.get("documentation", []))


def read_hidden(case: Case, tmp_path: Path) -> dict[str, Any]:
    """Read what a mask hides."""
    return unit_files.describe_units([case.unit], [str(tmp_path / "lib")])[case.unit]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if len(case.files) == 1])
def test_assignments_are_those_of_systemd(name: str) -> None:
    """Read other keys, which are not shown, as systemd does: dependencies, users and commands."""
    case = CASES[name]
    says = SAYS[case.unit]
    (content,) = case.files.values()
    found: dict[str, list[str]] = {"User": [], "Wants": [], "Requires": [], "After": []}
    for section, key, written in unit_syntax.assignments(content):
        value = unit_syntax.expand(written, case.unit)
        if (
            key in found
            and value is not None
            and section == ("Service" if key == "User" else "Unit")
        ):
            # dependencies cannot be reset
            found[key] = [*found[key], *value.split()] if written or key != "User" else []
    wanted = {key: sorted(set(filter(unit_files.is_unit, words))) for key, words in found.items()}
    assert wanted["Wants"] == says.get("wants", [])
    assert wanted["Requires"] == says.get("requires", [])
    assert wanted["After"] == says.get("after", [])
    assert [word for word in found["User"][-1:] if word.isalnum()] == [
        word for word in [says.get("user")] if word
    ]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("%H", os.uname().nodename),
        ("%l", os.uname().nodename.partition(".")[0]),
        ("%v", os.uname().release),
        ("%b", Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")),
        ("%d", "/run/credentials/a.service"),
        ("%c and %r", "/a.service and "),
        ("%q", pretty_hostname()),
        ("%z", None),
    ],
)
def test_specifiers_of_the_host(text: str, meant: str | None) -> None:
    """Replace what the host decides; keep what only the manager has; ignore what is unknown."""
    assert unit_syntax.expand(text, "a.service") == meant


def test_the_record_is_of_all_cases() -> None:
    """Hold the record and the cases together: more than 200, each recorded."""
    assert {case.unit for case in CASES.values()} == SAYS.keys()
    assert len(SAYS) == len(CASES) > 200


@pytest.mark.parametrize("token", ["\\\n", "# x\n", "%i", "'", '"', "\r\n", "\0", "[Unit]\n", "\\"])
def test_reading_is_linear(token: str, tmp_path: Path) -> None:
    """Read a file four times as long in less than ten times the time, whatever it repeats."""

    def spent(count: int) -> float:
        text = f"[Unit]\nDocumentation=man:a {token * count}\nDescription={token * count}"
        (tmp_path / "a.service").write_text(text)
        began = time.thread_time()
        unit_files.describe_units(["a.service"], [str(tmp_path)])
        return time.thread_time() - began

    small, large = min(spent(5_000) for _ in range(3)), min(spent(20_000) for _ in range(3))
    assert large < 10 * small + 0.01
