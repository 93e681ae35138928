"""Observer of accounts and groups, from /etc/passwd and /etc/group; passwords are not read."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from opdbus.observe.core.file_reading import changed_at, in_thread, text_of
from opdbus.observe.core.report import MAX_OBJECTS, Absent, Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.platform import name_lists
from opdbus.platform.accounts import ADMINISTRATORS
from opdbus.platform.lines import C_SPACES, split_lines, split_words, strip_blanks
from opdbus.state.object import Json
from opdbus.state.watch import changes

# The first id of users in login.defs of all large distributions; `nobody` is not a user.
_FIRST_PERSON: Final = 1000
_NOBODY: Final = 65534
# Login shells that exit or run a single action instead of taking commands, or that do not exist.
_NO_SHELLS: Final = frozenset(
    "nologin nologin.sh noshell no-shell nonexistent none false true sync halt reboot shutdown"
    " poweroff sftp-server internal-sftp git-shell scponly rssh rush mysecureshell MySecureShell"
    " uucico date passwd".split()
)
_DEVICES: Final = "/dev/"
# useradd writes several files one after another.
_SETTLE_SECONDS: Final = 0.2
_MAX_ENTRIES: Final = MAX_OBJECTS // 2
# The most names in one list: a group may have all users of a university.
_MAX_LISTED: Final = 500
# The most line numbers in one status message.
_MAX_NAMED: Final = 5
_MAX_ID: Final = (1 << 32) - 1
_ACTION: Final = re.compile(r"\[[^\[\]]*\]")
_TO_BLANKS: Final = str.maketrans(dict.fromkeys(C_SPACES, " "))
_Objects: TypeAlias = dict[str, Mapping[str, Json]]
T = TypeVar("T")


class _Account(NamedTuple):
    """A line of passwd, without the password field."""

    uid: int
    gid: int
    gecos: str
    home: str
    shell: str


class _Group(NamedTuple):
    """A line of group, without the password field."""

    gid: int
    members: list[str]


@dataclass(frozen=True, slots=True)
class Users:
    """Observer of the accounts in the host's own files.

    Accounts of a directory server are not listed: enumerating them may take for ever, and the
    service has no network. The status mentions them.
    """

    passwd: Path = Path("/etc/passwd")
    group: Path = Path("/etc/group")
    switch: Path = Path("/etc/nsswitch.conf")
    sudoers: Path = Path("/etc/sudoers")

    async def observe(self, report: Report) -> None:
        """List all accounts and groups after each change of a file; raises Absent."""
        files = (self.passwd, self.group, self.switch, self.sudoers)
        async for _ in changes(*files, settle=_SETTLE_SECONDS):
            changed = max(changed_at(str(path)) for path in (self.passwd, self.group))
            skipped, limits = Skipped(), list[str]()
            accounts, groups = await in_thread(partial(self._list, limits, skipped))
            report.busy("; ".join(limits))
            report.skip("account", skipped)
            cause = report.causes.run(changed) if report.has_listed("account") else ""
            # groups first: accounts refer to them
            report.replace("group", groups, cause)
            report.replace("account", accounts, cause)

    def _list(self, limits: list[str], skipped: Skipped) -> tuple[_Objects, _Objects]:
        """Return all accounts and groups; add sentences on those left out to `limits`."""
        limits += self._list_other_sources(skipped)
        lines = _read_entries(self.passwd, _parse_account, limits, skipped)
        if not lines:
            raise Absent(f"there are no accounts in {self.passwd}")
        accounts = {name: entries[0] for name, entries in lines.items()}
        groups = {}
        for name, several in _read_entries(self.group, _parse_group, limits, skipped).items():
            # members of a group's lines with the first line's id are merged
            own = (group.members for group in several if group.gid == several[0].gid)
            groups[name] = _Group(several[0].gid, list(dict.fromkeys(chain.from_iterable(own))))
        return _describe_accounts(accounts, groups), _describe_groups(groups, accounts)

    def _list_other_sources(self, skipped: Skipped) -> Iterator[str]:
        """Yield sentences on other sources of accounts, groups and rights."""
        switch = _read_switch(self.switch, skipped)
        made: list[str] = []
        for what, database, file in (
            ("accounts", "passwd", self.passwd),
            ("groups", "group", self.group),
        ):
            sources = switch.get(database, {"files", "compat"})
            if database == "group":
                # the source of the supplementary groups of an account
                sources = sources | switch.get("initgroups", set())
            if names := sorted(sources - {"files", "compat", "systemd"}):
                yield f"{what} of {', '.join(names)} are not listed, only those of {file}"
            if "compat" in sources and (
                # lines that include or exclude accounts of other sources
                lines := [
                    str(number)
                    for number, line in enumerate(split_lines(text_of(file)), 1)
                    if line.lstrip(C_SPACES)[:1] in ("+", "-")
                ]
            ):
                others = ", ".join(sorted(switch.get(f"{database}_compat", {"nis"})))
                rows = f"line {name_lists.join_first(lines, _MAX_NAMED)} of {file}"
                yield f"{what} of {others} that {rows} includes or excludes are not listed"
            made += [what] if "systemd" in sources else []
        if made:
            yield f"{' and '.join(made)} that systemd makes, such as dynamic ones, are not listed"
        if self.sudoers.exists():
            yield f"only root may read {self.sudoers}: whom it lets become root is not known"


def _read_switch(path: Path, skipped: Skipped) -> dict[str, set[str]]:
    """Return the sources of each database in nsswitch.conf(5)."""
    found: dict[str, set[str]] = {}
    for number, line in enumerate(split_lines(text_of(path, skipped=skipped)), 1):
        plain = line.partition("#")[0].translate(_TO_BLANKS)
        # actions in brackets are not sources
        name, *sources = split_words(_ACTION.sub(" ", plain.replace(":", " ", 1))) or [""]
        if sources:
            found[name] = set(sources)
        elif name:
            skipped.line(path, number)
    return found


def _parse_account(
    _password: str, uid: str, gid: str, gecos: str = "", home: str = "", shell: str = ""
) -> _Account:
    return _Account(_parse_id(uid), _parse_id(gid), gecos, home, shell)


def _parse_group(_password: str, gid: str, members: str = "") -> _Group:
    names = (member.lstrip(C_SPACES) for member in members.split(","))
    return _Group(_parse_id(gid), [name for name in names if name])


def _parse_id(text: str) -> int:
    """Return an id as strtoul(3) parses it; raises ValueError if it is not one."""
    digits = text.lstrip(C_SPACES).removeprefix("+")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= len(str(_MAX_ID))
    if not is_number or int(digits) > _MAX_ID:
        raise ValueError("no user or group has this id")
    return int(digits)


def _read_entries(
    path: Path, parse: Callable[..., T], limits: list[str], skipped: Skipped
) -> dict[str, list[T]]:
    """Return the entries of a file by name, in the order of the file; parsed as by the C library.

    The first entry of a name comes first and counts. The last field may contain colons. Names
    beyond the maximum are noted in `limits`, invalid lines in `skipped`.
    """
    found: dict[str, list[T]] = {}
    most = _FIELDS[parse]
    for number, line in enumerate(split_lines(text_of(path, skipped=skipped)), 1):
        plain = line.lstrip(C_SPACES)
        # + and - include or exclude entries of other sources
        if not plain or plain[0] in "+-#":
            continue
        name, *rest = plain.split(":", most)
        try:
            entry = parse(*rest)
        except (TypeError, ValueError):  # too few fields, or an invalid number
            entry = None
        if entry is None or not name:
            skipped.line(path, number)
        else:
            found.setdefault(name, []).append(entry)
    if len(found) > _MAX_ENTRIES:
        limits.append(f"{path} has {len(found):,} entries: {_MAX_ENTRIES:,} are listed")
    return dict(list(found.items())[:_MAX_ENTRIES])


# The number of fields after the name.
_FIELDS: Final[Mapping[Callable[..., object], int]] = {_parse_account: 6, _parse_group: 3}


def _describe_accounts(accounts: Mapping[str, _Account], groups: Mapping[str, _Group]) -> _Objects:
    names = {group.gid: name for name, group in reversed(list(groups.items()))}
    by_member: dict[str, list[str]] = {}
    for name, group in groups.items():
        for member in group.members:
            by_member.setdefault(member, []).append(name)
    found: _Objects = {}
    for name, account in accounts.items():
        primary = names.get(account.gid, str(account.gid))
        others = sorted(by_member.get(name, ()))
        is_root = account.uid == 0
        facts = {
            "uid": account.uid,
            "gid": account.gid,
            "group": primary,
            "home": account.home,
            "shell": account.shell,
            "groups": others[:_MAX_LISTED],
            "system": _is_system(account.uid),
            "can_log_in": account.shell.rpartition("/")[2] not in _NO_SHELLS
            and not account.shell.startswith(_DEVICES),
            "administrator": is_root or not ADMINISTRATORS.isdisjoint([primary, *others]),
        }
        facts["type"] = "superuser" if is_root else _account_type(facts)
        # the rest of the field has personal data, such as rooms and telephone numbers
        full_name = strip_blanks(account.gecos.split(",")[0])
        # for most system accounts the full name only repeats the name
        if full_name not in {"", name}:
            facts["full_name"] = full_name
            facts["description"] = f"{full_name}, {facts['type']}"
        found[name] = facts
    return found


def _account_type(facts: Mapping[str, Json]) -> str:
    """Return an account's type in words, with rights that are unusual for the type."""
    words = ["system account" if facts["system"] else "user account"]
    words += ["administrator"] if facts["administrator"] else []
    if facts["can_log_in"] == facts["system"]:
        words.append("can log in" if facts["can_log_in"] else "cannot log in")
    return ", ".join(words)


def _describe_groups(groups: Mapping[str, _Group], accounts: Mapping[str, _Account]) -> _Objects:
    own: dict[int, list[str]] = {}
    for name, account in accounts.items():
        own.setdefault(account.gid, []).append(name)
    found: _Objects = {}
    for name, group in groups.items():
        members = sorted({*group.members, *own.get(group.gid, ())})
        found[name] = {
            "gid": group.gid,
            "members": members[:_MAX_LISTED],
            "member_count": len(members),
            "system": _is_system(group.gid),
        }
    return found


def _is_system(number: int) -> bool:
    return number < _FIRST_PERSON or number == _NOBODY


OBSERVER: Final = Observer("users", "users", Users().observe)
