"""Commands of users as explanations of changes: which command and which change fit. Pure.

A command explains a change if it names the object, and does what happened to it. That it came
shortly before is not enough.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import pairwise, takewhile
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from opdbus.history import command_lines, jobs
from opdbus.history.change import REBOOT
from opdbus.history.row_filter import Row
from opdbus.state.object import UNIT, Identity, Json, ObjectId

# Names of op-dbus-journal.service: its user, its sources, its plugin and its kinds of objects. The
# source READER exists while it runs; USER has a user's commands, FAILURE a unit's last failure.
PUBLISHER: Final = "op-dbus-journal"
SOURCE: Final = "publish:journal"
READER: Final = "publish:journal.reader"
JOURNAL: Final = "journal"
READER_KIND: Final = (JOURNAL, "reader")
USER: Final = (JOURNAL, "user")
FAILURE: Final = (JOURNAL, "failure")
# A command's change may come so late, as a stop may, and be recorded this much too early.
_MOST_LATE: Final = 120 * 1_000_000
MOST_EARLY: Final = 250_000
# A host takes so long at most to stop and to come up.
MOST_LATE_REBOOT: Final = 900 * 1_000_000
_REBOOTS: Final = frozenset("reboot shutdown poweroff halt kexec soft-reboot".split())
_ENDS_OF_RUN: Final = frozenset((*_REBOOTS, *(f"{name}.target" for name in _REBOOTS), "0", "6"))
# Programs whose arguments may be one of these.
_OF_HOST: Final = frozenset(("systemctl", "loginctl", "init", "telinit"))
_SHOWN: Final = 200
_KEYS: Final = ("with", "command", "folder")
_PACKAGE: Final = ("packages", "package")
_FILE: Final = ("files", "file")
_SUFFIX: Final = re.compile(
    r"\.(?:service|socket|timer|path|mount|automount|swap|target|slice|scope|device)$"
)
_RESTARTS: Final[AbstractSet[str]] = frozenset(("start", "stop", "restart", "reload"))
# The changes of a unit that a verb of systemctl brings about: acts of jobs, and `file` and `reset`.
_VERBS: Final[Mapping[str, AbstractSet[str]]] = {
    "start": {"start"},
    "stop": {"stop"},
    "reload": {"reload"},
    "kill": {"exit"},
    "reset-failed": {"reset"},
    **dict.fromkeys(
        "restart try-restart condrestart reload-or-restart try-reload-or-restart"
        " force-reload".split(),
        _RESTARTS,
    ),
    **dict.fromkeys(
        "enable disable mask unmask reenable preset edit revert link".split(), frozenset(("file",))
    ),
}
_NOW: Final = {"enable": "start", "disable": "stop", "mask": "stop", "reenable": "start"}
_SERVICES: Final = frozenset(("service", "invoke-rc.d", "rc-service"))
_KILLERS: Final = frozenset(("pkill", "killall"))
_UNIT_FOLDERS: Final = (("/", "etc"), ("/", "usr"), ("/", "lib"), ("/", "run"))
_OF_FILES: Final = frozenset(("unit_file_state", "enabled", "masked", "drop_ins", "fragment_path"))
# Programs whose last argument is what they change, with mv the others, too.
_TO_LAST: Final = frozenset(("cp", "mv", "install", "ln", "rsync", "mount"))
_OF_PATHS: Final = frozenset(
    "vi vim nvim nano pico emacs ed ex mcedit micro joe sed tee cp mv rm install ln chmod chown"
    " chgrp dd truncate touch unlink sudoedit editor patch rsync".split()
)
_EDITORS: Final = frozenset(
    "vi vim nvim nano pico emacs ed ex mcedit micro joe sudoedit editor vipw vigr visudo".split()
)
_OF_USERS: Final = frozenset(
    "useradd adduser usermod userdel deluser groupadd addgroup groupmod groupdel delgroup gpasswd"
    " vipw vigr".split()
)
# The files that programs write without naming them.
_OWN_FILES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        _OF_USERS,
        "/etc/passwd /etc/group /etc/shadow /etc/gshadow /etc/subuid /etc/subgid",
    ),
    **dict.fromkeys(("passwd", "chpasswd", "chage"), "/etc/shadow"),
    **dict.fromkeys(("chsh", "chfn"), "/etc/passwd"),
    "hostnamectl": "/etc/hostname",
    "timedatectl": "/etc/localtime /etc/timezone",
    "localectl": "/etc/locale.conf /etc/default/locale /etc/default/keyboard",
}
# Programs that change objects of a kind that they name, and those that change one object.
_PROGRAMS: Final[Mapping[tuple[str, str], AbstractSet[str]]] = {
    ("users", "account"): frozenset(
        "useradd adduser usermod userdel deluser passwd chsh chfn chage gpasswd vipw".split()
    ),
    ("users", "group"): frozenset(
        "useradd adduser usermod userdel deluser groupadd addgroup groupmod groupdel delgroup"
        " gpasswd vigr".split()
    ),
    _PACKAGE: frozenset("apt apt-get aptitude apt-mark dpkg dnf yum rpm zypper pacman apk".split()),
    _FILE: frozenset((*_OF_PATHS, *_OWN_FILES)),
    # a job is named by its file, and maybe a program
    ("cron", "job"): _OF_PATHS,
    ("mounts", "mount"): frozenset(("mount", "umount")),
    ("kernel", "module"): frozenset(("modprobe", "insmod", "rmmod")),
    ("kernel", "sysctl"): frozenset(("sysctl",)),
}
_FIXED: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "hostnamectl": (("system", "fact"), "hostname"),
    "hostname": (("system", "fact"), "hostname"),
    "timedatectl": (("system", "fact"), "time"),
    "localectl": (("system", "fact"), "locale"),
    "visudo": (_FILE, "/etc/sudoers"),
}
# Programs that change these fields of an object and no others; fields by options that have their
# values; the fields that verbs of systemctl set.
_ONLY: Final[Mapping[str, AbstractSet[str]]] = {
    "chmod": frozenset(("mode",)),
    "chown": frozenset(("owner", "group")),
    "chgrp": frozenset(("group",)),
    "chsh": frozenset(("shell", "can_log_in")),
    "timedatectl set-timezone": frozenset(("timezone",)),
    "timedatectl set-ntp": frozenset(("ntp_service", "ntp_synchronized")),
}
_OPTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("-s", "--shell"), "shell"),
    **dict.fromkeys(("-d", "--home"), "home"),
    **dict.fromkeys(("-u", "--uid"), "uid"),
}
_WITH_OPTIONS: Final = frozenset(("useradd", "usermod", "adduser", "chsh"))
_FILE_VERBS: Final[Mapping[str, tuple[str, bool]]] = {
    "enable": ("enabled", True),
    "disable": ("enabled", False),
    "mask": ("masked", True),
    "unmask": ("masked", False),
}
# Events of a unit in the words of happenings.tsv, and the acts that are to bring them about.
_FILE_EVENTS: Final = {
    "enabled": ("enabled", True),
    "disabled": ("enabled", False),
    "masked": ("masked", True),
    "unmasked": ("masked", False),
}
_EVENT_ACTS: Final[Mapping[str, AbstractSet[str]]] = {
    "started": frozenset(("start",)),
    "stopped": frozenset(("stop", "exit")),
    "restarted": frozenset(("restart",)),
    "killed": frozenset(("exit",)),
    # what did not start or run
    "failed": frozenset(("start",)),
}
_OCTAL: Final = re.compile(r"[0-7]{1,5}")
# Programs that do what their words say and nothing else, unlike a shell or an editor.
_ONE_THING: Final = (
    frozenset().union(*_PROGRAMS.values(), _FIXED, _SERVICES, _KILLERS, ("systemctl", "kill"))
    - _EDITORS
)
_REMOVING: Final = frozenset("userdel deluser groupdel delgroup rm unlink mv umount rmmod".split())
_REMOVING_WORDS: Final[Mapping[tuple[str, str], AbstractSet[str]]] = {
    _PACKAGE: frozenset(
        "remove purge autoremove autopurge erase del rm -r -R -Rs -Rns -P -e --remove --purge"
        " --erase".split()
    ),
    ("kernel", "module"): frozenset(("-r", "--remove")),
}
# Kinds of objects whose changes are the work of somebody, if of nobody else's.
KINDS: Final = frozenset((UNIT, *_PROGRAMS, ("system", "fact")))
_PACKAGE_RUN: Final = re.compile(r"(?:apt|dpkg|rpm):\d{4}-\d\d-\d\dT\S+ (.+)", re.DOTALL)


@dataclass(frozen=True)
class Act:
    """A command that a user ran as root at a time in microseconds since 1970; `seq` is its row."""

    user: str
    at: int
    program: str
    command: str
    folder: str
    seq: int
    # the end of its session as root, 0 if it is not known
    until: int = 0

    def __str__(self) -> str:
        program, space, rest = self.command.partition(" ")
        if program.startswith(("/usr/", "/bin/", "/sbin/")):
            program = program.rpartition("/")[2]
        command = f"{program}{space}{rest}"[:_SHOWN] or self.folder
        return " ".join(filter(None, (self.user, "with", self.program, command)))

    @cached_property
    def may_do_anything(self) -> bool:
        """True for a shell, an editor and what is not known."""
        programs = [PurePosixPath(words[0]).name for words in self.commands]
        return not programs or not _ONE_THING.issuperset(programs)

    @cached_property
    def commands(self) -> Sequence[Sequence[str]]:
        """The commands in its line that change anything, each as words."""
        return [*filter(command_lines.is_acting, command_lines.commands(self.command))]

    def named(self, kind_id: tuple[str, ...]) -> Sequence[tuple[Sequence[str], AbstractSet[str]]]:
        """Return its commands, each with the names of objects of a kind that it may change."""
        if kind_id not in self._named:
            folder, found = self.folder, []
            for words in self.commands:
                found.append((words, _names(words, kind_id, folder)))
                if words[0] == "cd" and len(words) > 1:
                    folder = str(PurePosixPath(folder, words[1]))
            self._named[kind_id] = found
        return self._named[kind_id]

    @cached_property
    def _named(self) -> dict[tuple[str, ...], Sequence[tuple[Sequence[str], AbstractSet[str]]]]:
        return {}


def values_of(row: Row, field: str) -> tuple[Json, Json] | None:
    """Return the values of a field before and after a row; None if it did not change."""
    for path, *sides in row.fields:
        if list(path) == [field] and None not in sides:
            before, after = (side[0] if side else [] for side in sides)
            return before, after
    return None


def acts_of(user: str, value: Json, seq: int = 0) -> list[Act]:
    """Return the acts of a user in the value of a field; what is no act is left out."""
    found = []
    for one in value if isinstance(value, list) else []:
        if not isinstance(one, dict):
            continue
        at = time_of(one.get("at"))
        program, command, folder = (str(one.get(key, "")) for key in _KEYS)
        if at:
            found.append(Act(user, at, program, command, folder, seq, time_of(one.get("until"))))
    return found


class Failure(NamedTuple):
    """The failure of a unit at a time in microseconds since 1970, and its last log lines."""

    at: int
    why: str
    lines: Sequence[str]
    seq: int = 0


def failure_of(value: Json, seq: int = 0) -> Failure | None:
    """Return the failure in the value of a unit's field `failed`; None if there is none."""
    for one in value if isinstance(value, list) else []:
        if isinstance(one, dict) and (at := time_of(one.get("at"))):
            lines = one.get("lines")
            texts = list(map(str, lines)) if isinstance(lines, list) else []
            return Failure(at, str(one.get("why", "")), texts, seq)
    return None


def only_asks(command: str) -> bool:
    """Return whether a command line only asks op-dbus, and changes nothing."""
    found = [*command_lines.commands(command)]
    is_ours = all(PurePosixPath(words[0]).name == "op-dbus" for words in found)
    return bool(found) and is_ours and not any(map(command_lines.is_acting, found))


def time_of(value: Json) -> int:
    """Return a time of the journal's publisher in microseconds since 1970, 0 for none."""
    try:
        return int(datetime.fromisoformat(str(value)).timestamp() * 1e6)
    except (ValueError, OverflowError):
        return 0


def timely(commands: Sequence[Act], row: Row) -> Sequence[Act]:
    """Return the commands, in order of time, that came before a change, but not long before."""
    late = MOST_LATE_REBOOT if is_reboot(row) else _MOST_LATE
    first = bisect_left(commands, row.at - late, key=_time)
    return commands[first : bisect_right(commands, row.at + MOST_EARLY, key=_time)]


def _time(act: Act) -> int:
    return act.at


def may_be_of_user(row: Row) -> bool:
    """Return whether nobody else is known to have made a change, such as a timer."""
    row, cause = _of_unit(row), jobs.alone(row.cause)
    is_open = cause in {"", "reload", "exit:SIGKILL", *jobs.CLEAN_ENDS} or cause.startswith("job:")
    is_other = " by " in cause or cause.endswith(", automatic")
    return is_of_host(row) and row.identity[1:3] in KINDS and is_open and not is_other


def _of_unit(row: Row) -> Row:
    """Return a port's change by a job of its unit as one of the unit; other changes as they are."""
    unit = values_of(row, "unit") if row.identity[1:3] == ("net", "listener") else None
    if not unit or not row.cause.startswith("job:"):
        return row
    return replace(row, identity=Identity(row.identity.source, *UNIT, str(unit[1] or unit[0])))


def is_of_host(row: Row) -> bool:
    """Return whether an object of the host changed, as far as the host itself was observed."""
    is_change = row.change_type in {"appeared", "changed", "gone", "event"}
    return is_change and row.identity.source.startswith("live:")


def explains(act: Act, row: Row) -> bool:
    """Return whether a command names the object of a change, and does what happened to it."""
    if run := _PACKAGE_RUN.fullmatch(row.cause):
        # apt's log has its command line: another run than this one had another
        ran = _command_line(run[1].split())
        lines = map(_command_line, act.commands)
        return row.identity[1:3] == _PACKAGE and any(line == ran for line in lines)
    row = _of_unit(row)
    if any(_kills(words, row) or _reboots(words, row) for words, _ in act.named(row.identity[1:3])):
        return True
    is_of_run = row.identity[1:3] == _PACKAGE and row.cause.startswith(("dpkg:", "rpm:"))
    if not (is_of_run or may_be_of_user(row)):
        return False
    if any(_explains(words, names, row) for words, names in act.named(row.identity[1:3])):
        return True
    is_of_file = row.identity[1:3] == UNIT and row.cause in {"", "reload"}
    return is_of_file and any(
        _has_file_of_unit(words, names, row.identity.name) for words, names in act.named(_FILE)
    )


def is_reboot(row: Row) -> bool:
    """Return whether a row is the event that the host was rebooted."""
    return row.cause == REBOOT


def _reboots(words: Sequence[str], row: Row) -> bool:
    """Return whether a command ended the run of the host before a reboot."""
    program, given = PurePosixPath(words[0]).name, set(words[1:])
    if not is_reboot(row) or "-c" in given:  # which cancels a shutdown
        return False
    return program in _REBOOTS or (program in _OF_HOST and not given.isdisjoint(_ENDS_OF_RUN))


def _kills(words: Sequence[str], row: Row) -> bool:
    """Return whether a command sends a signal to the main process whose end a row reports."""
    if PurePosixPath(words[0]).name != "kill" or not is_of_host(row):
        return False
    ended = values_of(row, "main_pid")
    # behind the signal, a process group has a dash
    given = {*words[1:], *(word.removeprefix("-") for word in words[2:])}
    return ended is not None and str(ended[0]) in given


def _has_file_of_unit(words: Sequence[str], names: AbstractSet[str], unit: str) -> bool:
    """Return whether a command writes or removes a file, link or drop-in of a unit."""
    paths = map(PurePosixPath, names if PurePosixPath(words[0]).name in _OF_PATHS else ())
    return any(
        path.parts[:2] in _UNIT_FOLDERS and not {unit, f"{unit}.d"}.isdisjoint(path.parts)
        for path in paths
    )


def tries(act: Act, object_id: ObjectId, events: Collection[str]) -> bool:
    """Return whether a command was to bring one of some events of an object about.

    The events are words of happenings.tsv. It may have done so or not.
    """
    kind_id, name = object_id[:2], object_id.name
    for words, names in act.named(kind_id):
        program = PurePosixPath(words[0]).name
        if kind_id == UNIT:
            does = _acts_on_unit(words, program, name)
            if any(_does_event(words, program, does, event) for event in events):
                return True
        elif program in _PROGRAMS.get(kind_id, ()) and name in names:
            is_removing = program in _REMOVING or not _REMOVING_WORDS.get(
                kind_id, set()
            ).isdisjoint(words)
            if is_removing == ("removed" in events):
                return True
    return False


def _does_event(words: Sequence[str], program: str, does: AbstractSet[str], event: str) -> bool:
    """Return whether a command that does something to a unit is to bring an event of it about."""
    if event == "reloaded":
        return "reload" in does and (does == {"reload"} or any("reload" in w for w in words[1:]))
    if event in _FILE_EVENTS:
        return "file" in does and _FILE_EVENTS[event] in [*_values(words, program, "")]
    return not _EVENT_ACTS.get(event, frozenset()).isdisjoint(does)


def ends(act: Act, row: Row) -> bool:
    """Return whether a change that a command does not explain shows that the command is over.

    It came after the command and is the opposite, or another change of what the command changes.
    """
    if row.at < act.at:
        return False
    name, kind_id = row.identity.name, row.identity[1:3]
    for words, names in act.named(kind_id):
        program = PurePosixPath(words[0]).name
        if kind_id == UNIT:
            does, happened = _acts_on_unit(words, program, name), _changes_of_unit(row)
            is_of_run = does - {"file"} and not _RESTARTS.isdisjoint(happened)
            if is_of_run or "file" in does & happened:
                return True
        elif (kind_id, name) == _FIXED.get(program) or (
            program in _PROGRAMS.get(kind_id, ()) and name in names
        ):
            return True
    return False


def aspects(row: Row) -> AbstractSet[str]:
    """Return the parts of an object that changed: a command explains one change of each."""
    if row.identity[1:3] != UNIT:
        return frozenset(("state",))
    return frozenset("file" if one == "file" else "run" for one in _changes_of_unit(row))


def work_of(row: Row) -> str:
    """Return the job or package run of a row, which the rows of one change share; else empty."""
    job = jobs.alone(row.cause).partition(" ")[0].rstrip(",")
    return f"{row.boot} {job}" if job.startswith(("job:", "apt:", "dpkg:", "rpm:")) else ""


def _command_line(words: Sequence[str]) -> str:
    return " ".join([PurePosixPath(words[0]).name, *words[1:]]) if words else ""


def _explains(words: Sequence[str], names: AbstractSet[str], row: Row) -> bool:
    program, kind_id = PurePosixPath(words[0]).name, row.identity[1:3]
    if kind_id == UNIT:
        return _is_of_unit(words, program, row)
    if (kind_id, row.identity.name) == _FIXED.get(program):
        return _fits(words, program, row)
    if program not in _PROGRAMS.get(kind_id, ()) or not _is_named(words, names, row):
        return False
    is_removing = program in _REMOVING or not _REMOVING_WORDS.get(kind_id, set()).isdisjoint(words)
    is_fitting = {"gone": is_removing, "appeared": not is_removing}.get(row.change_type, True)
    return (is_fitting or program == "mv") and _fits(words, program, row)


def _is_named(words: Sequence[str], names: AbstractSet[str], row: Row) -> bool:
    """Return whether a command names the object of a change, or what goes with what it names."""
    kind_id, name = row.identity[1:3], row.identity.name
    if kind_id == ("cron", "job"):
        return name.partition(" ")[0] in names
    left = set[str]()
    if kind_id == ("users", "group") and PurePosixPath(words[0]).name in _REMOVING:
        # an account that is removed leaves its groups
        sides = values_of(row, "members") or ((), ())
        before, after = (set(map(str, one)) if isinstance(one, list) else set() for one in sides)
        left = before - after if len(command_lines.split(words)[1]) == 1 else left
    return name in names or bool(left and left <= names)


def _is_of_unit(words: Sequence[str], program: str, row: Row) -> bool:
    """Return whether a command does to a unit what happened to it."""
    does, happened = _acts_on_unit(words, program, row.identity.name), _changes_of_unit(row)
    return bool(does & happened) and (does & happened != {"file"} or _fits(words, program, row))


def _acts_on_unit(words: Sequence[str], program: str, name: str) -> AbstractSet[str]:
    """Return the changes that a command brings about if it names a unit."""
    given = [word for word in words[1:] if not word.startswith("-")]
    if program == "systemctl" and given:
        verb, units = given[0], given[1:]
        does = set(_VERBS.get(verb, ()))
        if "--now" in words and verb in _NOW:
            does.add(_NOW[verb])
    elif program in _KILLERS:
        # a process usually has the name of its unit
        units, does = given, {"exit"}
    elif program in _SERVICES and len(given) > 1:
        units, does = given[:1], set(_VERBS.get(given[1], ()))
    elif program == "systemd-run":
        options = " ".join(words).replace("=", " ").split()
        units = [name for option, name in pairwise(options) if option in {"--unit", "-u"}]
        does = {"start"}
    elif words[0].startswith("/etc/init.d/") and given:
        units, does = [program], set(_VERBS.get(given[0], ()))
    else:
        return frozenset()
    names = (unit if _SUFFIX.search(unit) else f"{unit}.service" for unit in units)
    return does if any(fnmatchcase(name, each) for each in names) else frozenset()


def _fits(words: Sequence[str], program: str, row: Row) -> bool:
    """Return whether no value that a command names is another than that after a change."""
    changed = {path[0]: now for path, _, now in row.fields if path and now is not None}
    is_known = row.change_type == "changed" and len(changed) == len(row.fields) and changed
    verb = " ".join([program, *command_lines.split(words)[1][:1]])
    only = _ONLY.get(program) or _ONLY.get(verb)
    if is_known and only and only.isdisjoint(changed):
        return False
    after = {field: now[0] for field, now in changed.items() if now}
    return all(
        field not in after or _is_value(after[field], value)
        for field, value in _values(words, program, row.identity.name)
    )


def _is_value(after: Json, value: Json) -> bool:
    if isinstance(value, bool):
        return after is value
    return str(after).split() == str(value).split()


def _values(words: Sequence[str], program: str, name: str) -> Iterator[tuple[str, Json]]:
    """Yield the fields to which a command sets an object, and the values, as far as it has them."""
    given = [word for word in words[1:] if not word.startswith("-")]
    if program == "chmod" and given and _OCTAL.fullmatch(given[0]):
        yield "mode", f"{int(given[0], 8):04o}"
    elif program == "sysctl":
        pairs = (word.partition("=") for word in given)
        yield from (("value", value) for key, equals, value in pairs if equals and key == name)
    elif program == "systemctl" and given[:1] and given[0] in _FILE_VERBS:
        yield _FILE_VERBS[given[0]]
    elif program == "timedatectl" and given[:1] == ["set-timezone"]:
        yield "timezone", given[-1]
    elif program == "hostnamectl" and given[:-1] in (["set-hostname"], ["hostname"]):
        yield "hostname", given[-1]
    elif program in _WITH_OPTIONS:
        for word, following in pairwise(words):
            if word in _OPTIONS:
                yield _OPTIONS[word], following
            elif word.partition("=")[0] in _OPTIONS and "=" in word:
                yield _OPTIONS[word.partition("=")[0]], word.partition("=")[2]


def _changes_of_unit(row: Row) -> AbstractSet[str]:
    """Return what happened to a unit: acts of jobs, `exit`, `file` and `reset`."""
    changed = {path[0]: (before, after) for path, before, after in row.fields if path}
    found = {jobs.act(row.cause), *jobs.others(row.cause)}
    if not changed.keys().isdisjoint(_OF_FILES):
        found.add("file")
    if not row.cause and changed.get("active_state") == (["failed"], ["inactive"]):
        found.add("reset")
    return found - {""}


def _names(words: Sequence[str], kind_id: tuple[str, ...], folder: str) -> AbstractSet[str]:
    """Return the names of objects of a kind that a command may change."""
    options, given = command_lines.split(words)
    if kind_id == ("kernel", "sysctl"):
        return {word.partition("=")[0] for word in given if "=" in word}
    if kind_id in {_FILE, ("cron", "job"), ("mounts", "mount")}:
        program = PurePosixPath(words[0]).name
        if program in _OWN_FILES:
            return {*_OWN_FILES[program].split()} if kind_id == _FILE else set()
        paths = _paths(program, options, given)
        return {*paths, *(str(PurePosixPath(folder, path)) for path in paths if folder)}
    values = (word.partition("=")[2] for word in options if word.startswith("--"))
    parts = {part for word in (*values, *given) for part in word.split(",")}
    if kind_id != _PACKAGE:
        return parts
    names = (PurePosixPath(part).name.partition("_")[0] for part in parts)
    return parts | {"".join(takewhile(lambda c: c not in "=/:", name)) for name in names}


def _paths(program: str, options: Sequence[str], given: Sequence[str]) -> Sequence[str]:
    """Return the files, folders or mount points that a command changes."""
    if program == "dd":
        return [word[3:] for word in given if word.startswith("of=")]
    if program not in _TO_LAST:
        return given
    *sources, last = given or [""]
    if any(option.startswith(("-t", "--target-directory")) for option in options):
        return given if program == "mv" else []
    inside = [str(PurePosixPath(last, PurePosixPath(source).name)) for source in sources]
    return [last, *inside, *(sources if program == "mv" else [])]
