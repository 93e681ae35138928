"""Options and filters of calls: known keys with values of the right types."""

import reprlib
from collections.abc import Collection, Mapping
from typing import Final, TypeAlias, TypeVar

from opdbus.bus.transport.values import Plain
from opdbus.errors import InvalidArgs
from opdbus.index.search.hits import Page
from opdbus.state import conditions

T = TypeVar("T")
# The a{sv} of a call.
Given: TypeAlias = dict[str, Plain]

MAX_LIMIT: Final = 10_000


class Options:
    """A call's `a{sv}`; raises InvalidArgs for an unknown key, or a value of another type."""

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
        """Give an option's value."""
        value: T = self._given.get(key, default)
        return value

    def wanted(self, *keys: str) -> dict[str, str]:
        """Give those of the keys that were given, with their values, as a filter."""
        return {key: self._given[key] for key in keys if key in self._given}


_WORDS: Final = {str: "string", bool: "boolean", int: "integer", float: "double"}


def require_range(name: str, number: int, least: int, most: int = MAX_LIMIT) -> None:
    """Raise InvalidArgs for a number that is too small or too large."""
    if not least <= number <= most:
        raise InvalidArgs(f"{name} must be from {least} to {most}, not {number}")


def one_of(name: str, given: str, accepted: Collection[str]) -> str:
    """Give a word that is accepted; raises InvalidArgs for any other."""
    if given not in accepted:
        raise InvalidArgs(
            f"{name} must be one of {', '.join(filter(None, accepted))}, not {given!r}"
        )
    return given


def page(limit: int, options: Options) -> Page:
    """Give the page of hits that limit and options ask for; raises InvalidArgs."""
    offset = options.get("offset", 0)
    require_range("limit", limit, 1)
    require_range("offset", offset, 0)
    where = conditions.parse(options.get("where", ""))
    is_explained = options.get("explain", default=False)
    return Page(limit, offset, options.wanted("plugin", "kind"), where, is_explained=is_explained)
