"""Names of users and groups by their ids, and who is an administrator."""

import grp
import os
import pwd
from typing import Final

# Members may become root by sudo or su. Members of adm may only read logs.
ADMINISTRATORS: Final = frozenset({"sudo", "wheel", "admin"})


def user_name(uid: int) -> str:
    """Return a user's name, or the number if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def group_name(gid: int) -> str:
    """Return a group's name, or the number if there is none."""
    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OverflowError):
        return str(gid)


def is_administrator(uid: int) -> bool:
    """Return whether a user is root, or in a group whose members may become root."""
    try:
        user = pwd.getpwuid(uid)
        gids = os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OverflowError):
        return False
    return uid == 0 or not ADMINISTRATORS.isdisjoint(map(group_name, gids))
