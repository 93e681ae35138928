"""Names of users and groups by their ids."""

import grp
import pwd


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
