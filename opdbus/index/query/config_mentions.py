"""Names in a unit's configuration files: paths, ports, users, units and packages. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from opdbus.language.object_text import UNIT_NOUNS
from opdbus.state.object import ObjectId

# Characters read of a line, and lines read of a text.
_LONGEST: Final = 4096
_MOST_LINES: Final = 5000
_COMMENTS: Final = ("#", ";", "//")
# An absolute path that is part of neither a longer path nor a URL.
_PATH: Final = re.compile(r"(?<![\w./~*\\}])/(?!/)[\w@%+:.,~*?$\[\]{}\\/-]+")
# systemd creates the folders of these directives below a fixed parent.
_MADE: Final = re.compile(r"(State|Runtime|Cache|Logs|Configuration)Directory\s*=")
_MADE_IN: Final = {
    "State": "/var/lib", "Runtime": "/run", "Cache": "/var/cache", "Logs": "/var/log",
    "Configuration": "/etc",
}  # fmt: skip
# Start of the part of a path that is only known at run time: `*.conf`, `%i`, `${NAME}`.
_OPEN: Final = re.compile(r"[*?%$\[{]")
_ENDS: Final = ".,:;"
_OF_PORTS: Final = re.compile(r"port|listen|bind|addr|socket|url|host|server", re.IGNORECASE)
_PORT: Final = re.compile(
    r"(?<![\w.-])\d{2,5}(?![\w.%-])|(?<=:)\d{2,5}(?![\w.:%-])",
    re.ASCII,
)
_MOST_PORT: Final = 65535
_ADDRESS: Final = re.compile(
    r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])|\[[0-9a-f:]{3,39}\]", re.ASCII
)
_OF_USERS: Final = re.compile(r"user|group|owner|uid|run.?as|(?<![\w-])-[ug](?!\S)", re.IGNORECASE)
_NAME: Final = re.compile(r"(?<![\w./-])[a-z_][a-z0-9_-]{1,31}(?![\w./-])", re.ASCII)
_NO_USERS: Final = frozenset("root user group owner yes no on off true false none".split())
# Folders that many programs share: a mention of one file there does not connect the others.
SHARED: Final = frozenset(
    f"/{folder}"
    for folder in (
        "etc etc/default etc/init.d etc/ssl etc/ssl/certs etc/ssl/private etc/pki etc/cron.d"
        " etc/cron.daily etc/cron.hourly etc/cron.monthly etc/cron.weekly etc/logrotate.d"
        " etc/pam.d etc/profile.d etc/sysctl.d etc/apparmor.d etc/bash_completion.d"
        " etc/modprobe.d etc/sudoers.d etc/udev etc/udev/rules.d etc/dbus-1 etc/dbus-1/system.d"
        " etc/systemd etc/systemd/system etc/ufw/applications.d etc/security etc/tmpfiles.d"
        " etc/xdg etc/X11 etc/alternatives etc/sysconfig etc/conf.d etc/insserv.conf.d"
        " etc/letsencrypt etc/letsencrypt/live etc/network usr usr/bin usr/sbin usr/lib"
        " usr/libexec usr/share usr/local usr/local/bin usr/local/sbin usr/lib/systemd/system"
        " bin sbin lib opt var var/lib var/log var/cache var/spool var/tmp tmp run srv home root"
        " mnt media dev proc sys"
    ).split()
)
_ETC: Final = "/etc/"
_SUFFIX: Final = re.compile(rf"\.(?:{'|'.join(UNIT_NOUNS)}|d|conf|cfg|ini|cnf|ya?ml|toml)$")
# Shorter names are ordinary words.
_SHORTEST: Final = 3
# Interpreters, which many units run, and words that are not names of programs.
_RUNS_OTHERS: Final = frozenset(
    "bash dash env java mono node nodejs op perl php python ruby sh systemd".split()
)


@dataclass(frozen=True, slots=True)
class Mentions:
    """Names in a unit's files.

    Every file below `folders` belongs to the unit; `stems` are names of the unit, its package and
    its program, without suffixes.
    """

    paths: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()
    users: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    stems: frozenset[str] = frozenset()
    # dependencies of its package and its program
    packages: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()

    def __or__(self, other: "Mentions") -> "Mentions":
        """Return the union of both."""
        return Mentions(*(getattr(self, f.name) | getattr(other, f.name) for f in fields(self)))

    def has(self, object_id: ObjectId) -> bool:
        """Return whether an object is mentioned, below a mentioned path, or a mount above one."""
        match object_id[:2]:
            case "files", "file":
                return self._has_file(object_id.name)
            case "net", "listener":
                port = object_id.name.rpartition(":")[2]
                return port.isascii() and port.isdecimal() and int(port[:5]) in self.ports
            case "users", ("account" | "group"):
                return object_id.name in self.users
            case "mounts", "mount":
                top = f"{object_id.name.rstrip('/')}/"
                return any(f"{path}/".startswith(top) for path in self.paths)
            case "net", "address":
                return object_id.name.partition("/")[0] in self.addresses
            case "packages", "package":
                name = object_id.name.partition(":")[0]
                return name in self.packages or self._is_called(name)
            case "systemd", "unit":
                return object_id.name in self.units
            case "kernel", "sysctl":
                # few settings ever change, and each concerns all programs
                return bool(self.stems)
        return False

    def _has_file(self, path: str) -> bool:
        # files of a shared folder: /etc/default/nginx, /etc/apparmor.d/usr.sbin.nginx
        name = bare_name(path.rpartition("/")[2])
        if path in self.paths or not self.stems.isdisjoint((name, name.rpartition(".")[2])):
            return True
        while path := path.rpartition("/")[0]:
            if path not in SHARED and (path in self.paths or path in self.folders):
                return True
        return False

    def is_of_need(self, object_id: ObjectId) -> bool:
        """Return whether an object is a package that the unit depends on, not the unit's own."""
        return object_id[:2] == ("packages", "package") and not self._is_called(object_id.name)

    def _is_called(self, name: str) -> bool:
        return any(name == stem or name.startswith(f"{stem}-") for stem in self.stems)


def of_names(*names: str) -> Mentions:
    """Return the stems and /etc folders for the names of a unit, its package and its program."""
    stems = {
        stem
        for stem in (bare_name(name).partition("@")[0] for name in names)
        if len(stem) >= _SHORTEST and stem.rstrip("0123456789.") not in _RUNS_OTHERS
    }
    folders = {f"{_ETC}{stem}" for stem in stems} - SHARED
    return Mentions(folders=frozenset(folders), stems=frozenset(stems))


def own_folders(files: frozenset[str]) -> Mentions:
    """Return the /etc folders of a unit's own configuration files, without shared folders."""
    folders = {file.rpartition("/")[0] for file in files if file.startswith(_ETC)}
    # the parent of a drop-in folder such as conf.d belongs to the unit, too
    folders |= {folder.rpartition("/")[0] for folder in folders if folder.endswith(".d")}
    return Mentions(folders=frozenset(folders - SHARED))


def in_text(text: str) -> Mentions:
    """Return the paths, ports, users and addresses that a configuration text names."""
    paths, ports, users, addresses = set[str](), set[int](), set[str](), set[str]()
    for whole in text.split("\n", _MOST_LINES)[:_MOST_LINES]:
        line = whole[:_LONGEST].strip()
        if line.startswith(_COMMENTS):
            continue
        paths.update(_paths(line))
        if ":" in line or _OF_PORTS.search(line):
            ports.update(n for n in map(int, _PORT.findall(line)) if n <= _MOST_PORT)
        if _OF_USERS.search(line):
            users.update(_NAME.findall(line))
        addresses.update(found.strip("[]") for found in _ADDRESS.findall(line))
    return Mentions(
        frozenset(paths),
        frozenset(ports),
        frozenset(users - _NO_USERS),
        addresses=frozenset(addresses),
    )


def _paths(line: str) -> Iterator[str]:
    if made := _MADE.match(line):
        yield from (f"{_MADE_IN[made[1]]}/{name}" for name in line[made.end() :].split())
    for found in _PATH.findall(line):
        known = _OPEN.split(found, maxsplit=1)[0]
        path = known.rstrip(_ENDS) if known == found else known.rpartition("/")[0]
        if path := path.rstrip("/"):
            yield path


def bare_name(name: str) -> str:
    """Return a name without the suffix of a unit or a configuration file."""
    return _SUFFIX.sub("", name)
