"""Accounts and groups, from /etc/passwd and /etc/group; passwords are not looked at."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from opdbus.history.happening import ADMINISTRATORS
from opdbus.observe.reading import changed_at, in_thread, text_of
from opdbus.observe.report import MAX_OBJECTS, Absent, Observer, Report
from opdbus.state.object import Json
from opdbus.state.watch import changes

# Ids of people begin here, as in login.defs of all large distributions; `nobody` is not one.
_FIRST_PERSON: Final = 1000
_NOBODY: Final = 65534
# Programs in the place of a shell that end, or do one thing, instead of taking commands.
_NO_SHELLS: Final = frozenset("nologin false true sync halt shutdown poweroff".split())
# useradd writes several files one after another.
_SETTLE_SECONDS: Final = 0.2
_MAX_ENTRIES: Final = MAX_OBJECTS // 2
# Names in one list: a group of all students need not be listed in full.
_MAX_LISTED: Final = 500
_Objects: TypeAlias = dict[str, Mapping[str, Json]]
T = TypeVar("T")


class _Account(NamedTuple):
    """A line of passwd, without what stands for the password."""

    uid: int
    gid: int
    gecos: str
    home: str
    shell: str


class _Group(NamedTuple):
    """A line of group, without what stands for the password."""

    gid: int
    members: list[str]


class _Listing(NamedTuple):
    """All accounts and groups, and what could not be listed."""

    accounts: _Objects
    groups: _Objects
    limits: str


@dataclass(frozen=True, slots=True)
class Users:
    """Observes the accounts of the host's own files.

    Accounts of a directory server are not listed: asking for all of them may take for ever, and
    the service has no network. The status says so.
    """

    passwd: Path = Path("/etc/passwd")
    group: Path = Path("/etc/group")
    switch: Path = Path("/etc/nsswitch.conf")
    sudoers: Path = Path("/etc/sudoers")

    async def observe(self, report: Report) -> None:
        """List all whenever one of the files has changed; raises Absent."""
        files = (self.passwd, self.group, self.switch, self.sudoers)
        async for _ in changes(*files, settle=_SETTLE_SECONDS):
            changed = max(changed_at(str(path)) for path in (self.passwd, self.group))
            found = await in_thread(self._list)
            report.busy(found.limits)
            cause = report.causes.run(changed) if report.has_listed("account") else ""
            # accounts name their groups, which are there first
            report.replace("group", found.groups, cause)
            report.replace("account", found.accounts, cause)

    def _list(self) -> _Listing:
        limits = list(self._elsewhere())
        accounts = _entries(self.passwd, _account, limits)
        groups = _entries(self.group, _group, limits)
        if not accounts:
            raise Absent(f"there are no accounts in {self.passwd}")
        return _Listing(
            _described_accounts(accounts, groups),
            _described_groups(groups, accounts),
            "; ".join(limits),
        )

    def _elsewhere(self) -> Iterator[str]:
        """Say where else accounts, and their rights, come from."""
        rows = (line.split("#")[0].split() for line in text_of(self.switch).splitlines())
        sources = next((row[1:] for row in rows if row[:1] == ["passwd:"]), [])
        others = {word for word in sources if word.isalnum()}
        if names := sorted(others - {"files", "compat", "db", "systemd"}):
            yield f"accounts of {', '.join(names)} are not listed, only those of {self.passwd}"
        if self.sudoers.exists():
            yield f"only root may read {self.sudoers}: whom it lets become root is not known"


def _account(_password: str, uid: str, gid: str, *rest: str) -> _Account:
    return _Account(_number(uid), _number(gid), *rest)


def _group(_password: str, gid: str, members: str) -> _Group:
    return _Group(_number(gid), [member for member in members.split(",") if member])


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(1 << 32))):
        raise ValueError("no user or group has this id")
    return int(text)


def _entries(path: Path, read: Callable[..., T], limits: list[str]) -> dict[str, T]:
    """Return the entries of a file by name, the first one of each; add to `limits` what is bad."""
    found: dict[str, T] = {}
    bad = 0
    for line in text_of(path).split("\n"):
        # old files include others with + and -
        if not line.strip() or line[0] in "+-#":
            continue
        name, *rest = line.split(":")
        try:
            found.setdefault(name, read(*rest))
        except (TypeError, ValueError):  # too few fields or too many, or no number
            bad += 1
    if bad:
        limits.append(f"{bad:,} lines of {path} are not understood")
    if len(found) > _MAX_ENTRIES:
        limits.append(f"{path} has {len(found):,} entries: {_MAX_ENTRIES:,} are listed")
    return dict(list(found.items())[:_MAX_ENTRIES])


def _described_accounts(accounts: Mapping[str, _Account], groups: Mapping[str, _Group]) -> _Objects:
    names = {group.gid: name for name, group in reversed(list(groups.items()))}
    joined: dict[str, list[str]] = {}
    for name, group in groups.items():
        for member in group.members:
            joined.setdefault(member, []).append(name)
    return {
        name: _properties(
            name, account, names.get(account.gid, str(account.gid)), sorted(joined.get(name, ()))
        )
        for name, account in accounts.items()
    }


def _properties(
    name: str, account: _Account, group: str, groups: Sequence[str]
) -> Mapping[str, Json]:
    # what follows the name are rooms and telephones: personal, and they tell nothing of the host
    full_name = account.gecos.split(",")[0].strip()
    facts = {
        "uid": account.uid,
        "gid": account.gid,
        "group": group,
        "home": account.home,
        "shell": account.shell,
        "groups": list(groups[:_MAX_LISTED]),
        "system": _is_system(account.uid),
        "can_log_in": account.shell.rpartition("/")[2] not in _NO_SHELLS,
        "administrator": account.uid == 0 or not ADMINISTRATORS.isdisjoint([group, *groups]),
    }
    facts["type"] = _type(account.uid, facts)
    # for most system accounts it only repeats the name
    if full_name not in {"", name}:
        facts["full_name"] = full_name
        facts["description"] = f"{full_name}, {facts['type']}"
    return facts


def _type(uid: int, facts: Mapping[str, Json]) -> str:
    """Say in words what an account may do, without what is usual for its type."""
    if uid == 0:
        return "superuser"
    words = ["system account" if facts["system"] else "user account"]
    words += ["administrator"] if facts["administrator"] else []
    if facts["can_log_in"] == facts["system"]:
        words.append("can log in" if facts["can_log_in"] else "cannot log in")
    return ", ".join(words)


def _described_groups(groups: Mapping[str, _Group], accounts: Mapping[str, _Account]) -> _Objects:
    own: dict[int, list[str]] = {}
    for name, account in accounts.items():
        own.setdefault(account.gid, []).append(name)
    return {
        name: _group_properties(group, sorted({*group.members, *own.get(group.gid, ())}))
        for name, group in groups.items()
    }


def _group_properties(group: _Group, members: Sequence[str]) -> Mapping[str, Json]:
    return {
        "gid": group.gid,
        "members": list(members[:_MAX_LISTED]),
        "member_count": len(members),
        "system": _is_system(group.gid),
    }


def _is_system(number: int) -> bool:
    return number < _FIRST_PERSON or number == _NOBODY


OBSERVER: Final = Observer("users", "users", Users().observe)
