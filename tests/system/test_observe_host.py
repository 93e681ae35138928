"""Accounts, file systems and facts of a booted host, as the sandboxed service sees them."""

from collections.abc import Iterator
from contextlib import contextmanager

from system.host import Host
from system.observing import shown, until_shown
from system.service import STATE, Service

OBSERVED = "users,filesystems,host"
CACHE = "mounts/mount//mnt/cache"


@contextmanager
def mounted(host: Host, path: str, *options: str) -> Iterator[None]:
    """Mount a tmpfs."""
    host.ask("mkdir", "--parents", path)
    host.ask("mount", "-t", "tmpfs", *options, "cache", path)
    try:
        yield
    finally:
        host.ask("umount", path)


def test_a_user_is_added_and_removed(host: Host, observing: Service) -> None:
    """An account is there soon after `useradd`, with its groups, and gone after `userdel`."""
    name = "users/account/ines"
    host.ask("useradd", "--no-create-home", "--comment", "Ines", "--groups", "adm", "ines")
    try:
        until_shown(
            observing, name, full_name="Ines", groups=["adm"], can_log_in=True, system=False
        )
    finally:
        host.ask("userdel", "ines")
    until_shown(observing, name)


def test_a_file_system_fills_up(host: Host, observing: Service) -> None:
    """A tmpfs that is mounted, read-only, filled and unmounted is shown so from the sandbox."""
    with mounted(host, "/mnt/cache", "-o", "size=20M"):
        until_shown(observing, CACHE, used_percent=0, read_only=False, source="cache")
        host.ask("dd", "if=/dev/zero", "of=/mnt/cache/data", "bs=1M", "count=19")
        # read again at once after a change of the mounts, and not only each minute
        host.ask("mount", "-o", "remount,ro", "/mnt/cache")
        until_shown(observing, CACHE, used_percent=95, read_only=True, fstype="tmpfs")
        with mounted(host, "/mnt/cache", "-o", "size=40M"):
            until_shown(observing, CACHE, used_percent=0, size_gb=0.04)
        until_shown(observing, CACHE, used_percent=95)
    until_shown(observing, CACHE)


def test_homes_and_early_mounts_are_measured(host: Host, observing: Service) -> None:
    """The sandbox hides neither what is mounted on homes nor what systemd mounts itself."""
    with mounted(host, "/home"):
        until_shown(observing, "mounts/mount//home", used_percent=0)
        run = shown(host, "mounts/mount//run")
        assert (run["read_only"], "used_percent" in run) == (False, True)
        assert "used_percent" in shown(host, "mounts/mount//dev/shm")
        (detail,) = [row[3] for row in observing.get("Observers", STATE) if row[0] == "filesystems"]
        assert detail == ""


def test_the_time_zone_changes(host: Host, observing: Service) -> None:
    """Another time zone reaches its fact; what PID 1 knows of the machine is there."""
    host.ask("ln", "-sfn", "/usr/share/zoneinfo/Asia/Tokyo", "/etc/localtime")
    until_shown(observing, "system/fact/time", timezone="Asia/Tokyo")
    host.ask("ln", "-sfn", "/usr/share/zoneinfo/Etc/UTC", "/etc/localtime")
    until_shown(observing, "system/fact/time", timezone="Etc/UTC")
    assert "virtualization" in shown(host, "system/fact/hardware")
    assert shown(host, "system/fact/os")["id"]


def test_what_a_sandbox_hides_is_not_measured(host: Host, observer: Service) -> None:
    """With homes hidden by a drop-in, the object and the status say that they are."""
    observer.drop_in("ProtectHome=yes")
    with mounted(host, "/home"):
        observer.observe("filesystems")
        home = shown(host, "mounts/mount//home")
        assert "used_percent" not in home
        assert home["not_measured"]
        assert "not known of /home" in observer.get("Observers", STATE)[0][3]
