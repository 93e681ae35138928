"""Decoding of dataclasses from the JSON of `dataclasses.asdict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def decode(kind: type[T], written: Mapping[str, Any]) -> T:
    """Make a value of its JSON; keys that are no fields, such as derived figures, are skipped."""
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], written[name]) for name in hints.keys() & written})


def _value(hint: Any, written: Any) -> Any:  # noqa: ANN401 -- any type, any JSON
    inner = get_args(hint)
    if written is None:
        return None
    if NoneType in inner:
        return _value(next(each for each in inner if each is not NoneType), written)
    if get_origin(hint) is tuple:
        return tuple(_value(inner[0], each) for each in written)
    if is_dataclass(hint):
        made: Any = hint
        return decode(made, written)
    return Path(written) if hint is Path else written
