"""What makes an object odd whatever others of its kind have: a rule for each kind. Pure."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final, NamedTuple

from opdbus.state.object import Json, ObjectId

KINDS: Final = frozenset((("users", "account"), ("net", "listener"), ("files", "file")))
# What the distribution and the hardware bring is as it is: only in these it may be odd.
_STATES: Final = frozenset(
    "state active_state load_state sub_state status result enabled masked missing modified on_hold"
    " restart_loop exit_status exit_signal error differs read_only answers tainted".split()
)
_ORDINARY: Final = frozenset(
    "cron devices kernel login1 machined mounts net packages system users".split()
)
# Units that follow the hardware and what runs.
_MADE: Final = (".device", ".mount", ".scope", ".slice", ".swap")
# Bits of a mode: whoever runs a file is its owner or group, and everybody may write it.
_SET_ID, _WRITABLE = 0o6000, 0o002
# What a person started: in a login session, or by the person's own service manager.
_OF_PERSON: Final = re.compile(r"session-.+\.scope|user@.+\.service|user-.+\.slice|run-u.+\.scope")
_SUPERUSER: Final = "root"
_NO_FILE_RIGHTS: Final = "neither writable by all nor set-user-id"


class Rule(NamedTuple):
    """The value that a rule gives an object of a kind in a field, and the usual one."""

    field: str
    value: str
    usual: str
    is_fault: bool


def is_ordinary(object_id: ObjectId, properties: Mapping[str, Json]) -> bool:
    """Return whether an object is of the distribution or the hardware, and nobody's own."""
    is_made = object_id.kind == "unit" and object_id.name.endswith(_MADE)
    return object_id.plugin in _ORDINARY or bool(properties.get("package")) or is_made


def is_state(field: str) -> bool:
    """Return whether a field says how an object is now: only by these an ordinary one is odd."""
    return field in _STATES


def rule_of(
    object_id: ObjectId, properties: Mapping[str, Json], services: AbstractSet[str] = frozenset()
) -> Rule | None:
    """Return how a rule sees an object; None where there is no rule for it.

    `services` are the accounts of the system, which are no persons.
    """
    if object_id[:2] == ("users", "account"):
        uid = properties.get("uid")
        is_root = uid == 0 and not isinstance(uid, bool)
        # a service needs no such rights
        is_root |= properties.get("system") is True and properties.get("administrator") is True
        value = "superuser" if is_root else "no superuser"
        return Rule("rights", value, "no superuser", is_root and object_id.name != _SUPERUSER)
    if object_id[:2] == ("files", "file"):
        with suppress(ValueError):
            mode = int(str(properties.get("mode", "")), 8)
            said = (
                "set-user-id" if mode & _SET_ID else "writable by all" if mode & _WRITABLE else ""
            )
            # a link to /dev/null has the mode of that
            is_fault = bool(said) and properties.get("regular") is not False
            return Rule("rights", said if is_fault else _NO_FILE_RIGHTS, _NO_FILE_RIGHTS, is_fault)
        return None
    if object_id[:2] == ("net", "listener"):
        units = str(properties.get("unit", "")).split(", ")
        user = str(properties.get("user", ""))
        # what is in no unit and root's may be the kernel's own
        if units == [""] and {*user.split(", ")} <= services | {"", _SUPERUSER}:
            return None
        is_of_person = units == [""] or any(map(_OF_PERSON.fullmatch, units))
        value = f"a person, {user}" if is_of_person and user else "a person"
        return Rule("opened_by", value if is_of_person else "a service", "a service", is_of_person)
    return None
