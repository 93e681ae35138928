"""What a baseline declares of observed objects, by the rules of drift."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdbus.drift import rule_table
from opdbus.drift.baseline import Scope, declare
from opdbus.drift.field_comparison import compare
from opdbus.state.flatten import plural, singular
from opdbus.state.object import ObjectId

SERVICE = {"active_state": "active", "sub_state": "running", "exec": "/usr/sbin/x", "main_pid": 7}
ETH = {
    "type": "ethernet",
    "enabled": True,
    "mtu": 1500,
    "addresses": ["192.0.2.1/24", "198.51.100.9/24", "fe80::1/64"],
    "addresses_in_detail": [
        {"address": "192.0.2.1", "family": "ipv4", "dynamic": False},
        {"address": "fe80::1", "family": "ipv6", "dynamic": False},
    ],
    "default_routes": [{"family": "ipv4", "gateway": "192.0.2.254"}],
    "other_names": {},
}
GIVEN = {"address": "198.51.100.9", "family": "ipv4", "dynamic": True}
CASES: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    (
        "systemd/unit/a.service",
        {**SERVICE, "unit_file_state": "enabled"},
        {"active_state": "active", "enabled": True},
    ),
    ("systemd/unit/a.service", {**SERVICE, "unit_file_state": "disabled"}, {"enabled": False}),
    ("systemd/unit/a.service", {**SERVICE, "unit_file_state": "static"}, None),
    (
        "systemd/unit/a.service",
        {"unit_file_state": "masked", "masked": True, "active_state": "inactive"},
        {"masked": True},
    ),
    (
        "systemd/unit/a.service",
        {**SERVICE, "active_state": "failed", "unit_file_state": "enabled"},
        {"enabled": True},
    ),
    ("systemd/unit/session-1.scope", {"active_state": "active", "transient": True}, None),
    (
        "packages/package/nginx",
        {"status": "installed", "version": "1.2", "automatic": False},
        {"ensure": "installed"},
    ),
    (
        "packages/package/held",
        {"status": "installed", "on_hold": True},
        {"ensure": "installed", "hold": True},
    ),
    ("packages/package/libc6", {"status": "installed", "automatic": True}, None),
    ("packages/package/gone", {"status": "config-files"}, None),
    (
        "files/file/etc",
        {"mode": "0644", "modified": False, "sha256": "ab", "size": 3},
        {"mode": "0644", "owner": "root", "modified": False},
    ),
    (
        "files/file/etc",
        {"mode": "0644", "modified": True, "sha256": "ab", "owner": "not root"},
        {"mode": "0644", "sha256": "ab"},
    ),
    ("files/file/unreadable", {"readable": False}, {}),
    (
        "files/file//etc/sudoers",
        {"mode": "0440", "size": 9, "written_at": "2026-11-27T18:42:36.5Z", "readable": False},
        {
            "mode": "0440",
            "owner": "root",
            "size": 9,
            "written_at": "2026-11-27T18:42:36.5Z",
        },
    ),
    (
        "files/file//etc/shadow",
        {"mode": "0640", "size": 9, "written_at": "2026-11-27T18:42:36.5Z", "readable": False},
        {"mode": "0640", "owner": "root"},
    ),
    (
        "files/file//etc/passwd",
        {"mode": "0644", "sha256": "ab"},
        {"mode": "0644", "owner": "root"},
    ),
    ("files/file//etc/op-dbus/state.json", {"mode": "0640"}, None),
    ("files/file/none", {"missing": True}, None),
    (
        "mounts/mount//",
        {"source": "/dev/sda1", "fstype": "ext4", "options": "rw,nosuid,discard,size=4k"},
        {"options": "rw,nosuid", "fstype": "ext4"},
    ),
    (
        "mounts/mount//srv",
        {"source": "nas:/srv", "network": True, "fstype": "nfs4", "options": "rw"},
        {"source": "nas:/srv", "fstype": "nfs4", "options": "rw"},
    ),
    ("mounts/mount//run/user/0", {"source": "tmpfs", "fstype": "tmpfs", "options": "rw"}, None),
    (
        "net/interface/eth0",
        ETH,
        {
            "type": "ethernet",
            "enabled": True,
            "addresses": ["192.0.2.1/24", "198.51.100.9/24"],
            "gateway": "192.0.2.254",
        },
    ),
    (
        "net/interface/eth0",
        {**ETH, "addresses_in_detail": [*ETH["addresses_in_detail"], GIVEN]},  # type: ignore[misc]
        {"type": "ethernet", "enabled": True, "addresses": ["192.0.2.1/24"], "dhcp": True},
    ),
    ("net/interface/veth1", {**ETH, "type": "veth"}, None),
    (
        "net/listener/tcp 0.0.0.0:22",
        {"port": 22, "user": "root", "unit": "ssh.service"},
        {"user": "root", "unit": "ssh.service"},
    ),
    ("net/listener/tcp 127.0.0.1:6010", {"unit": "session-3.scope"}, {}),
    ("net/route/default", {"gateway": "192.0.2.1"}, None),
    ("login1/session/1", {"user": "root"}, None),
    (
        "users/account/bob",
        {"uid": 5, "gid": 5, "home": "/", "shell": "/bin/sh", "groups": ["sudo"]},
        {"uid": 5, "gid": 5, "home": "/", "shell": "/bin/sh"},
    ),
    (
        "users/group/sudo",
        {"gid": 27, "members": ["bob"], "member_count": 1},
        {"gid": 27, "members": ["bob"]},
    ),
    ("kernel/sysctl/vm.swappiness", {"value": "10", "wanted": "10"}, {"value": "10"}),
    ("kernel/sysctl/net.x", {"not_measured": "the sandbox", "wanted": "1"}, None),
    (
        "cron/job/daily",
        {"line": "1 3 * * *", "schedule": "every day at 03:01", "user": "root"},
        {"schedule": "1 3 * * *", "user": "root"},
    ),
    ("system/fact/hostname", {"hostname": "a", "description": "called a"}, {"hostname": "a"}),
    ("devices/pci/0", {"vendor": "x"}, None),
]


def _names(found: str) -> ObjectId:
    plugin, kind, name = found.split("/", 2)
    return ObjectId(plugin, kind, name)


@pytest.mark.parametrize(("name", "seen", "wanted"), CASES)
def test_a_baseline_has_what_lasts(
    name: str, seen: dict[str, Any], wanted: dict[str, Any] | None
) -> None:
    """Declare what stays as it is until somebody changes it, in the notation of the rules."""
    object_id = _names(name)
    found = declare(rule_table.of_observed(object_id[:2]), object_id, seen, Scope.STABLE)
    assert (found and dict(found.properties)) == wanted


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize(("name", "seen", "_wanted"), CASES)
def test_nothing_drifts_from_its_baseline(
    name: str, seen: dict[str, Any], _wanted: object, scope: Scope
) -> None:
    """Declare of every kind, in every scope, only what the comparison finds no difference in."""
    object_id = _names(name)
    row = rule_table.of_observed(object_id[:2])
    if found := declare(row, object_id, seen, scope):
        assert compare(row, found.properties, seen) == []


def test_secrets_and_moving_values_are_left_out() -> None:
    """Leave out and count redacted values, and leave out what moves by itself, in every scope."""
    seen = {"state": "up", "url": "https://u:[redacted]@h/", "pid": 7, "uptime": 9, "note": "n"}
    object_id = ObjectId("app", "worker", "w")
    row = rule_table.of_observed(object_id[:2])
    assert declare(row, object_id, seen, Scope.STABLE) is None
    found = declare(row, object_id, seen, Scope.KIND)
    assert found
    assert (dict(found.properties), found.hidden) == ({"state": "up"}, 1)
    found = declare(row, object_id, seen, Scope.ALL)
    assert found
    assert (dict(found.properties), found.hidden) == ({"state": "up", "note": "n"}, 1)
    named = declare(row, object_id._replace(name="[redacted]~01234567"), seen, Scope.ALL)
    assert named
    assert (dict(named.properties), named.hidden) == ({}, 1)


@given(
    st.dictionaries(
        st.sampled_from(
            "addresses addresses_in_detail default_routes type status mode value a".split()
        ),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.sampled_from(["up", "absent", "installed"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
            max_leaves=6,
        ),
    ),
    st.sampled_from(rule_table.ROWS),
    st.sampled_from(Scope),
)
def test_no_published_object_drifts_from_its_baseline(
    seen: dict[str, Any], row: rule_table.Row, scope: Scope
) -> None:
    """Declare of any values, if anything, only what the comparison finds no difference in."""
    try:
        found = declare(row, ObjectId(*row.observed, "x"), seen, scope)
    except (TypeError, AttributeError, KeyError, ValueError):
        # rules of a kind expect its shapes; the daemon leaves such an object out
        return
    if found:
        assert compare(row, found.properties, seen) == []


@pytest.mark.parametrize(
    "kind", [*sorted({row.observed[1] for row in rule_table.ROWS}), "policy", "bus"]
)
def test_a_kind_has_a_key_to_list_it_under(kind: str) -> None:
    """List the objects of a kind under a key that is read as that kind."""
    assert singular(plural(kind)) == kind
