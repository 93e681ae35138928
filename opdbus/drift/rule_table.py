"""The table that pairs declared with observed kinds and gives the comparison of their fields.

A declared object of a kind without a row is paired with the observed object of the same plugin,
kind and name, and each field with the observed field of the same words.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from opdbus.drift import baseline_values, network_values, word_values
from opdbus.drift.baseline_values import Baseline, as_observed
from opdbus.drift.field import Field, Severity
from opdbus.drift.word_values import Meaning
from opdbus.state import presence
from opdbus.state.object import SETTINGS, UNIT, Json, KindId, ObjectId

# Comparison of a declared list: with all observed elements, in any order or in the same order, or
# only that each declared element is observed. docs/drift.md lists the fields of the last two.
Lists: TypeAlias = Literal["whole", "in order", "at least these"]
WHOLE: Final = "whole"
IN_ORDER: Final = "in order"
AT_LEAST: Final = "at least these"

_TYPES: Final = "service socket timer mount automount swap device target path slice scope".split()
_ENDINGS: Final = tuple(f".{one}" for one in _TYPES)
_SWAPPED: Final = str.maketrans("./", "/.")


@dataclass(frozen=True, slots=True)
class Rule:
    """Comparison of declared fields with an observed field; `keys` are dotted names.

    `observed` lists alternative observed fields: the first that exists counts, else `default`. If
    it is empty, `means` gets all observed properties. `lists` gives the comparison of lists.
    """

    keys: str
    observed: str
    means: Meaning
    severity: Severity = Severity.NOTICE
    default: Json = None
    lists: Lists = WHOLE
    # the value that a baseline declares under the first key; None: it leaves the field out
    baseline: Baseline | None = None
    # whether that is added to a declaration without the field when its object is taken over
    is_added: bool = False


class BelongingKind(NamedTuple):
    """An observed kind whose objects belong to an object of another kind.

    `pattern` finds the owner's key in their names, and `field` is the owner's field in which they
    are put: the address `192.0.2.1/24 on eth0` is in `addresses_in_detail` of `eth0`.
    """

    kind: KindId
    pattern: str
    field: str


class Membership(NamedTuple):
    """Membership among objects of one kind: `master` of eth0 is br0, whose `members` has eth0."""

    owner_field: str
    members_field: str


class Belonging(NamedTuple):
    """The row of the owners of a kind, and its BelongingKind with a compiled pattern."""

    row: "Row"
    pattern: re.Pattern[str]
    field: str


@dataclass(frozen=True, slots=True)
class Row:
    """Declared kinds that are paired with one observed kind by keys made of object names."""

    declared: tuple[KindId, ...]
    observed: KindId
    rules: Mapping[str, Rule] = field(default_factory=dict)
    # keys of a declared and an observed name; equal keys make a pair
    declared_key: Callable[[str, str], str] = lambda _kind, name: name
    observed_key: Callable[[str], str] = lambda name: name
    # whether the observed object of an equal key matches the declared name
    suits: Callable[[str, Mapping[str, Json]], bool] = lambda _name, _observed: True
    # whether an observed name belongs to the objects that a declared kind claims completely
    covers: Callable[[str, str], bool] = lambda _kind, _name: True
    # whether an observed object of a claimed kind has to be declared
    is_extra: Callable[[Mapping[str, Json]], bool] = lambda _observed: True
    # names of observed objects that together are compared with one declared object
    parts: tuple[str, ...] = ()
    # if set, each declared field names an object and is compared with this field of it
    each: str = ""
    # the observed field with aliases of an object
    aliases: str = ""
    joined: tuple[BelongingKind, ...] = ()
    members: Membership | None = None
    # the observed fields that name objects of the same kind
    related: frozenset[str] = frozenset()
    # a field and those of its values that mean that the object does not exist
    gone: tuple[str, frozenset[str]] = ("", frozenset())
    # severity of a missing object; None: absence is not reported, because observers list only some
    # objects of the kind
    missing: Severity | None = Severity.ERROR
    # comparison of fields without a rule
    means: Meaning = word_values.equal
    # severity of a difference in an object of this name, at least that of the rule
    worsen: Callable[[str, Field], Severity] = lambda _name, field: field.severity
    # declared fields that are never compared
    never: frozenset[str] = frozenset()
    # whether an observed object lasts, so that a baseline declares it; None: only on request
    is_stable: Callable[[str, Mapping[str, Json]], bool] | None = None
    # whether a baseline claims the kind, so that any other object of it is drift
    is_claimed: bool = False


def _rules(*rules: Rule) -> dict[str, Rule]:
    return {key: rule for rule in rules for key in rule.keys.split()}


def _kind_ids(names: str) -> tuple[KindId, ...]:
    pairs = (name.split("/") for name in names.split())
    return tuple((plugin, kind) for plugin, kind in pairs)


def _unit(kind: str, name: str) -> str:
    if name.endswith(_ENDINGS):
        return name
    return f"{name}.{'service' if kind == 'unit' else kind}"


def _is_of_kind(kind: str, name: str) -> bool:
    return kind == "unit" or name.endswith(f".{kind}")


def _package(name: str) -> str:
    """Strip the architecture and, in names of rpm packages, the version and release."""
    base, is_there, _ = name.rpartition(":")
    if not is_there:
        return name
    first, *rest = base.rsplit("-", 2)
    return first if len(rest) == 2 and rest[0][:1].isdigit() and "." in rest[1] else base


def _sysctl(name: str) -> str:
    """Return a setting's name with dots, by sysctl.d(5) if its first separator is `/`."""
    first = next((char for char in name if char in "./"), ".")
    return name.translate(_SWAPPED) if first == "/" else name


def _is_of_architecture(name: str, observed: Mapping[str, Json]) -> bool:
    wanted = name.rpartition(":")[2] if ":" in name else ""
    return wanted in {"", "any", "native", observed.get("architecture")}


def _always(_name: str, _observed: Mapping[str, Json]) -> bool:
    return True


# The field of an object that an observer looked up and did not find.
_LOOKED_FOR: Final = (presence.MISSING, frozenset({"True"}))
_UNITS: Final = Row(
    tuple(("systemd", kind) for kind in ("unit", *_TYPES)),
    UNIT,
    _rules(
        Rule(
            "active_state state status running active ensure",
            "active_state",
            word_values.state,
            baseline=baseline_values.state_of_enabled,
            # a unit that did not run when it was declared
            is_added=True,
        ),
        Rule(
            "enabled enable",
            "unit_file_state enabled",
            word_values.enabled,
            Severity.WARNING,
            baseline=baseline_values.enabled,
        ),
        Rule(
            "masked",
            "masked unit_file_state",
            word_values.masked,
            Severity.WARNING,
            baseline=baseline_values.masked,
        ),
        Rule("exec exec_start command", "exec", word_values.program),
        Rule("user", "user", word_values.equal, Severity.WARNING),
        Rule("calendar", "calendar", word_values.calendar),
    ),
    declared_key=_unit,
    covers=_is_of_kind,
    aliases="aliases",
    is_stable=baseline_values.is_installed_unit,
)
_INTERFACES: Final = Row(
    _kind_ids("net/interface network/interface"),
    ("net", "interface"),
    _rules(
        Rule("type kind", "type", network_values.kind, baseline=as_observed),
        Rule("ipv4.address ipv4.addresses", "", network_values.addresses(4), Severity.WARNING),
        Rule("ipv6.address ipv6.addresses", "", network_values.addresses(6), Severity.WARNING),
        Rule(
            "addresses address",
            "",
            network_values.addresses(0),
            Severity.WARNING,
            baseline=baseline_values.addresses,
        ),
        Rule("dhcp ipv4.dhcp", "", network_values.dhcp, baseline=baseline_values.dhcp),
        Rule("ipv4.enabled", "", network_values.has(4)),
        Rule("ipv6.enabled", "", network_values.has(6)),
        Rule(
            "gateway ipv4.gateway",
            "",
            network_values.gateway(4),
            baseline=baseline_values.gateway(4),
        ),
        Rule("ipv6.gateway", "", network_values.gateway(6), baseline=baseline_values.gateway(6)),
        Rule(
            "controller master",
            "master",
            network_values.controller,
            default="",
            baseline=as_observed,
        ),
        Rule("ports members slaves", "", network_values.ports, Severity.WARNING),
        Rule("enabled", "enabled", word_values.state, baseline=as_observed),
        Rule("vlan_id vlan", "vlan", word_values.equal),
        Rule("mac mac_address hwaddr", "mac", word_values.equal),
        Rule("parent", "parent", network_values.parent),
    ),
    joined=(
        BelongingKind(("net", "address"), r".* on (.+)", "addresses_in_detail"),
        BelongingKind(("net", "route"), r"default\b.* dev (\S+).*", "default_routes"),
    ),
    members=Membership("master", "members"),
    related=frozenset({"master", "parent"}),
    aliases="aliases",
    is_stable=baseline_values.is_lasting_interface,
)
_PACKAGES: Final = Row(
    _kind_ids(
        "packagekit/package packages/package apt/package dpkg/package rpm/package dnf/package"
        " yum/package zypper/package software/package"
    ),
    ("packages", "package"),
    _rules(
        Rule(
            "ensure state status present installed",
            "status",
            word_values.installed,
            Severity.ERROR,
            baseline=as_observed,
        ),
        Rule("version", "version", word_values.version),
        Rule(
            "hold held on_hold",
            "on_hold",
            word_values.equal,
            default=False,
            baseline=baseline_values.if_true,
        ),
    ),
    declared_key=lambda _kind, name: _package(name),
    observed_key=_package,
    suits=_is_of_architecture,
    gone=("status", presence.REMOVED),
    is_stable=baseline_values.is_chosen_package,
)
ROWS: Final[Sequence[Row]] = (
    _UNITS,
    _INTERFACES,
    _PACKAGES,
    Row(
        _kind_ids("login1/session"),
        ("login1", "session"),
        # sessions end when users log out
        missing=Severity.NOTICE,
        never=frozenset({"path", "leader", "leader_pid"}),
    ),
    Row(
        _kind_ids("mounts/mount"),
        ("mounts", "mount"),
        _rules(
            Rule(
                "source device what",
                "source",
                word_values.source,
                Severity.WARNING,
                baseline=baseline_values.named_source,
            ),
            Rule(
                "options",
                "options",
                word_values.options,
                lists=AT_LEAST,
                baseline=baseline_values.compared_options,
            ),
            Rule(
                "fstype type",
                "fstype",
                word_values.filesystem,
                Severity.WARNING,
                baseline=as_observed,
            ),
        ),
        declared_key=lambda _kind, name: name.rstrip("/") or "/",
        # sizes are observed in other units
        never=frozenset({"size_gb", "used_percent", "free_gb"}),
        is_stable=baseline_values.is_lasting_mount,
    ),
    Row(
        _kind_ids("users/account users/user"),
        ("users", "account"),
        _rules(
            *(
                Rule(key, key, word_values.equal, baseline=as_observed)
                for key in ("uid", "gid", "home")
            ),
            Rule("groups", "groups", word_values.groups, Severity.WARNING),
            Rule(
                "description comment gecos full_name",
                "full_name comment description",
                word_values.full_name,
                Severity.INFO,
            ),
            Rule("shell", "shell", word_values.program, baseline=as_observed),
        ),
        is_stable=_always,
        is_claimed=True,
    ),
    Row(
        _kind_ids("users/group"),
        ("users", "group"),
        _rules(
            Rule("gid", "gid", word_values.equal, baseline=as_observed),
            Rule(
                "members",
                "members",
                word_values.name_set,
                Severity.WARNING,
                baseline=as_observed,
            ),
        ),
        is_stable=_always,
        is_claimed=True,
    ),
    Row(
        (("system", SETTINGS),),
        ("system", "fact"),
        _rules(
            Rule("locale lang language", "lang", word_values.spelled, baseline=as_observed),
            Rule(
                "keyboard_layout keymap keyboard",
                "keyboard_layout keymap",
                word_values.equal,
                baseline=as_observed,
            ),
            Rule(
                "hostname name",
                "hostname",
                word_values.equal,
                Severity.WARNING,
                baseline=as_observed,
            ),
            Rule("timezone time_zone", "timezone", word_values.spelled, baseline=as_observed),
            Rule("os distribution", "id", word_values.distribution, baseline=as_observed),
            Rule("kernel", "release", word_values.version),
        ),
        is_stable=_always,
        parts=("hostname", "time", "locale", "os", "kernel", "hardware"),
        never=frozenset({"description"}),
    ),
    # settings, files and jobs are observed only if some object names them
    Row(
        (("sysctl", SETTINGS),),
        ("kernel", "sysctl"),
        declared_key=lambda _kind, name: _sysctl(name),
        each="value",
        missing=None,
        means=word_values.setting,
    ),
    Row(
        _kind_ids("kernel/sysctl sysctl/setting"),
        ("kernel", "sysctl"),
        _rules(Rule("value", "value", word_values.setting, lists=IN_ORDER, baseline=as_observed)),
        is_stable=_always,
        declared_key=lambda _kind, name: _sysctl(name),
        gone=_LOOKED_FOR,
        missing=None,
    ),
    Row(
        _kind_ids("cron/job"),
        ("cron", "job"),
        _rules(
            Rule(
                "schedule line when",
                "line schedule",
                word_values.schedule,
                baseline=as_observed,
            ),
            Rule("user", "user", word_values.equal, Severity.WARNING, baseline=as_observed),
        ),
        missing=None,
        is_stable=_always,
        is_claimed=True,
    ),
    Row(
        _kind_ids("files/file"),
        ("files", "file"),
        _rules(
            Rule("mode permissions", "mode", word_values.mode, baseline=as_observed),
            Rule(
                "owner",
                "owner",
                word_values.owner,
                Severity.WARNING,
                default="root",
                baseline=baseline_values.root_owner,
            ),
            # an upgrade of a package replaces a file that is not modified
            Rule("modified", "modified", word_values.equal, baseline=baseline_values.if_false),
            Rule("sha256", "sha256", word_values.equal, baseline=baseline_values.digest),
            Rule("size", "size", word_values.equal, baseline=baseline_values.of_unread),
            Rule("written_at", "written_at", word_values.equal, baseline=baseline_values.of_unread),
        ),
        worsen=word_values.worsen_of_file,
        gone=_LOOKED_FOR,
        missing=None,
        covers=lambda _kind, name: baseline_values.is_of_parts(name),
        # a package brings and removes its own
        is_extra=lambda seen: "package" not in seen,
        is_stable=baseline_values.is_lasting_file,
        is_claimed=True,
    ),
    Row(
        _kind_ids("net/listener"),
        ("net", "listener"),
        _rules(
            Rule("user", "user", word_values.equal, baseline=as_observed),
            Rule("unit", "unit", word_values.equal, baseline=baseline_values.lasting_unit),
        ),
        is_stable=_always,
        is_claimed=True,
    ),
    *(
        Row((kind_id,), kind_id, gone=_LOOKED_FOR, missing=None)
        for kind_id in _kind_ids("net/route login1/inhibitor")
    ),
    Row(
        _kind_ids("dnsresolver/item"),
        ("dnsresolver", "item"),
        _rules(Rule("search", "search", word_values.in_order, Severity.WARNING, lists=IN_ORDER)),
    ),
)
_BY_DECLARED: Final = {kind_id: row for row in ROWS for kind_id in row.declared}
_BY_OBSERVED: Final = {row.observed: row for row in ROWS}
# Declared kinds that have a row.
DECLARED: Final = frozenset(_BY_DECLARED)
OBSERVED: Final = frozenset(_BY_OBSERVED)
# Kinds in which observers also look up the objects that the file names, and the field of an object
# that could be read.
LOOKED_AT: Final = {("kernel", "sysctl"): "value", ("files", "file"): "mode"}
# Observed kinds whose objects belong to objects of another kind.
JOINED: Final = {
    kind_id: Belonging(row, re.compile(pattern, re.DOTALL), place)
    for row in ROWS
    for kind_id, pattern, place in row.joined
}


def of_declared(kind_id: KindId) -> Row:
    """Return the row of a declared kind; one without a row is paired with itself."""
    return _BY_DECLARED.get(kind_id) or _default_row(kind_id)


def observed_of(kind_ids: Iterable[KindId]) -> set[KindId]:
    """Return the observed kinds that are paired with declared ones, of which there may be many."""
    rows = ((kind_id, _BY_DECLARED.get(kind_id)) for kind_id in kind_ids)
    return {row.observed if row else kind_id for kind_id, row in rows}


@lru_cache(maxsize=256)
def of_claimed(kind_id: KindId) -> Row:
    """Return the row of a declared kind that the file claims: a missing object is an error.

    A claim is made with the names of the observer. Kinds of which it only looks up the named
    objects are not complete either way.
    """
    row = of_declared(kind_id)
    is_partial = row.observed in LOOKED_AT and not row.is_claimed
    if row.missing is not None or is_partial:
        return row
    return replace(row, missing=Severity.ERROR)


def declared_of(observed: KindId) -> frozenset[KindId]:
    """Return the declared kinds that are paired with an observed kind."""
    return frozenset({observed}.union(*(r.declared for r in ROWS if r.observed == observed)))


def is_claimed(object_id: ObjectId, claims: frozenset[KindId]) -> bool:
    """Return whether an observed object belongs to a kind that the file claims completely."""
    row = of_observed(object_id[:2])
    return any(
        kind_id in claims and row.covers(kind_id[1], object_id.name) for kind_id in row.declared
    )


def is_read(kind_id: KindId) -> bool:
    """Return whether observed fields of a kind are needed to find an object's aliases or owner."""
    row = of_observed(kind_id)
    return bool(row.aliases or row.members)


def of_observed(kind_id: KindId) -> Row:
    """Return the row of an observed kind; one without a row is paired with itself."""
    return _BY_OBSERVED.get(kind_id) or _default_row(kind_id)


@lru_cache(maxsize=256)
def _default_row(kind_id: KindId) -> Row:
    return Row((kind_id,), kind_id)
