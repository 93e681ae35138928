"""Check of the permissions of /etc/op-dbus, whose files may hold secrets."""

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.platform.accounts import group_name, user_name

FOLDER: Final = Path("/etc/op-dbus")
GROUP: Final = "op-dbus-config"
# Permissions that must be off: all those of others, and writing by the group.
_OPEN: Final = stat.S_IRWXO | stat.S_IWGRP
_GET_GROUP: Final = "systemd-sysusers op-dbus.conf"
_MEND: Final = "systemd-tmpfiles --create op-dbus.conf"


class Fault(NamedTuple):
    """A wrong owner, mode or member of the group, and the command that corrects it."""

    finding: str
    advice: str


@dataclass(frozen=True, slots=True)
class Rule:
    """The required owner, group and group member for a folder and all files below it."""

    folder: Path = FOLDER
    owner: str = "root"
    group: str = GROUP
    # the only permitted member of the group
    member: str = "op-dbus"

    def faults(self) -> list[Fault]:
        """Return all faults that this user's permissions allow to be found."""
        if not self.folder.is_dir():
            return []
        try:
            group = grp.getgrnam(self.group)
        except KeyError:
            advice = f"as root, `{_GET_GROUP} && {_MEND}`"
            return [Fault(f"there is no group {self.group}, so the service cannot read", advice)]
        return [*self._files(), *self._members(group)]

    def _files(self) -> list[Fault]:
        wrong = [f"{path} is {how}" for path in self._paths() if (how := self._otherwise(path))]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        finding = f"{self.owner} and {self.group} should own it, closed to others; {{}}{more}"
        return [Fault(finding.format(wrong[0]), f"as root, `{_MEND}`")] if wrong else []

    def _paths(self) -> Iterator[Path]:
        """Yield the folder and all paths below it but links, whose own mode has no effect."""
        yield self.folder
        below = (Path(at, name) for at, *kinds in os.walk(self.folder) for k in kinds for name in k)
        yield from (path for path in below if not path.is_symlink())

    def _otherwise(self, path: Path) -> str:
        """Return mode, owner and group if they are wrong, else an empty string."""
        found = path.lstat()
        names = user_name(found.st_uid), group_name(found.st_gid)
        # the service can read only what its group may read
        is_read = found.st_mode & stat.S_IRGRP
        if names == (self.owner, self.group) and is_read and not found.st_mode & _OPEN:
            return ""
        return f"{stat.filemode(found.st_mode)} {':'.join(names)}"

    def _members(self, group: grp.struct_group) -> Iterator[Fault]:
        first = {user.pw_name for user in pwd.getpwall() if user.pw_gid == group.gr_gid}
        for name in sorted({*group.gr_mem, *first} - {self.member}):
            advice = f"as root, `gpasswd --delete {shlex.quote(name)} {self.group}`"
            if name in first:
                advice = f"as root, give it another group: `usermod --gid GROUP {name}`"
            yield Fault(f"{name} is in the group {self.group} and may read it all", advice)
        if self.member not in group.gr_mem:
            finding = f"{self.member} is not in the group {self.group}, so the service cannot read"
            yield Fault(finding, f"as root, `{_GET_GROUP}`, and restart the service")
