"""What is said of each thing that was checked."""

from typing import Final, Literal, NamedTuple, TypeAlias

Status: TypeAlias = Literal["ok", "warning", "wrong"]

START: Final = "start the daemon with `systemctl start op-dbus` or `op-dbus daemon`"
RESTART: Final = "`systemctl restart op-dbus`"


class Verdict(NamedTuple):
    """One thing that was checked: how it is, and what to do if it is not well."""

    subject: str
    status: Status
    finding: str
    advice: str = ""


def objects(count: int) -> str:
    """Say how many objects there are."""
    return f"{count:,} object{'' if count == 1 else 's'}"
