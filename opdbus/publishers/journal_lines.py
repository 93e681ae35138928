"""Parser of journal entries: who became root and for what, and which unit failed; pure.

Anybody may log a line that looks like one of sudo. Lines of root's processes are believed. A line
of another user's process is believed only from a program that logs so, and only about that user.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from getopt import GetoptError, gnu_getopt
from typing import Any, Final, NamedTuple, TypeAlias

from opdbus.platform.accounts import is_administrator, user_name
from opdbus.state.redact import redact_text

# SD_MESSAGE_UNIT_FAILURE_RESULT of sd-messages.h
FAILED: Final = "d9b373ed55a64feb8242e02dbe79a49c"
# The programs that say who becomes root, as they call themselves, and the files that these are.
PROGRAMS: Final[Mapping[str, frozenset[str]]] = {
    **{name: frozenset((name,)) for name in ("doas", "login", "pkexec")},
    **dict.fromkeys(("sudo", "sudo-rs"), frozenset(("sudo", "sudo-rs"))),
    **dict.fromkeys(("su", "su-rs"), frozenset(("su", "su-rs"))),
    **dict.fromkeys(("sshd", "sshd-session"), frozenset(("sshd", "sshd-session"))),
}
POLKIT: Final = "polkit.service"
ROOT: Final = "root"
MAX_TEXT: Final = 1000
_NOBODY: Final = (1 << 32) - 1
_FOLDERS: Final = frozenset(
    "/usr/bin /bin /usr/sbin /sbin /usr/lib/ssh /usr/lib/openssh /usr/libexec/openssh"
    " /run/wrappers/bin /usr/lib/cargo/bin".split()
)
# The name of an account, which may have blanks inside.
_NAME: Final = r"([^\s:;()](?:[^:;()\n]{0,62}?[^\s:;()])?)"
_SUDO: Final = re.compile(rf" *{_NAME} : ((?:(?!COMMAND=).)*)COMMAND=((?s:.+))")
_SUDO_KEYS: Final = frozenset("TTY PWD USER GROUP HOST CHROOT TSID ENV CWD".split())
_SUDO_ENDED: Final = re.compile(r" ; (?:EXIT|SIGNAL)=\w+")
_SUDO_CONTINUED: Final = re.compile(rf" *{_NAME} : \(command continued\) (.+)")
_DOAS: Final = re.compile(rf"(?s){_NAME} ran command (.+) as root from (/.*)")
_PKEXEC: Final = re.compile(
    rf"{_NAME}: Executing command \[USER=root\] \[TTY=[^\]]*\] \[CWD=([^\]]*)\] \[COMMAND=(.+)\]"
)
_POLKIT: Final = re.compile(
    r"Operator of \S+ successfully authenticated as unix-user:\S+ to gain \S+ authorization for"
    rf" action \S+ for \S+ \[(.+)\] \(owned by unix-user:{_NAME}\)"
)
_OPENED: Final = re.compile(
    rf"pam_unix\(([\w-]+):session\): session opened for user {_NAME}(?:\(uid=\d+\))?"
    rf" by {_NAME}?\(uid=(\d{{1,10}})\)"
)
_CLOSED: Final = re.compile(r"pam_unix\([\w-]+:session\): session closed for user \S+")
# The prefix of sudo's JSON, and the ends of lines in commands as sudo and sudo-rs write them.
_JSON: Final = re.compile(r"@cee: ?")
_NEWLINES: Final = re.compile(r"#01[2-5]")
_NEWLINES_OF_RS: Final = re.compile(r"(?<!\\)\\[nr]")
# Lines that should say who became root, and those of them that say something else.
_TELLING: Final = re.compile(
    r"\bCOMMAND=|\(command continued\)|\bran command |: Executing command "
    r"|session opened for user root\b|^Accepted \S+ for root\b|^@cee:|^\{"
)
_OF_OTHERS: Final = re.compile(
    r" : [^=]{1,400}; |: (?!Executing command)[^\[]{1,200}\[USER="
    r"|; USER=(?!root ;)| ; (?:EXIT|SIGNAL)=\w+| as (?!root )\S+ from |\[USER=(?!root\])"
)
_MAX_SHAPE: Final = 100
_SU_SHORT: Final = "c:fg:G:hlmpPs:Tu:Vw:"
_SU_LONG: Final = (
    "command= session-command= fast group= supp-group= help login preserve-environment pty shell="
    " no-pty user= version whitelist-environment=".split()
)
_SSH: Final = re.compile(rf"Accepted \S+ for {_NAME} from (\S{{1,64}}) port \d+ ssh2.*")


class Entry(NamedTuple):
    """A journal entry: its time in microseconds since 1970, its trusted fields, and its message."""

    at: int
    cursor: str
    fields: Mapping[str, str]
    message: str

    @property
    def key(self) -> str:
        """The process that logged it."""
        return f"{self.fields.get('_BOOT_ID', '')} {self.fields.get('_PID', '')}"

    @property
    def uid(self) -> int:
        """The user of the process that logged it."""
        return int(self.fields.get("_UID", _NOBODY))


class Act(NamedTuple):
    """A command that a user ran as root, or, without a command, a session as root."""

    user: str
    at: int
    program: str
    command: str = ""
    folder: str = ""


class ActStarted(NamedTuple):
    """Start of an act, by the key of its process; `is_open`: a session, until it is closed."""

    key: str
    act: Act
    is_open: bool = False


class CommandContinued(NamedTuple):
    """Rest of a long command, as it was logged: it may begin within a secret."""

    key: str
    user: str
    text: str


class SessionClosed(NamedTuple):
    """End of a process's session as root."""

    key: str
    at: int


class RootLoggedIn(NamedTuple):
    """Login of root from an address, by the key of its process of sshd."""

    key: str
    address: str


class Failure(NamedTuple):
    """Failure of a unit, and its run, if systemd names it."""

    unit: str
    at: int
    result: str
    run: str


Event: TypeAlias = ActStarted | CommandContinued | SessionClosed | RootLoggedIn | Failure


def read_entry(line: bytes) -> Entry | None:
    """Return an entry of `journalctl --all --output=json`; None if it is none.

    journalctl sends bytes as a list of numbers.
    """
    try:
        row = json.loads(line)
        fields = {name: value for name, value in row.items() if isinstance(value, str)}
        # the kernel's time of sending: a busy journald receives late
        at = int(fields.get("_SOURCE_REALTIME_TIMESTAMP") or fields["__REALTIME_TIMESTAMP"])
        int(fields.get("_UID", 0))
        return Entry(at, fields["__CURSOR"], fields, _text(row.get("MESSAGE")))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None


def _text(value: object) -> str:
    if isinstance(value, list):
        return bytes(value).decode(errors="replace")
    return value if isinstance(value, str) else ""


def escape(text: str, most: int = MAX_TEXT) -> str:
    """Return a text of somebody else: what cannot be printed is escaped, the rest is cut."""
    plain = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in text[: most + 1]
    )
    return plain[: most - 1] + "\N{HORIZONTAL ELLIPSIS}" if len(plain) > most else plain


def clean(text: str, most: int = MAX_TEXT) -> str:
    """Return a text of somebody else without secrets, escaped and cut.

    Secrets go first: of one that is cut, nobody could recognize the rest.
    """
    return escape(redact_text(text), most)


def parse_event(
    entry: Entry,
    name_of: Callable[[int], str] = user_name,
    may_be_root: Callable[[int], bool] = is_administrator,
) -> Event | None:
    """Return what an entry says; None if it is about nothing of this, or cannot be believed.

    A process that has ended when journald looks at it has no program there. An administrator is
    believed all the same: who may become root has no need to make up that it did.
    """
    fields = entry.fields
    if fields.get("MESSAGE_ID") == FAILED and fields.get("_PID") == "1" and "UNIT" in fields:
        result = clean(fields.get("UNIT_RESULT", ""), 40)
        return Failure(fields["UNIT"], entry.at, result, fields.get("INVOCATION_ID", ""))
    if "\n" in entry.message or "CONTAINER_ID" in fields:
        return None
    if fields.get("_SYSTEMD_UNIT") == POLKIT:
        found = _POLKIT.fullmatch(entry.message)
        act = found and Act(found[2], entry.at, "polkit", clean(found[1]))
        # a session or a caller may hold the permission on: of one command nobody knows its end
        return ActStarted(f"{entry.key} {entry.at}", act) if act else None
    program = fields.get("SYSLOG_IDENTIFIER", "")
    is_believed = _is_believed(entry, may_be_root) and program in _PARSERS
    event = _PARSERS[program](entry, name_of) if is_believed else None
    user = _user_of(event)
    return None if entry.uid and user and user != name_of(entry.uid) else event


def find_unread(entry: Entry, may_be_root: Callable[[int], bool] = is_administrator) -> str:
    """Return the program of a line that `parse_event` should have understood; else empty."""
    program, message = entry.fields.get("SYSLOG_IDENTIFIER", ""), entry.message
    is_ours = program in PROGRAMS and "CONTAINER_ID" not in entry.fields
    is_telling = _TELLING.search(message) and not _OF_OTHERS.search(message)
    if not is_ours or not is_telling or not _is_believed(entry, may_be_root):
        return ""
    return "" if _JSON.match(message) and _read_json(message) else program


def describe_shape(text: str) -> str:
    """Return a text with letters as x, digits as 9 and rare characters as ?, one for each run."""
    shape = re.sub(r"[^\W\d_]+", "x", text.strip()[:MAX_TEXT])
    return re.sub(r"[^x9 :;=/()\[\]{}\",]+", "?", re.sub(r"\d+", "9", shape))[:_MAX_SHAPE]


def _is_believed(entry: Entry, may_be_root: Callable[[int], bool]) -> bool:
    fields = entry.fields
    if not entry.uid or _is_program(fields.get("_EXE", ""), fields.get("SYSLOG_IDENTIFIER", "")):
        return True
    return "_EXE" not in fields and may_be_root(entry.uid)


def _is_program(path: str, program: str) -> bool:
    folder, _, name = path.rpartition("/")
    is_store = folder.startswith("/nix/store/") and folder.endswith("/bin")
    return (folder in _FOLDERS or is_store) and name in PROGRAMS.get(program, ())


def _user_of(event: Event | None) -> str:
    match event:
        case ActStarted(act=act):
            return act.user
        case CommandContinued(user=user):
            return user
    return ""


def _parse_sudo(entry: Entry, name_of: Callable[[int], str]) -> Event | None:
    message = entry.message
    if more := _SUDO_CONTINUED.fullmatch(message):
        return CommandContinued(entry.key, more[1], more[2])
    if _JSON.match(message):
        return _parse_sudo_json(entry)
    if not (found := _SUDO.fullmatch(message)):
        return _parse_session(entry, name_of)
    user, head, command = found.groups()
    pairs = [part.partition("=") for part in head.strip().removesuffix(" ;").split(" ; ")]
    given = {key: value for key, _, value in pairs}
    # the folder, and an argument, may have any characters: what can be read in two ways is not read
    is_clear = len(given) == len(pairs) and given.keys() <= _SUDO_KEYS
    is_clear = is_clear and " ; COMMAND=" not in command and " ; USER=" not in command
    if not is_clear or given.get("USER") != ROOT or _SUDO_ENDED.search(command):
        return None
    is_rs = "-rs" in entry.fields["SYSLOG_IDENTIFIER"] + entry.fields.get("_EXE", "")
    # a command of several lines is read as commands on one
    command = (_NEWLINES_OF_RS if is_rs else _NEWLINES).sub("; ", command)
    folder = clean(given.get("PWD", ""))
    return ActStarted(entry.key, Act(user, entry.at, "sudo", clean(command), folder))


def _parse_sudo_json(entry: Entry) -> Event | None:
    """Parse what sudo logs with `log_format=json`, of version 1.9.4 on."""
    logged = _read_json(entry.message) or {}
    accepted = logged.get("accept")
    if not isinstance(accepted, dict) or accepted.get("runuser") != ROOT:
        return None
    user, command = str(accepted.get("submituser", "")), str(accepted.get("command", ""))
    given = accepted.get("runargv")
    words = [command, *map(str, given[1:] if isinstance(given, list) else [])]
    folder = clean(str(accepted.get("runcwd") or accepted.get("submitcwd") or ""))
    line = shlex.join(words).replace("\n", "; ")
    if not user or not command:
        return None
    return ActStarted(entry.key, Act(user, entry.at, "sudo", clean(line), folder))


def _read_json(message: str) -> dict[str, Any] | None:
    """Return the event in sudo's JSON, by its type; None if it is none that is known."""
    try:
        row = json.loads(_JSON.sub("", message, count=1))
        row = row.get("sudo", row)
        # of those that say who becomes root, the fields are needed
        is_known = isinstance(row["accept"]["submituser"], str) if "accept" in row else bool(row)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return row if is_known and isinstance(row, dict) else None


def _parse_doas(entry: Entry, name_of: Callable[[int], str]) -> Event | None:
    if found := _DOAS.fullmatch(entry.message):
        user, command, folder = found.groups()
        if " as root from " in command:
            return None
        return ActStarted(entry.key, Act(user, entry.at, "doas", clean(command), clean(folder)))
    return _parse_session(entry, name_of)


def _parse_pkexec(entry: Entry, name_of: Callable[[int], str]) -> Event | None:
    if found := _PKEXEC.fullmatch(entry.message):
        user, folder, command = found.groups()
        return ActStarted(entry.key, Act(user, entry.at, "pkexec", clean(command), clean(folder)))
    return _parse_session(entry, name_of)


def _parse_ssh(entry: Entry, name_of: Callable[[int], str]) -> Event | None:
    if found := _SSH.fullmatch(entry.message):
        return RootLoggedIn(entry.key, clean(found[2], 64)) if found[1] == ROOT else None
    return _parse_session(entry, name_of)


def _parse_session(entry: Entry, name_of: Callable[[int], str]) -> Event | None:
    """Parse what pam_unix says of sessions of root."""
    if _CLOSED.fullmatch(entry.message):
        return SessionClosed(entry.key, entry.at)
    found = _OPENED.fullmatch(entry.message)
    if not found or found[2] != ROOT:
        return None
    program = found[1].removesuffix("-i").removesuffix("-l").removesuffix("-rs")
    if program in {"sshd", "login"}:
        return ActStarted(entry.key, Act(ROOT, entry.at, program.removesuffix("d")), is_open=True)
    uid = int(found[4])
    login = entry.fields.get("_AUDIT_LOGINUID", "")
    if not uid and login.isdecimal() and int(login) != _NOBODY:
        # root by sudo or su before: who logged in
        uid = int(login)
    user = name_of(uid) if uid or not found[3] else found[3]
    command = _command_of_su(entry.fields.get("_CMDLINE", "")) if program == "su" else ""
    return ActStarted(entry.key, Act(user, entry.at, program, clean(command)), is_open=True)


def _command_of_su(line: str) -> str:
    """Return the command of su, which its log does not have; empty for a shell."""
    try:
        options, rest = gnu_getopt(shlex.split(line)[1:], _SU_SHORT, _SU_LONG)
    except (ValueError, GetoptError):
        return ""
    # as getopt(3) of su does, the last one counts; what stands behind the user goes to the shell
    given = [value for name, value in options if name in {"-c", "--command", "--session-command"}]
    arguments = [word for word in rest if word != "-"][1:]
    return given[-1] if given else shlex.join(["sh", *arguments]) if arguments else ""


_PARSERS: Final[Mapping[str, Callable[[Entry, Callable[[int], str]], Event | None]]] = {
    "sudo": _parse_sudo,
    "sudo-rs": _parse_sudo,
    "doas": _parse_doas,
    "pkexec": _parse_pkexec,
    "su": _parse_session,
    "su-rs": _parse_session,
    "login": _parse_session,
    "sshd": _parse_ssh,
    "sshd-session": _parse_ssh,
}
