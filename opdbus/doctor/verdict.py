"""The result of a check."""

from typing import Final, Literal, NamedTuple, TypeAlias

Status: TypeAlias = Literal["ok", "warning", "wrong"]

START: Final = "start the daemon with `systemctl start op-dbus` or `op-dbus daemon`"
RESTART: Final = "`systemctl restart op-dbus`"


class Verdict(NamedTuple):
    """The result of one check, and advice if it is not ok."""

    subject: str
    status: Status
    finding: str
    advice: str = ""


def objects(count: int) -> str:
    """Return a number of objects as text."""
    return f"{count:,} object{'' if count == 1 else 's'}"
