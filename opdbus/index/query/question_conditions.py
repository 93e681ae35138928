"""Conditions that a question may have, such as `state:failed` and `size>5`. Pure."""

import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from opdbus.errors import InvalidArgs
from opdbus.state import fields
from opdbus.state.conditions import IS, Condition, condition
from opdbus.state.secret_names import is_secret_name

# Questions are cut to this length first: about twice what a model reads.
MAX_CHARACTERS: Final = 2000
# A question with more conditions is a document, in which a colon has another meaning.
_MAX_CONDITIONS: Final = 8
# Fields that make a condition only if an object has the value: `user:hunter2` may be credentials.
_NAMING: Final = frozenset("user username login account".split())
_CANDIDATE = re.compile(
    r"(?<!\S)([a-z][\w-]*(?:\.[\w-]+)*)(:|[<>!]?=|[<>])(\"[^\"]+\"|'[^']+'|[^\s\"']+)",
    re.IGNORECASE,
)
_AT_THE_END: Final = "?!.,;)"


class AskedCondition(NamedTuple):
    """The span `start` to `end` of a question, and the condition that it may be."""

    start: int
    end: int
    condition: Condition

    @property
    def probe(self) -> Condition | None:
        """The condition that an object must meet for the words to be one; None if there is none."""
        name = self.condition.field
        if name.lower() in fields.IDENTITY:
            return None
        return self.condition if name.lower() in _NAMING else Condition(name, "~", "")


def find_conditions(question: str) -> Sequence[AskedCondition]:
    """Return what may be conditions: FIELD:VALUE, and those of `parse` without spaces.

    They are conditions if an object meets their `probe`.
    """
    candidates = [*_CANDIDATE.finditer(question)]
    if len(candidates) > _MAX_CONDITIONS:
        return ()
    read = ((match, _read_condition(*match.groups())) for match in candidates)
    return [AskedCondition(*match.span(), found) for match, found in read if found]


def _read_condition(field: str, compared: str, given: str) -> Condition | None:
    """Return a condition; None for a URL, a time, an address, credentials, or no number."""
    is_quoted = given[0] in "\"'"
    value = given if is_quoted else given.rstrip(_AT_THE_END)
    if not value or value.startswith(("//", ":", "\\")):
        return None
    if field.lower() not in fields.IDENTITY and ("@" in value or is_secret_name(value)):
        return None
    if ":" in value and not is_quoted:
        try:
            ipaddress.ip_interface(value)
        except ValueError:
            return None
    if compared != ":":
        with suppress(InvalidArgs):
            return condition(field, compared, value)
        return None
    # a name is rarely written in full
    return condition(field, "~" if field.lower() == "name" else IS, value)
