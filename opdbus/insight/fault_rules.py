"""Rules that make an object odd regardless of the rest of its kind. Pure."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final, NamedTuple

from opdbus.state.object import Json, ObjectId

KINDS: Final = frozenset((("users", "account"), ("net", "listener"), ("files", "file")))
# State fields: an object of the distribution or the hardware may be odd only in these.
STATES: Final = frozenset(
    "state active_state load_state sub_state status result enabled masked missing modified on_hold"
    " restart_loop exit_status exit_signal error differs read_only answers tainted".split()
)
_ORDINARY: Final = frozenset(
    "cron devices kernel login1 machined mounts net packages system users".split()
)
# Types of units that are generated for hardware and running processes.
_MADE: Final = (".device", ".mount", ".scope", ".slice", ".swap")
# Mode bits: set-user-id and set-group-id; writable by others.
_SET_ID, _WRITABLE = 0o6000, 0o002
# Units of persons: login sessions, user managers, and their transient scopes.
_OF_PERSON: Final = re.compile(r"session-.+\.scope|user@.+\.service|user-.+\.slice|run-u.+\.scope")
_SUPERUSER: Final = "root"
_NO_FILE_RIGHTS: Final = "neither writable by all nor set-user-id"


class Rule(NamedTuple):
    """The value that a rule assigns to a field of an object, and the usual value."""

    field: str
    value: str
    usual: str
    is_fault: bool


def is_ordinary(object_id: ObjectId, properties: Mapping[str, Json]) -> bool:
    """Return whether an object belongs to the distribution or the hardware."""
    is_made = object_id.kind == "unit" and object_id.name.endswith(_MADE)
    return object_id.plugin in _ORDINARY or bool(properties.get("package")) or is_made


def rule_of(
    object_id: ObjectId, properties: Mapping[str, Json], services: AbstractSet[str] = frozenset()
) -> Rule | None:
    """Return the result of the rule for an object; None if there is no rule for it.

    `services` has the names of system accounts, which are not persons.
    """
    if object_id[:2] == ("users", "account"):
        uid = properties.get("uid")
        is_root = uid == 0 and not isinstance(uid, bool)
        # a system account that is an administrator: services need no such rights
        is_root |= properties.get("system") is True and properties.get("administrator") is True
        value = "superuser" if is_root else "no superuser"
        return Rule("rights", value, "no superuser", is_root and object_id.name != _SUPERUSER)
    if object_id[:2] == ("files", "file"):
        with suppress(ValueError):
            mode = int(str(properties.get("mode", "")), 8)
            said = (
                "set-user-id" if mode & _SET_ID else "writable by all" if mode & _WRITABLE else ""
            )
            # a symbolic link to /dev/null shows the mode of its target
            is_fault = bool(said) and properties.get("regular") is not False
            return Rule("rights", said if is_fault else _NO_FILE_RIGHTS, _NO_FILE_RIGHTS, is_fault)
        return None
    if object_id[:2] == ("net", "listener"):
        units = str(properties.get("unit", "")).split(", ")
        user = str(properties.get("user", ""))
        # a root-owned listener without a unit may be the kernel's
        if units == [""] and {*user.split(", ")} <= services | {"", _SUPERUSER}:
            return None
        is_of_person = units == [""] or any(map(_OF_PERSON.fullmatch, units))
        value = f"a person, {user}" if is_of_person and user else "a person"
        return Rule("opened_by", value if is_of_person else "a service", "a service", is_of_person)
    return None
