"""Schemas of the fleet's answers, made of the values that the questions return.

The values are the contract of `--json`, HTTP and MCP alike; see `plain_values`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from pydantic import create_model

from opdbus.fleet.questions.plain_values import INTERNAL, PROPERTIES
from opdbus.gateway.host_models import Answer, Json
from opdbus.state.conditions import Condition

_PREFIX: Final = "Fleet"


@cache
def schema_of(value: type[Any], **more: type) -> type[Answer]:
    """Return the model of a class of values as `plain` gives them, with further fields."""
    hints: dict[str, Any] = {}
    for key in PROPERTIES.get(value, ()):
        hints[key] = get_type_hints(getattr(value, key).fget)["return"]
    hints |= get_type_hints(value)
    known = {key: (_json_type(hint), ...) for key, hint in hints.items() if key not in INTERNAL}
    fields: dict[str, Any] = {**known, **{key: (hint, ...) for key, hint in more.items()}}
    return create_model(
        f"{_PREFIX}{value.__name__.removeprefix(_PREFIX)}",
        __base__=Answer,
        __doc__=value.__doc__,
        **fields,
    )


def _json_type(hint: Any) -> Any:  # noqa: ANN401 -- a type
    """Return the type of JSON that a value of a type becomes."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Condition:
        return str
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return schema_of(hint)
    if origin in (types.UnionType, Union):
        return Union[tuple(map(_json_type, inner))]  # noqa: UP007 -- of a list
    if origin and issubclass(origin, Mapping):
        return dict[str, _json_type(inner[1])]  # type: ignore[misc]
    if origin and len(set(inner) - {...}) == 1:
        return list[_json_type(inner[0])]  # type: ignore[misc]
    return list[Json] if origin else hint
