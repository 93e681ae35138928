"""Answers as JSON values, for `--json`, HTTP and MCP: the same data as is printed."""

from dataclasses import fields, is_dataclass
from typing import Any, Final

from opdbus.fleet.questions.fleet_scope import Hosts
from opdbus.state.conditions import Condition


def plain(value: object) -> Any:  # noqa: ANN401 -- JSON
    """Return an answer as dicts, lists, texts and numbers; digests are left out.

    Hosts are a list with the age of each one's part, in seconds.
    """
    if isinstance(value, Hosts):
        return {"headline": value.headline, "each": [plain(part) for part in value.parts]}
    if isinstance(value, Condition):
        return f"{value.field}{value.operator}{value.value}"
    if is_dataclass(value):
        named = {each.name: getattr(value, each.name) for each in fields(value)}
        # the number of a host is the database's own
        return {key: plain(item) for key, item in named.items() if key not in _INTERNAL}
    if isinstance(value, tuple) and (names := getattr(value, "_fields", ())):
        pairs = zip(names, value, strict=True)
        return {key: plain(item) for key, item in pairs if key not in _INTERNAL}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


_INTERNAL: Final = frozenset({"host", "digest", "content", "scope"})
