"""Comparisons of declared values, by the meaning of their words.

Each takes the declared value, the observed value and all observed properties, and returns the
difference; None if there is none, or if it cannot be known.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from opdbus.drift import equality, versions
from opdbus.drift.field import PATIENT_SECONDS, QUIET_SECONDS, Field, Severity
from opdbus.state.object import Json

Seen: TypeAlias = Mapping[str, Json]
UP: Final = frozenset(
    "active running up started online on true yes 1 enabled listening mounted ok healthy".split()
)
DOWN: Final = frozenset(
    "inactive dead stopped exited down offline off false no 0 disabled paused halted".split()
)
FAILED: Final = frozenset("failed failure error crashed".split())
# Transitional states; the state that follows counts.
_MOVING: Final = frozenset(
    "activating deactivating starting stopping restarting opening closing maintenance".split()
)
_RELOADING: Final = frozenset({"reloading", "refreshing"})
ABSENT: Final = frozenset(
    "absent removed purged uninstalled missing deleted not-installed none".split()
)
INSTALLED: Final = frozenset("installed present latest held hold any true yes".split())
# Unit files in these states cannot be enabled or disabled.
_NEITHER: Final = frozenset(
    "static indirect generated transient alias linked linked-runtime".split()
)
_ENABLED: Final = frozenset({"enabled", "enabled-runtime"})
# Intermediate states of dpkg, which also remain after a failed run.
_HALFWAY: Final = frozenset("unpacked half-installed half-configured".split())
# A logical volume by its group; names in the system's own folders are excluded.
_VOLUME: Final = re.compile(
    r"^/dev/(?!(?:mapper|disk|block|char|md|zvol|shm|pts)/)([^/]+)/([^/]+)$"
)
# File modes.
_OCTAL: Final = re.compile("(?:0[oO])?[0-7]{1,6}")
# The bits by which group and others may write.
_WRITABLE: Final = 0o022
# Files that decide who may become root, who may log in, and what runs as root. docs/drift.md has
# this table too.
SENSITIVE: Final = tuple(
    "/etc/sudoers /etc/sudoers.d/* /etc/doas.conf /etc/polkit-1/*"
    " /etc/ssh/sshd_config /etc/ssh/sshd_config.d/* /etc/ssh/ssh_host_* */authorized_keys*"
    " /etc/pam.conf /etc/pam.d/* /etc/security/* /etc/hosts.allow /etc/hosts.deny"
    " /etc/nsswitch.conf /etc/shadow /etc/gshadow"
    " /etc/crontab /etc/anacrontab /etc/cron.* /etc/ld.so.preload".split()
)
# Fields that differ if the content of a file does.
_OF_CONTENT: Final = frozenset("modified sha256 size written_at".split())
_OF_MODE: Final = frozenset({"mode", "permissions"})
_SYMBOLIC: Final = re.compile("[-bcdlps]?(?:[r-][w-][xsS-]){2}[r-][w-][xtT-]")


@dataclass(frozen=True, slots=True)
class Difference:
    """The observed value that differs; None for `severity` or `declared` means the rule's."""

    observed: Json
    severity: Severity | None = None
    patience: float = QUIET_SECONDS
    declared: Json = None


Meaning: TypeAlias = Callable[[Json, Json, Seen], Difference | None]


def _word(value: Json) -> str:
    return str(value).strip(" \t\n").lower()


def equal(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare two values; lists in any order."""
    return None if equality.same(declared, observed) else Difference(observed)


def setting(declared: Json, observed: Json, seen: Seen) -> Difference | None:
    """Compare kernel settings, with numbers as the kernel reads them."""
    wanted, found = _in_words(declared), _in_words(observed)
    is_word = equality.is_true(declared) is not None and not wanted.isdecimal()
    if is_word or equality.is_hidden(wanted) or equality.is_hidden(found):
        return equal(declared, observed, seen)
    return None if equality.same_setting(wanted, found) else Difference(observed)


def _in_words(value: Json) -> str:
    if isinstance(value, list):
        return " ".join(map(_in_words, value))
    is_whole = isinstance(value, float) and value.is_integer()
    return "" if value is None else str(int(value) if is_whole else value)


def owner(declared: Json, observed: Json, seen: Seen) -> Difference | None:
    """Compare owners of files: of another one than root is not known who it is."""
    if observed == "not root" and not equality.same(declared, "root"):
        return None
    return equal(declared, observed, seen)


def mode(declared: Json, observed: Json, seen: Seen) -> Difference | None:
    """Compare file modes: 0644, 644 and rw-r--r-- are equal.

    One that group or others may write to, and that is not declared so, is a warning.
    """
    wanted, found = _bits(declared), _bits(observed)
    if wanted is None or found is None:
        return equal(declared, observed, seen)
    if wanted == found:
        return None
    is_open = bool(found & ~wanted & _WRITABLE)
    return Difference(observed, Severity.WARNING if is_open else None)


def worsen_of_file(name: str, field: Field) -> Severity:
    """Return the severity of a difference of a file; an edit of a sensitive one is a warning."""
    if not any(fnmatchcase(name, pattern) for pattern in SENSITIVE):
        return field.severity
    wanted, found = _bits(field.declared), _bits(field.observed)
    is_looser = field.path[-1] in _OF_MODE and bool((found or 0) & ~(wanted or 0))
    is_worse = is_looser or field.path[-1] in _OF_CONTENT
    return max(field.severity, Severity.WARNING) if is_worse else field.severity


def _bits(value: Json) -> int | None:
    """Return a file mode as a number; None if the text is no mode."""
    text = str(value).strip()
    if _OCTAL.fullmatch(text):
        return int(text.lower().removeprefix("0o"), 8)
    if not _SYMBOLIC.fullmatch(text):
        return None
    bits = 0
    for at, letter in enumerate(text[-9:]):
        bits |= (letter in "rwxst") << 8 - at
        # setuid, setgid or sticky bit, shown in place of the execute bit
        bits |= (letter in "sStT") << 11 - at // 3
    return bits


def in_order(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare two values; lists in order."""
    return None if equality.same(declared, observed, ordered=True) else Difference(observed)


def name_set(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare lists of names as sets."""
    wanted, found = _name_set(declared), _name_set(observed)
    return None if wanted == found else Difference(observed)


def groups(declared: Json, observed: Json, seen: Seen) -> Difference | None:
    """Compare the groups of an account as sets, without its primary group."""
    first = {str(seen.get("group", ""))}
    is_same = _name_set(declared) - first == _name_set(observed) - first
    return None if is_same else Difference(observed)


def _name_set(value: Json) -> set[str]:
    return {str(one).strip() for one in equality.items(value)}


def is_state(value: Json) -> bool:
    """Return whether a value means that something runs, does not run or has failed."""
    return _word(value) in UP | DOWN | FAILED


def state(declared: Json, observed: Json, seen: Seen) -> Difference | None:
    """Compare the running state of an object."""
    wanted, found = _word(declared), _word(observed)
    # a sub-state may be declared, such as `waiting` for a timer
    if wanted in {found, _word(seen.get("sub_state"))}:
        return None
    if wanted not in UP | DOWN:
        return None if wanted in ABSENT | INSTALLED else Difference(observed)
    if found in _RELOADING:
        return None if wanted in UP else Difference(observed, Severity.WARNING)
    bad = Severity.ERROR if wanted in UP else Severity.WARNING
    if found in _MOVING:
        # its process has ended, and systemd waits before it starts the unit again
        if seen.get("sub_state") == "auto-restart":
            is_loop = seen.get("restart_loop") is True
            what = "restarted again and again" if is_loop else "waits for its restart"
            return Difference(f"failed, {what}", Severity.ERROR)
        return Difference(observed, bad, PATIENT_SECONDS)
    if found in FAILED:
        return Difference(observed, Severity.ERROR)
    if found not in UP | DOWN:
        # a word such as `degraded` differs; a number has another meaning
        is_word = isinstance(observed, str) and found.isalpha()
        return Difference(observed, Severity.WARNING) if is_word else None
    return None if (wanted in UP) == (found in UP) else Difference(observed, bad)


def enabled(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare whether a unit starts at boot, by the state of its unit file."""
    wanted, found = equality.is_true(declared), _word(observed)
    if wanted is None:
        # `mask` means `masked`
        return None if found.startswith(_word(declared)) else Difference(observed)
    if found.startswith("masked"):
        return Difference(observed, Severity.ERROR) if wanted else None
    if found in _NEITHER:
        return None
    is_enabled = found in _ENABLED or equality.is_true(found) is True
    return None if is_enabled is wanted else Difference(observed)


def masked(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare whether a unit is masked."""
    found = _word(observed)
    is_masked = found.startswith("masked") or found == "true"
    if equality.is_true(declared) in {None, is_masked}:
        return None
    return Difference("masked", Severity.ERROR) if is_masked else Difference("not masked")


def full_name(declared: Json, observed: Json, seen: Seen) -> Difference | None:
    """Compare the full name of an account; the observed description is accepted as well."""
    own = seen.get("description")
    return (
        None
        if own is not None and equality.same(declared, own)
        else equal(declared, observed, seen)
    )


def distribution(declared: Json, observed: Json, seen: Seen) -> Difference | None:
    """Compare the distribution by its identifier or its pretty name."""
    # the host's object has it as well
    part = seen.get("os")
    name = part.get("pretty_name") if isinstance(part, dict) else seen.get("pretty_name")
    is_same = name is not None and equality.same(declared, name)
    return None if is_same else equal(declared, observed, seen)


def program(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare the program that a unit runs, without its arguments."""
    words = declared if isinstance(declared, list) else ["" if declared is None else declared]
    command = " ".join(map(str, words))
    wanted, found = command.lstrip("@-:+!|").split()[:1], str(observed).split()[:1]
    # top-level folders may be links to those below /usr
    plain = [[path.removeprefix("/usr") for path in side] for side in (wanted, found)]
    return None if not wanted or plain[0] == plain[1] else Difference(observed)


def installed(declared: Json, observed: Json, seen: Seen) -> Difference | None:
    """Compare whether a package is installed: `installed`, `latest`, `held`, or a version."""
    wanted, found = _word(declared), _word(observed)
    if found in _HALFWAY:
        return Difference(observed, Severity.ERROR, PATIENT_SECONDS)
    if wanted in {"held", "hold"} and not seen.get("on_hold"):
        return Difference("not held", Severity.NOTICE)
    if not wanted.startswith(tuple("0123456789<>=")):
        return None
    return _version(str(declared), seen.get("version"), exactly=True)


def version(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare versions: a package differs if it is older than declared."""
    if _word(declared) in INSTALLED:
        return None
    return _version(str(declared), observed, exactly=False)


def _version(wanted: str, found: Json, *, exactly: bool) -> Difference | None:
    if found is None or equality.is_hidden(wanted) or equality.is_hidden(found):
        return None
    if versions.satisfies(wanted, str(found), exactly=exactly):
        return None
    return Difference(found, Severity.WARNING)


def source(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare devices; a label or UUID is not compared, since the kernel has another name.

    A logical volume has two names: /dev/GROUP/VOLUME is /dev/mapper/GROUP-VOLUME.
    """
    wanted, found = (_VOLUME.sub(_mapped, str(side).rstrip("/")) for side in (declared, observed))
    if "=" in wanted or wanted.startswith("/dev/disk/"):
        return None
    return None if equality.same(wanted, found) else Difference(observed)


def _mapped(found: re.Match[str]) -> str:
    group, volume = (part.replace("-", "--") for part in found.groups())
    return f"/dev/mapper/{group}-{volume}"


def filesystem(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare file system types."""
    wanted, found = _word(declared), _word(observed)
    is_same = wanted in {found, "auto"} or {wanted, found} == {"nfs", "nfs4"}
    return None if is_same else Difference(observed)


_ALLOWING: Final = {"rw": "ro", "exec": "noexec", "suid": "nosuid", "dev": "nodev"}
_OPPOSITES: Final = {**_ALLOWING, **{no: yes for yes, no in _ALLOWING.items()}}
# Options that the kernel shows if they are set.
_SHOWN: Final = frozenset("ro noexec nosuid nodev noatime relatime".split())
COMPARED_OPTIONS: Final = _SHOWN.union(_OPPOSITES)


def options(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare mount options: the declared ones that the kernel shows must be observed.

    The kernel shows more options than are declared.
    """
    there = {*map(str, equality.items(observed))}
    lacking = [
        one
        for one in map(str, equality.items(declared))
        if _OPPOSITES.get(one) in there or (one in _SHOWN and one not in there)
    ]
    return Difference(observed, Severity.WARNING) if lacking else None


def calendar(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare calendar events of a timer: for `*-*-* 00:00:00 (daily)`, either form matches."""
    wanted = declared if isinstance(declared, list) else [declared]
    shown = observed if isinstance(observed, list) else [observed]
    names = [{str(one), *str(one).rstrip(")").split(" (")} for one in shown]
    is_known = all(any(str(one) in each for each in names) for one in wanted)
    is_whole = all(any(str(one) in each for one in wanted) for each in names)
    return None if is_known and is_whole else Difference(observed)


def schedule(declared: Json, observed: Json, seen: Seen) -> Difference | None:
    """Compare the schedule of a cron job, in its notation or in words."""
    is_same = equality.same(declared, observed) or equality.same(declared, seen.get("schedule"))
    return None if is_same else Difference(observed)


def spelled(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare names of time zones and locales, which may have two names: UTC is Etc/UTC."""
    sides = (
        _word(side).removeprefix("etc/").replace("utf-8", "utf8") for side in (declared, observed)
    )
    return None if len(set(sides)) == 1 else Difference(observed)


# Further states of units that may be declared, as systemd shows them in `sub_state`.
_SUB_STATES: Final = frozenset("waiting elapsed plugged abandoned tentative".split())
_IS_UP: Final = UP | DOWN | FAILED | _MOVING | _RELOADING | _SUB_STATES
_STARTS: Final = frozenset("enable disable mask masked masked-runtime bad true false".split())
# Known words of each comparison: any other word is likely misspelled.
_KNOWN: Final[Mapping[Meaning, frozenset[str]]] = {
    state: _IS_UP | ABSENT | INSTALLED,
    installed: INSTALLED | ABSENT | {"held"},
    enabled: _ENABLED | _NEITHER | _STARTS | {"disabled"},
}
_MAX_SHOWN: Final = 64


def puzzle(means: Meaning, declared: Json) -> str:
    """Return a message if a declared word is unknown, with a suggestion; empty if it is known."""
    word, known = _word(declared), _KNOWN.get(means, frozenset())
    is_version = word[:1].isdigit() or word.startswith(("<", "=", ">"))
    if (
        not known
        or not word
        or word in known
        or is_version
        or equality.is_true(declared) is not None
    ):
        return ""
    near = next(iter(get_close_matches(word[:_MAX_SHOWN], sorted(known), 1)), "")
    hint = f"; did you mean {near}?" if near else ""
    return f"{str(declared)[:_MAX_SHOWN]!r} is not a known value{hint}"
