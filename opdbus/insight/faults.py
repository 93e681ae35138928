"""What makes an object odd whatever others of its kind have: a rule for each kind. Pure."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from opdbus.state.object import Json, Thing

KINDS: Final = frozenset((("users", "account"), ("net", "listener")))
# What a person started: in a login session, or by the person's own service manager.
_OF_PERSON: Final = re.compile(r"session-.+\.scope|user@.+\.service|user-.+\.slice|run-u.+\.scope")
_SUPERUSER: Final = "root"


class Rule(NamedTuple):
    """The value that a rule gives an object of a kind in a field, and the usual one."""

    field: str
    value: str
    usual: str
    is_fault: bool


def rule_of(
    thing: Thing, properties: Mapping[str, Json], services: AbstractSet[str] = frozenset()
) -> Rule | None:
    """Return how a rule sees an object; None where there is no rule for it.

    `services` are the accounts of the system, which are no persons.
    """
    if thing[:2] == ("users", "account"):
        uid = properties.get("uid")
        is_root = uid == 0 and not isinstance(uid, bool)
        value = "superuser" if is_root else "no superuser"
        return Rule("rights", value, "no superuser", is_root and thing.name != _SUPERUSER)
    if thing[:2] == ("net", "listener"):
        units = str(properties.get("unit", "")).split(", ")
        user = str(properties.get("user", ""))
        # what is in no unit and root's may be the kernel's own
        if units == [""] and {*user.split(", ")} <= services | {"", _SUPERUSER}:
            return None
        is_of_person = units == [""] or any(map(_OF_PERSON.fullmatch, units))
        value = f"a person, {user}" if is_of_person and user else "a person"
        return Rule("opened_by", value if is_of_person else "a service", "a service", is_of_person)
    return None
