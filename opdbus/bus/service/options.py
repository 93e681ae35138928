"""Validation of options and filters of calls: known keys with values of the right types."""

import reprlib
from collections.abc import Collection, Mapping
from typing import Final, TypeAlias, TypeVar

from opdbus.bus.transport.values import Plain
from opdbus.errors import InvalidArgs
from opdbus.index.search.hits import Page
from opdbus.state import conditions

T = TypeVar("T")
# The type of an `a{sv}` argument.
Given: TypeAlias = dict[str, Plain]

MAX_LIMIT: Final = 10_000


class Options:
    """A call's `a{sv}`; raises InvalidArgs for an unknown key or a value of a wrong type."""

    def __init__(self, given: Given, accepted: Mapping[str, type]) -> None:
        for key, value in given.items():
            if key not in accepted:
                known = ", ".join(accepted) or "none"
                raise InvalidArgs(f"there is no option {key!r}; this method takes {known}")
            if type(value) is not accepted[key]:
                raise InvalidArgs(
                    f"the option {key!r} must be of type {_WORDS[accepted[key]]}, not"
                    f" {reprlib.repr(value)}"
                )
        self._given = given

    def get(self, key: str, default: T) -> T:
        """Return an option's value, or the default."""
        value: T = self._given.get(key, default)
        return value

    def wanted(self, *keys: str) -> dict[str, str]:
        """Return the given ones of some keys with their values, as a filter."""
        return {key: self._given[key] for key in keys if key in self._given}


_WORDS: Final = {str: "string", bool: "boolean", int: "integer", float: "double"}


def require_range(name: str, number: int, least: int, most: int = MAX_LIMIT) -> None:
    """Raise InvalidArgs for a number outside a range."""
    if not least <= number <= most:
        raise InvalidArgs(f"{name} must be from {least} to {most}, not {number}")


def one_of(name: str, given: str, accepted: Collection[str]) -> str:
    """Return a word if it is accepted; otherwise raise InvalidArgs."""
    if given not in accepted:
        raise InvalidArgs(
            f"{name} must be one of {', '.join(filter(None, accepted))}, not {given!r}"
        )
    return given


def page(limit: int, options: Options) -> Page:
    """Return the page of hits that limit and options define; raise InvalidArgs."""
    offset = options.get("offset", 0)
    require_range("limit", limit, 1)
    require_range("offset", offset, 0)
    where = conditions.parse(options.get("where", ""))
    is_explained = options.get("explain", default=False)
    return Page(limit, offset, options.wanted("plugin", "kind"), where, is_explained=is_explained)
