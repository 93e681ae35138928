"""Which users may read the settings and the state file, as the doctor sees it."""

import grp
import os
import pwd
from pathlib import Path

import pytest

from opdbus.settings.privacy import Rule


def rule(folder: Path, group: str = "") -> Rule:
    """Give the rule for a folder of this user's, with a group that nobody else is in."""
    me = pwd.getpwuid(os.geteuid()).pw_name
    return Rule(folder, me, group or grp.getgrgid(os.getegid()).gr_name, me)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """Make a folder as `make install` leaves it."""
    folder = tmp_path / "op-dbus"
    folder.mkdir()
    folder.chmod(0o750)
    for name in ("state.json", "op-dbus.env"):
        (folder / name).touch()
        (folder / name).chmod(0o640)
    (folder / "link").symlink_to(tmp_path)
    return folder


def findings(folder: Path) -> str:
    """Give what is found about files, each with its cure."""
    faults = [fault for fault in rule(folder).faults() if "should own it" in fault.finding]
    assert all("systemd-tmpfiles --create op-dbus.conf" in fault.advice for fault in faults)
    return "\n".join(fault.finding for fault in faults)


def test_a_closed_folder_is_well(closed: Path, tmp_path: Path) -> None:
    """Nothing is found where only the owner and the group may read, nor where nothing is."""
    assert findings(closed) == ""
    assert rule(tmp_path / "nowhere").faults() == []


@pytest.mark.parametrize(
    ("name", "mode"),
    [("", 0o755), ("", 0o770), ("state.json", 0o644), ("state.json", 0o660), ("state.json", 0o600)],
)
def test_what_is_open_or_unreadable_is_named(closed: Path, name: str, mode: int) -> None:
    """A folder or file with more rights, or that the service cannot read, is named."""
    path = closed / name
    path.chmod(mode)
    assert f"; {path} is " in findings(closed)
    path.chmod(0o750 if not name else 0o640)
    assert findings(closed) == ""


def test_files_of_a_folder_below_count(closed: Path) -> None:
    """A folder below the first, and what is in it, must be closed too; one line tells of all."""
    below = closed / "more"
    below.mkdir()
    below.chmod(0o755)
    (below / "a.toml").touch()
    (below / "a.toml").chmod(0o644)
    assert f"; {below} is drwxr-xr-x " in findings(closed)
    assert findings(closed).endswith(", and 1 more")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("ids", [(1, -1), (-1, 1)])
def test_another_owner_or_group_is_named(closed: Path, ids: tuple[int, int]) -> None:
    """A file of another user or group is found, whatever its mode."""
    os.chown(closed / "state.json", *ids)
    assert f"{closed / 'state.json'} is -rw-r----- " in findings(closed)


def test_a_missing_group_is_made_by_the_advice(closed: Path) -> None:
    """Without the group, the advice makes it and hands the files over."""
    (fault,) = rule(closed, "no-such-group").faults()
    assert "systemd-sysusers op-dbus.conf && systemd-tmpfiles" in fault.advice


def test_other_members_are_named(closed: Path) -> None:
    """Each other member of the group is named with the command that removes it."""
    group = grp.struct_group(("some", "x", 4_000_000, ["mallory", "o p", "op-dbus"]))
    faults = Rule(closed)._members(group)
    assert [fault.advice for fault in faults] == [
        "as root, `gpasswd --delete mallory op-dbus-config`",
        "as root, `gpasswd --delete 'o p' op-dbus-config`",
    ]


def test_the_service_must_be_a_member(closed: Path) -> None:
    """A group without the service is found, since then it reads no settings and no state file."""
    (fault,) = Rule(closed)._members(grp.struct_group(("some", "x", 4_000_000, [])))
    assert "op-dbus is not in the group op-dbus-config" in fault.finding


def test_a_first_group_counts_as_membership(closed: Path) -> None:
    """A user whose first group it is, is named too."""
    mine = grp.getgrgid(pwd.getpwuid(os.geteuid()).pw_gid)
    advice = [fault.advice for fault in Rule(closed)._members(mine)]
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert f"as root, give it another group: `usermod --gid GROUP {me}`" in advice
