"""Answers as JSON values, for `--json`, HTTP and MCP: the same data as is printed."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

from opdbus.fleet.questions.fleet_comparison import KindDifferences
from opdbus.fleet.questions.fleet_scope import Hosts, OnHosts
from opdbus.fleet.questions.peers import OddHost
from opdbus.state.conditions import Condition

# The number of a host is the database's own, and digests are for no reader.
INTERNAL: Final = frozenset({"host", "digest", "content", "scope", "is_all"})
# Properties that are values as well.
PROPERTIES: Final[Mapping[type, Sequence[str]]] = {
    Hosts: ("headline", "remarks"),
    OnHosts: ("words",),
    KindDifferences: ("counts",),
    OddHost: ("counts",),
}


def plain(value: object) -> Any:  # noqa: ANN401 -- JSON
    """Return an answer as dicts, lists, texts and numbers; digests are left out.

    The age of each host's part is in seconds.
    """
    if isinstance(value, Condition):
        return f"{value.field}{value.operator}{value.value}"
    names: Sequence[str] = ()
    if is_dataclass(value):
        names = [each.name for each in fields(value)]
    elif isinstance(value, tuple):
        names = getattr(value, "_fields", ())
    if names:
        shown = [*PROPERTIES.get(type(value), ()), *names]
        return {key: plain(getattr(value, key)) for key in shown if key not in INTERNAL}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value
