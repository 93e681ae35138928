"""Files of accounts, as an observer reads them."""

from pathlib import Path

from opdbus.observe.core.report import Observer
from opdbus.observe.host.users import Users

PASSWD = """\
root:x:0:0:root:/root:/bin/bash
games:x:5:60:games:/usr/games:/usr/sbin/nologin
sync:x:4:65534:sync:/bin:/bin/sync
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
mira:x:1001:1001:Mira Novak,Room 4,555:/home/mira:/bin/zsh
theo:x:1002:1002:,,,:/home/theo:
"""


GROUP = """\
root:x:0:
games:x:60:
nogroup:x:65534:
sudo:x:27:mira
video:x:44:mira,theo
mira:x:1001:
theo:x:1002:
"""


class Files:
    """The two files, which are replaced as programs do."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        names = ("passwd", "group", "nsswitch.conf", "sudoers")
        self.users = Users(*(folder / name for name in names))
        self.write(self.users.passwd, PASSWD)
        self.write(self.users.group, GROUP)

    @property
    def observer(self) -> Observer:
        """The observer of them."""
        return Observer("users", "users", self.users.observe)

    def write(self, path: Path, text: str) -> None:
        """Replace a file."""
        part = path.with_name(path.name + "+")
        part.write_bytes(text.encode(errors="surrogateescape"))
        part.rename(path)
