"""Which declared objects meet which observed ones, and how their fields are compared: one row each.

Declared objects of other kinds meet the object of the same plugin, kind and name, and each of their
fields the observed one of the same words.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from opdbus.drift import network_values, word_values
from opdbus.drift.field import Severity
from opdbus.drift.word_values import Meaning
from opdbus.state.object import SETTINGS, Json, ObjectId

# A plugin and a kind of it.
Sort: TypeAlias = tuple[str, str]

# How the elements of a declared list are compared: all that are observed, in any order or in just
# that one; or only those that are declared. docs/drift.md lists the fields of the last two.
Lists: TypeAlias = Literal["whole", "in order", "at least these"]
WHOLE: Final = "whole"
IN_ORDER: Final = "in order"
AT_LEAST: Final = "at least these"

_TYPES: Final = "service socket timer mount automount swap device target path slice scope".split()
_ENDINGS: Final = tuple(f".{one}" for one in _TYPES)
_SWAPPED: Final = str.maketrans("./", "/.")


@dataclass(frozen=True, slots=True)
class Rule:
    """How declared fields of some names, with dots, are compared, and with which observed field.

    `observed` names fields of which the first that is there counts; without any, `default` does.
    A rule that names none is given all that is observed. `lists` says how a list is compared.
    """

    keys: str
    observed: str
    means: Meaning
    severity: Severity = Severity.NOTICE
    default: Json = None
    lists: Lists = WHOLE


@dataclass(frozen=True, slots=True)
class Row:
    """Declared objects of some sorts meet observed ones of one sort, by the keys of their names."""

    declared: tuple[Sort, ...]
    observed: Sort
    rules: Mapping[str, Rule] = field(default_factory=dict)
    # the key by which a declared and an observed name meet
    declared_key: Callable[[str, str], str] = lambda _kind, name: name
    observed_key: Callable[[str], str] = lambda name: name
    # whether an observed object of the key is meant by a declared name
    suits: Callable[[str, Mapping[str, Json]], bool] = lambda _name, _observed: True
    # whether what is observed under a name is one of all objects that a kind claims
    covers: Callable[[str, str], bool] = lambda _kind, _name: True
    # names that a declared object meets all of, as if they were one object
    parts: tuple[str, ...] = ()
    # each declared field names an object, and is compared with this field of it
    each: str = ""
    # the observed field that has other names of an object
    aliases: str = ""
    # observed sorts that belong to an object, whose key is in their names; where they are put
    joined: tuple[tuple[Sort, str, str], ...] = ()
    # the observed field by which objects of the same sort belong to one, and where they are put
    members: tuple[str, str] | None = None
    # the observed fields that name objects of the same sort
    related: frozenset[str] = frozenset()
    # a field and its values that say that an object is as good as not there
    gone: tuple[str, frozenset[str]] = ("", frozenset())
    # how bad it is if there is no such object; None where not all that there are have such names
    missing: Severity | None = Severity.ERROR
    # how fields without a rule are compared
    means: Meaning = word_values.equal
    # declared fields that are not compared
    never: frozenset[str] = frozenset()


def _rules(*rules: Rule) -> dict[str, Rule]:
    return {key: rule for rule in rules for key in rule.keys.split()}


def _sorts(names: str) -> tuple[Sort, ...]:
    pairs = (name.split("/") for name in names.split())
    return tuple((plugin, kind) for plugin, kind in pairs)


def _unit(kind: str, name: str) -> str:
    if name.endswith(_ENDINGS):
        return name
    return f"{name}.{'service' if kind == 'unit' else kind}"


def _is_of_kind(kind: str, name: str) -> bool:
    return kind == "unit" or name.endswith(f".{kind}")


def _package(name: str) -> str:
    """Leave the architecture, and the version that rpm needs before it, out of a package's name."""
    base, is_there, _ = name.rpartition(":")
    if not is_there:
        return name
    first, *rest = base.rsplit("-", 2)
    return first if len(rest) == 2 and rest[0][:1].isdigit() and "." in rest[1] else base


def _sysctl(name: str) -> str:
    """Return a setting's name with dots, as sysctl.d(5) reads one whose first separator is `/`."""
    first = next((char for char in name if char in "./"), ".")
    return name.translate(_SWAPPED) if first == "/" else name


def _is_of_architecture(name: str, observed: Mapping[str, Json]) -> bool:
    wanted = name.rpartition(":")[2] if ":" in name else ""
    return wanted in {"", "any", "native", observed.get("architecture")}


# What says that a thing was looked for that is not there.
_LOOKED_FOR: Final = ("missing", frozenset({"True"}))
_UNITS: Final = Row(
    tuple(("systemd", kind) for kind in ("unit", *_TYPES)),
    ("systemd", "unit"),
    _rules(
        Rule("active_state state status running active ensure", "active_state", word_values.state),
        Rule("enabled enable", "unit_file_state enabled", word_values.enabled, Severity.WARNING),
        Rule("masked", "masked unit_file_state", word_values.masked, Severity.WARNING),
        Rule("exec exec_start command", "exec", word_values.program),
        Rule("user", "user", word_values.equal, Severity.WARNING),
        Rule("calendar", "calendar", word_values.calendar),
    ),
    declared_key=_unit,
    covers=_is_of_kind,
    aliases="aliases",
)
_INTERFACES: Final = Row(
    _sorts("net/interface network/interface"),
    ("net", "interface"),
    _rules(
        Rule("type kind", "type", network_values.kind),
        Rule("ipv4.address ipv4.addresses", "", network_values.addresses(4), Severity.WARNING),
        Rule("ipv6.address ipv6.addresses", "", network_values.addresses(6), Severity.WARNING),
        Rule("address addresses", "", network_values.addresses(0), Severity.WARNING),
        Rule("ipv4.dhcp dhcp", "", network_values.dhcp),
        Rule("ipv4.enabled", "", network_values.has(4)),
        Rule("ipv6.enabled", "", network_values.has(6)),
        Rule("ipv4.gateway gateway", "", network_values.gateway(4)),
        Rule("ipv6.gateway", "", network_values.gateway(6)),
        Rule("controller master", "master", network_values.controller, default=""),
        Rule("ports members slaves", "", network_values.ports, Severity.WARNING),
        Rule("enabled", "enabled", word_values.state),
        Rule("vlan_id vlan", "vlan", word_values.equal),
        Rule("mac mac_address hwaddr", "mac", word_values.equal),
        Rule("parent", "parent", network_values.parent),
    ),
    joined=(
        (("net", "address"), r".* on (.+)", "addresses_in_detail"),
        (("net", "route"), r"default\b.* dev (\S+).*", "default_routes"),
    ),
    members=("master", "members"),
    related=frozenset({"master", "parent"}),
    aliases="aliases",
)
_PACKAGES: Final = Row(
    _sorts(
        "packagekit/package packages/package apt/package dpkg/package rpm/package dnf/package"
        " yum/package zypper/package software/package"
    ),
    ("packages", "package"),
    _rules(
        Rule(
            "ensure state status present installed", "status", word_values.installed, Severity.ERROR
        ),
        Rule("version", "version", word_values.version),
        Rule("hold held on_hold", "on_hold", word_values.equal, default=False),
    ),
    declared_key=lambda _kind, name: _package(name),
    observed_key=_package,
    suits=_is_of_architecture,
    gone=("status", frozenset({"config-files", "not-installed"})),
)
ROWS: Final[Sequence[Row]] = (
    _UNITS,
    _INTERFACES,
    _PACKAGES,
    Row(
        _sorts("login1/session"),
        ("login1", "session"),
        # a session is there for as long as somebody works
        missing=Severity.NOTICE,
        never=frozenset({"path", "leader", "leader_pid"}),
    ),
    Row(
        _sorts("mounts/mount"),
        ("mounts", "mount"),
        _rules(
            Rule("source device what", "source", word_values.source, Severity.WARNING),
            Rule("options", "options", word_values.options, lists=AT_LEAST),
            Rule("fstype type", "fstype", word_values.filesystem, Severity.WARNING),
        ),
        declared_key=lambda _kind, name: name.rstrip("/") or "/",
        # sizes are observed in other steps
        never=frozenset({"size_gb", "used_percent", "free_gb"}),
    ),
    Row(
        _sorts("users/account users/user"),
        ("users", "account"),
        _rules(
            Rule("groups", "groups", word_values.groups, Severity.WARNING),
            Rule(
                "description comment gecos full_name",
                "full_name comment description",
                word_values.full_name,
                Severity.INFO,
            ),
            Rule("shell", "shell", word_values.program),
        ),
    ),
    Row(
        _sorts("users/group"),
        ("users", "group"),
        _rules(Rule("members", "members", word_values.names, Severity.WARNING)),
    ),
    Row(
        (("system", SETTINGS),),
        ("system", "fact"),
        _rules(
            Rule("locale lang language", "lang", word_values.spelled),
            Rule("keyboard_layout keymap keyboard", "keyboard_layout keymap", word_values.equal),
            Rule("hostname name", "hostname", word_values.equal, Severity.WARNING),
            Rule("timezone time_zone", "timezone", word_values.spelled),
            Rule("os distribution", "id", word_values.distribution),
            Rule("kernel", "release", word_values.version),
        ),
        parts=("hostname", "time", "locale", "os", "kernel", "hardware"),
        never=frozenset({"description"}),
    ),
    # of settings, files and jobs, those are observed that something names
    Row(
        (("sysctl", SETTINGS),),
        ("kernel", "sysctl"),
        declared_key=lambda _kind, name: _sysctl(name),
        each="value",
        missing=None,
        means=word_values.setting,
    ),
    Row(
        _sorts("kernel/sysctl sysctl/setting"),
        ("kernel", "sysctl"),
        _rules(Rule("value", "value", word_values.setting, lists=IN_ORDER)),
        declared_key=lambda _kind, name: _sysctl(name),
        gone=_LOOKED_FOR,
        missing=None,
    ),
    Row(
        _sorts("cron/job"),
        ("cron", "job"),
        _rules(Rule("schedule line when", "line schedule", word_values.schedule)),
        missing=None,
    ),
    Row(
        _sorts("files/file"),
        ("files", "file"),
        _rules(Rule("mode permissions", "mode", word_values.mode)),
        gone=_LOOKED_FOR,
        missing=None,
    ),
    *(
        Row((sort,), sort, gone=_LOOKED_FOR, missing=None)
        for sort in _sorts("net/listener net/route login1/inhibitor")
    ),
    Row(
        _sorts("dnsresolver/item"),
        ("dnsresolver", "item"),
        _rules(Rule("search", "search", word_values.in_order, Severity.WARNING, lists=IN_ORDER)),
    ),
)
_BY_DECLARED: Final = {sort: row for row in ROWS for sort in row.declared}
_BY_OBSERVED: Final = {row.observed: row for row in ROWS}
# All that has a row.
DECLARED: Final = frozenset(_BY_DECLARED)
# Of these, observers look at what the file names besides.
LOOKED_AT: Final = (("kernel", "sysctl"),)
# The sorts of objects that belong to others.
JOINED: Final = {
    sort: (row, re.compile(pattern, re.DOTALL), place)
    for row in ROWS
    for sort, pattern, place in row.joined
}


def of_declared(sort: Sort) -> Row:
    """Return the row of a declared sort; others meet what is just so."""
    return _BY_DECLARED.get(sort) or _just_so(sort)


def declared_of(observed: Sort) -> frozenset[Sort]:
    """Return the sorts of declared things that meet what is of an observed sort."""
    return frozenset({observed}.union(*(r.declared for r in ROWS if r.observed == observed)))


def is_claimed(object_id: ObjectId, claims: frozenset[Sort]) -> bool:
    """Return whether an observed thing would be declared, as all things of some sorts are."""
    row = of_observed(object_id[:2])
    return any(sort in claims and row.covers(sort[1], object_id.name) for sort in row.declared)


def is_read(sort: Sort) -> bool:
    """Return whether an observed object's fields say what else it is called, or belongs to."""
    row = of_observed(sort)
    return bool(row.aliases or row.members)


def of_observed(sort: Sort) -> Row:
    """Return the row of an observed sort."""
    return _BY_OBSERVED.get(sort) or _just_so(sort)


@lru_cache(maxsize=256)
def _just_so(sort: Sort) -> Row:
    return Row((sort,), sort)
