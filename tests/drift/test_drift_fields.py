"""Which declared fields differ from what was observed, whatever their spelling."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdbus.drift import rule_table, versions, word_values
from opdbus.drift.field import Severity
from opdbus.drift.field_comparison import compare, unseen
from opdbus.state.fields import dotted_values
from opdbus.state.object import SETTINGS

ANY = rule_table.of_declared(("test", "thing"))


def names(declared: dict[str, Any], observed: dict[str, Any]) -> list[str]:
    """Give the names of the fields that differ, in order."""
    return sorted(field.name for field in compare(ANY, declared, observed))


def test_changed_fields_are_named() -> None:
    """Name each declared field that differs, with dots."""
    declared = {"z": 1, "ipv4": {"enabled": True, "dns": ["a", "b"]}, "same": "x", "l": [{"k": 1}]}
    observed = {"z": 2, "ipv4": {"enabled": False, "dns": ["c", "a"]}, "same": "x", "l": [{"k": 3}]}
    assert names(declared, observed) == ["ipv4.dns", "ipv4.enabled", "l", "z"]


def test_fields_of_one_side_are_no_drift() -> None:
    """Pass over what only the file or only the host says."""
    assert names({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}, "e": 3}) == []
    assert names({}, {"a": 1}) == []
    assert names({"a": 1}, {}) == []


@pytest.mark.parametrize(
    ("declared", "observed"),
    [
        (1, "1"),
        (True, "true"),
        (True, "Yes"),
        (0, "off"),
        (False, "False "),
        ("Active", "active"),
        (1.5, "1.50"),
        ("1G", 1 << 30),
        ("512 MiB", 536870912),
        ("4M", "4194304"),
        (None, ""),
        (None, []),
        ([1], [1]),
        ([80], ["80"]),
        ([1, 2], [2, 1]),
        ([True, "Up"], ["true", "up"]),
        ([80, [443, {"on": True}]], [["443", {"on": "TRUE"}], "80"]),
        ({"ports": [[80]]}, {"ports": [["80"]]}),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("02-1B-21-7A-00-01", "02:1b:21:7a:00:01"),
        ("/srv/", "/srv"),
        ("/srv//a/", "/srv/a"),
        ("0644", "644"),
        ("0x1f", 31),
        ("0x1F", "31"),
        ("+5", "5"),
        ("95%", 95),
        ("1 ", "1"),
        ("a  b", "a b"),
        ("90s", "1min 30s"),
        ("1h 30min", "90min"),
        ("1w", "7 days"),
        ("1.5h", "1hour 30minutes"),
        ("5m", "300s"),
        ("1M", "1month"),
        ("500us", "0.5ms"),
        ("500\N{MICRO SIGN}s", "500usec"),
        (["90s"], ["1min 30s"]),
        ("90S", "90s"),
    ],
)
def test_spelling_is_no_drift(declared: Any, observed: Any) -> None:
    """Take values as the same that people write differently."""
    assert names({"a": declared}, {"a": observed}) == []
    assert names({"a": observed}, {"a": declared}) == []


@pytest.mark.parametrize(
    ("declared", "observed"),
    [
        (1, 2),
        (True, False),
        (True, 2),
        (None, "x"),
        ("a", "b"),
        ("1.10", "1.1"),
        ("4M", "4194305"),
        ("80/tcp", "80"),
        ("/srv/a", "/srv/A"),
        ([1, 2], [1]),
        ([1, 1, 2], [1, 2, 2]),
        (["1, 2"], [1, 2]),
        ("1", [1]),
        (0, None),
        ("", "x"),
        # these look alike
        ("a\u00a0b", "a b"),
        ("1\u200b", "1"),
        ("p\u0430ssw", "passw"),
        ("\uff11", "1"),
        ("1.0", "1.00"),
        # spans of time
        ("90s", "91s"),
        ("1M", "1min"),
        ("300", "5min"),
        ("5min", "5min ago"),
        ("s", "1s"),
    ],
)
def test_other_value_is_drift(declared: Any, observed: Any) -> None:
    """Take values as drifted that mean something else."""
    assert names({"a": declared}, {"a": observed}) == ["a"]
    assert names({"a": observed}, {"a": declared}) == ["a"]


@pytest.mark.parametrize(
    ("field", "declared", "observed", "is_same"),
    [
        ("TimeoutStartSec", "5min", 300, True),
        ("timeout_stop_sec", "300", "5min", True),
        ("restart_sec", 0.1, "100ms", True),
        ("watchdog_sec", "1min 30", "90s", True),
        ("runtime_max_sec", "infinity", "Infinity", True),
        ("interval_ms", 1500, "1.5s", True),
        ("wait_seconds", "1M", "30.4375d", True),
        ("runtime_max_sec", "infinity", "90s", False),
        ("restart_sec", "1M", "1m", False),
        ("restart_sec", "90s", "90ms", False),
        ("restart_sec", 300, "5ms", False),
        ("restart_sec", "never", "5min", False),
        # no span, but how many there are in one
        ("reads_per_sec", "5M", 5 << 20, True),
        ("mib_per_sec", "5min", 300, False),
    ],
)
def test_fields_for_spans_of_time(
    field: str, declared: Any, observed: Any, *, is_same: bool
) -> None:
    """Read a number alone in the unit that the name of its field ends in, as systemd does."""
    assert (names({field: declared}, {field: observed}) == []) is is_same
    inside = [{"name": "a", field: declared}], [{"name": "a", field: observed}]
    assert (names({"units": inside[0]}, {"units": inside[1]}) == []) is is_same


# Values of a field as its rule compares them: field, declared, observed, whether they are the same.
RULES: dict[str, Sequence[tuple[Any, Any, bool]]] = {
    # a file's mode, however it is written: with a zero or not, or in letters
    "files/file mode": [
        ("644", "0644", True),
        (644, "0644", True),
        ("0o644", "0644", True),
        ("-rw-r--r--", "0644", True),
        ("rwsr-xr-t", "5755", True),
        ("02755", "2755", True),
        ("0640", "0644", False),
        (420, "0644", False),
        ("rw-rw-r--", "0644", False),
    ],
    # without a name, only whether it is root
    "files/file owner": [
        ("root", "root", True),
        ("root", "not root", False),
        ("www-data", "not root", True),
        ("www-data", "root", False),
    ],
    # kernel settings by the rule by which sysctl.d's are compared: the kernel's
    **dict.fromkeys(
        ("sysctl/settings vm.probe", "sysctl/setting value", "kernel/sysctl value"),
        (
            ("0x10", "16", True),
            ("010", "8", True),
            ("010", "10", False),
            (10, "10", True),
            (True, "1", True),
            ("on", "0", False),
            ([4096, 131072], "4096 131072 6291456", True),
            ("4096\t131072", "4096 131072", True),
            ("4096 131073", "4096 131072", False),
            ("core", "core.%p", False),
            (None, "", True),
            (None, "0", False),
            ("", "", True),
            (1.0, "1", True),
            (1.5, "1", False),
            ([4096.0, 131072], "4096 131072", True),
        ),
    ),
    # a logical volume is one under both of its names
    "mounts/mount source": [
        ("/dev/vg0/root", "/dev/mapper/vg0-root", True),
        ("/dev/my-vg/a-b", "/dev/mapper/my--vg-a--b", True),
        ("/dev/mapper/vg0-root", "/dev/vg0/root", True),
        ("/dev/vg0/root", "/dev/mapper/vg0-home", False),
        ("/dev/disk/by-label/data", "/dev/sda1", True),
        ("UUID=1-2", "/dev/sda1", True),
        ("/dev/sdb1", "/dev/sda1", False),
    ],
}


@pytest.mark.parametrize(
    ("field", "declared", "observed", "is_same"),
    [(field, *row) for field, rows in RULES.items() for row in rows],
)
def test_notations_of_one_value(field: str, declared: Any, observed: str, *, is_same: bool) -> None:
    """Take the notations of a value as one where the rule of its kind and field says so."""
    kind_id, name = field.split()
    plugin, kind = kind_id.split("/")
    row = rule_table.of_declared((plugin, SETTINGS if kind == "settings" else kind))
    fields = compare(row, {name: declared}, {name: observed})
    assert [one.name for one in fields] == ([] if is_same else [name])


def test_long_values_are_cut_where_they_differ() -> None:
    """Show of two long values that begin alike the part in which they differ."""
    row = rule_table.of_declared(("any", "thing"))
    declared, observed = "a" * 5000 + "b" + "c" * 5000, "a" * 5000 + "d" + "c" * 5000
    (field,) = compare(row, {"x": declared}, {"x": observed})
    assert field.declared != field.observed
    assert all(len(str(side)) <= 1000 for side in (field.declared, field.observed))


@pytest.mark.parametrize(
    ("observed", "severity"),
    [("0646", "warning"), ("0664", "warning"), ("0600", "notice"), ("0755", "notice")],
)
def test_a_file_that_others_may_write_to_is_a_warning(observed: str, severity: str) -> None:
    """A mode by which group or others may write where none was declared is worse than another."""
    row = rule_table.of_declared(("files", "file"))
    (found,) = compare(row, {"mode": "0644"}, {"mode": observed})
    assert found.severity.word == severity
    assert compare(row, {"mode": "0666"}, {"mode": "0664"})[0].severity.word == "notice"


@pytest.mark.parametrize(
    ("path", "declared", "observed", "word"),
    [
        # the content, by each of the fields that show an edit
        ("/etc/ssh/sshd_config", {"modified": False}, {"modified": True}, "warning"),
        ("/etc/pam.d/common-auth", {"sha256": "a"}, {"sha256": "b"}, "warning"),
        ("/etc/sudoers", {"size": 1714}, {"size": 1718}, "warning"),
        ("/etc/sudoers.d/bob", {"written_at": "x"}, {"written_at": "y"}, "warning"),
        ("/etc/ssh/authorized_keys/bob", {"sha256": "a"}, {"sha256": "b"}, "warning"),
        ("/etc/cron.d/e2scrub", {"sha256": "a"}, {"sha256": "b"}, "warning"),
        ("/etc/nginx/nginx.conf", {"modified": False}, {"modified": True}, "notice"),
        ("/etc/ssh/ssh_config", {"modified": False}, {"modified": True}, "notice"),
        # more bits of the mode, but not fewer
        ("/etc/sudoers", {"mode": "0440"}, {"mode": "0444"}, "warning"),
        ("/etc/shadow", {"permissions": "0640"}, {"mode": "0644"}, "warning"),
        ("/etc/hosts.allow", {"mode": "0644"}, {"mode": "0600"}, "notice"),
        ("/etc/nginx/nginx.conf", {"mode": "0640"}, {"mode": "0644"}, "notice"),
    ],
)
def test_an_edit_of_a_file_that_decides_who_may_become_root_is_worse(
    path: str, declared: dict[str, Any], observed: dict[str, Any], word: str
) -> None:
    """Files that decide about access differ by a warning, other configuration by a notice."""
    row = rule_table.of_declared(("files", "file"))
    (found,) = compare(row, declared, observed, path)
    assert found.severity.word == word


def test_the_documentation_names_each_sensitive_file() -> None:
    """The table of files whose edits are a warning is the same in docs/drift.md."""
    text = Path("docs/drift.md").read_text()
    told = re.search(r"^\| who may become root \|.*?\n\n", text, re.DOTALL | re.MULTILINE)
    assert told
    assert set(re.findall(r"`(.+?)`", told[0])) == set(word_values.SENSITIVE)


def test_commands_have_an_order() -> None:
    """Compare the words of a command in their order."""
    assert names({"command": ["cp", "a", "b"]}, {"command": ["cp", "b", "a"]}) == ["command"]


def test_leaves_are_named_with_dots() -> None:
    """Name scalars and lists of scalars by their way from the top."""
    value = {"a": {"b": 1, "c": [1, 2]}, "d": [{"e": None}, "f"], "g": {}, "h": []}
    assert list(dotted_values(value)) == [
        ("a.b", 1),
        ("a.c", [1, 2]),
        ("d.0.e", None),
        ("d.1", "f"),
        ("h", []),
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=3) | st.sampled_from(["ensure", "state", "enabled", "mode", "ipv4"]),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=3) | st.sampled_from(["absent", "active"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
            max_leaves=8,
        ),
    ),
    st.sampled_from([ANY, *rule_table.ROWS]),
)
def test_nothing_drifts_from_itself(properties: dict[str, Any], row: rule_table.Row) -> None:
    """Find no drift between equal properties, whatever they are, and fail on none."""
    assert compare(ANY, properties, properties) == []
    compare(row, properties, properties)
    compare(row, properties, None)
    compare(row, properties, {"addresses": properties, "status": properties})


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("1.0~rc1", "1.0"),
        ("1.0", "1.0-1"),
        ("1.0-1", "1.0-1+b1"),
        ("1.0-1~deb12u1", "1.0-1"),
        ("1.9", "1.10"),
        ("9", "1:1"),
        ("1.0a", "1.0b"),
        ("1.0a", "1.0+a"),
        ("3.0.15-1~deb12u1", "3.0.16-1~deb12u1"),
        ("2.36-9+deb12u4", "2.36-9+deb12u13"),
    ],
)
def test_versions_are_ordered_as_by_dpkg(older: str, newer: str) -> None:
    """Order versions as deb-version(7) says."""
    assert versions.compare(older, newer) < 0 < versions.compare(newer, older)
    assert versions.compare(newer, newer) == 0


def test_versions_are_as_wanted_or_not() -> None:
    """Take a bare version as the least one, with what it leaves out as it may be."""
    assert versions.satisfies("3.0.16", "1:3.0.16-1~deb12u1")
    assert versions.satisfies("3.0.15-1", "3.0.16-1")
    assert not versions.satisfies("3.0.17", "3.0.16-1")
    assert versions.satisfies(">= 1.2", "1.2")
    assert not versions.satisfies(">1.2", "1.2")
    assert versions.satisfies("< 2", "1.9-3")
    assert versions.satisfies("= 1.2-3", "1.2-3")
    assert versions.satisfies("1.2-3", "1.2-3", exactly=True)
    assert not versions.satisfies("1.2-3", "1.2-4", exactly=True)
    assert versions.satisfies("3.0.*", "3.0.16-1")
    assert not versions.satisfies("3.1.*", "3.0.16-1")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("libc6", "libc6"),
        ("libc6:amd64", "libc6"),
        ("libgtk-3-0:amd64", "libgtk-3-0"),
        ("gir1.2-gtk-3.0:amd64", "gir1.2-gtk-3.0"),
        ("kernel-core-5.14.0-1.el9:x86_64", "kernel-core"),
    ],
)
def test_packages_are_named_with_more_than_their_names(name: str, key: str) -> None:
    """Leave architecture and version out of the name that observers give a package."""
    assert rule_table.of_observed(("packages", "package")).observed_key(name) == key


def test_a_word_that_means_nothing_is_no_drift() -> None:
    """What cannot be compared is told once: as that, and not as drift as well."""
    row = rule_table.of_declared(("systemd", "unit"))
    declared, observed = {"enabled": "tru"}, {"enabled": "disabled"}
    assert compare(row, declared, observed) == []
    assert list(unseen(row, "a.service", declared, observed)) == ["enabled"]
    assert [field.name for field in compare(row, {"enabled": True}, observed)] == ["enabled"]


@pytest.mark.parametrize("key", ["description", "comment", "full_name"])
@pytest.mark.parametrize(
    ("declared", "is_same"),
    [
        ("Alice Moreau", True),
        ("Alice Moreau, user account, administrator", True),
        ("Alice", False),
        ("Bob Moreau", False),
    ],
)
def test_the_comment_of_an_account_is_its_full_name(
    key: str, declared: str, *, is_same: bool
) -> None:
    """Compare the comment of an account with the name of passwd, not only with our own words."""
    words_of_ours = "Alice Moreau, user account, administrator"
    seen = {"full_name": "Alice Moreau", "description": words_of_ours}
    fields = compare(rule_table.of_declared(("users", "account")), {key: declared}, seen)
    assert [field.observed for field in fields] == ([] if is_same else ["Alice Moreau"])


@pytest.mark.parametrize(
    ("declared", "is_same"),
    [
        ("debian", True),
        ("Debian", True),
        ("Debian GNU/Linux 12 (bookworm)", True),
        ("Debian GNU/Linux 11 (bullseye)", False),
        ("fedora", False),
    ],
)
@pytest.mark.parametrize("key", ["os", "distribution"])
def test_a_distribution_has_two_names(key: str, declared: str, *, is_same: bool) -> None:
    """Compare a declared distribution with its identifier and with its full name."""
    row = rule_table.of_declared(("system", SETTINGS))
    fact = {"id": "debian", "pretty_name": "Debian GNU/Linux 12 (bookworm)"}
    seen = {"os": fact, **fact, "pretty_name": "Fedora"}
    assert bool(compare(row, {key: declared}, seen)) is not is_same


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"sub_state": "auto-restart"}, "failed, waits for its restart"),
        ({"sub_state": "auto-restart", "restart_loop": False}, "failed, waits for its restart"),
        (
            {"sub_state": "auto-restart", "restart_loop": True},
            "failed, restarted again and again",
        ),
    ],
)
def test_a_unit_between_two_starts_has_failed(seen: dict[str, Any], words: str) -> None:
    """Call it a loop only where the observer counted enough restarts."""
    found = word_values.state("active", "activating", seen)
    assert found is not None
    assert (found.observed, found.severity) == (words, Severity.ERROR)
