"""Plain words for a change: the object, the event, its fields and its cause; pure."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from opdbus.drift import versions
from opdbus.history import jobs
from opdbus.platform import name_lists
from opdbus.state.object import FILE, PUBLISHED, SETTINGS, UNIT

# Cause of a drift that the host should have followed after a recent declaration, but did not in
# time.
NOT_FOLLOWED: Final = "state file:not followed"
_CAUSES: Final[Mapping[str, str]] = {
    "first": "listed for the first time",
    "start": "while op-dbus was not running",
    "start:unread": "after the last reading before op-dbus was stopped",
    "boot": "while this host was not running",
    "boot:unread": "after the last reading before this host was stopped",
    "reload": "systemd reloaded its units",
    "exit": "its own process ended",
    "state file": "by the state file",
    jobs.GAVE_UP: "it ended too often: systemd gave up",
    NOT_FOLLOWED: "the state file was not followed",
    "kernel": "by the kernel",
    "source": "with its source",
    "": "cause not known",
}
# Causes with a value after a colon: their text, which may include the value.
_WITH_MORE: Final[Mapping[str, str]] = {
    "start": _CAUSES["start"],
    "exit": f"{_CAUSES['exit']} ({{}})",
    "job": "job {}",
    "bus": "by {}",
}
# Names and numbers of signals begin so.
_OF_SIGNAL: Final = ("SIG", "signal ")
_PACKAGE_RUN: Final = re.compile(r"(dpkg|apt|rpm):\d{4}-\d\d-\d\dT(\d\d:\d\d)\S*(?: (.+))?")
_CALLER: Final = re.compile(r"bus:(:\S+) uid ([0-9]{1,10})")


def describe_cause(text: str, user: Callable[[int], str] = lambda uid: f"uid {uid}") -> str:
    """Return a cause in plain words; `user` returns the name of a uid."""
    if text.startswith("during "):
        return f"during {describe_cause(text.removeprefix('during '))}"
    if text.startswith("unit exit"):
        text = describe_cause(text.removeprefix("unit "))
        text = text.replace("its own process", "its unit's process")
        return re.sub("^killed", "its unit was killed", text)
    text = jobs.alone(text)
    if run := _PACKAGE_RUN.fullmatch(text):
        return f"package run {run[2]} {run[3] or run[1]}"
    if caller := _CALLER.fullmatch(text):
        return f"by {user(int(caller[2]))} ({caller[1]})"
    kind_id, colon, rest = text.partition(":")
    if kind_id == "exit" and rest.startswith(_OF_SIGNAL):
        return f"killed by {rest}"
    if text not in _CAUSES and colon and kind_id in _WITH_MORE:
        return _WITH_MORE[kind_id].format(rest)
    return _CAUSES.get(text, text)


# Field for the existence of an object, and its value for an object that should be declared.
PRESENCE: Final = "presence"
NOT_DECLARED: Final = "not declared"
MAX_FIELDS: Final = 3
# Lists that may have further members, as in drift.table.
AT_LEAST: Final = frozenset({("mounts", "mount", "options")})
# Prefix of a declared value's field, which is not a value before or after.
DECLARED: Final = "declared."
# Prefixes of declared ranges, in rows of earlier versions.
_RANGES: Final = ("<", ">", "=", "!", "~")
MAX_VALUE: Final = 40
# Characters of a command, and of what a unit logged.
MAX_ACT: Final = 160
# The journal is read so soon after a command, in microseconds: else the time of reading is shown.
_MOST_LATE: Final = 10_000_000
# age past which a timestamp has the year
_RECENT: Final = timedelta(days=300)
# Fields that repeat other fields.
_REPEATING: Final = frozenset({"description", "package_summary"})


class FieldSides(NamedTuple):
    """A field's formatted values before and after, empty if missing, and both in one text.

    `difference` says in its place how an observed value differs from the declared one.
    """

    before: str
    after: str
    said: str
    difference: str = ""


class FieldValues(dict[str, FieldSides]):
    """Values by field path; a missing field has empty values."""

    def __missing__(self, path: str) -> FieldSides:
        """Return empty values."""
        return FieldSides("", "", "")


def read_fields(fields: Iterable[tuple[str, str, str]]) -> FieldValues:
    """Read the fields of a change as History1 returns them."""
    sides = {path: (old, new) for path, old, new in fields if path}
    values = FieldValues((path, _format_sides(*both)) for path, both in sides.items())
    for path, (_, new) in sides.items():
        # an observed value and its declared one are shown so that their difference is visible
        if (other := sides.get(own := f"{DECLARED}{path}", ("", ""))[1]) and new:
            wanted, found = json.loads(other), json.loads(new)
            after, declared = _shorten_pair(found, wanted)
            difference = describe_difference(path, wanted, found)
            values[path] = values[path]._replace(after=after, difference=difference)
            values[own] = values[own]._replace(after=declared)
    return values


def describe_fields(values: Mapping[str, FieldSides]) -> str:
    """Return the first fields of a change as text; names alone if values are not kept."""
    rest = {path: value for path, value in values.items() if path not in _REPEATING} or values
    return name_lists.join_first(
        [f"{path} {v.said}".strip() for path, v in rest.items()], MAX_FIELDS
    )


def describe_drift(what: str, values: Mapping[str, FieldSides], kind_id: tuple[str, str]) -> str:
    """Return fields of an object that drift, or drift no longer, as text."""
    texts = []
    for path, value in values.items():
        own = path.removeprefix(DECLARED)
        if own == path or own not in values:
            # rows of earlier versions have the declared value as `before`
            declared = values.get(f"{DECLARED}{own}", value) if own == path else value
            wanted = declared.before if declared is value else declared.after
            texts.append(
                _describe_drifting_field(what, own, value, at_least_prefix(kind_id, own), wanted)
            )
    return name_lists.join_first([text for text in texts if text], MAX_FIELDS, "; ")


def _describe_drifting_field(
    what: str, path: str, value: FieldSides, least: str, declared: str
) -> str:
    """Return a drifting field as text; the name of the presence field is omitted."""
    # a value that repeats its field's name, such as masked=masked, reads as yes
    before, after = ("yes" if side == path else side for side in value[:2])
    is_repeated = (before, after) != value[:2]
    said = f"{before or 'none'} -> {after or 'none'}" if is_repeated else value.said
    name = "" if path == PRESENCE else path
    if not said or what == "undeclared":
        return name
    if what == "healed" and path in _CONTENT:
        return _CONTENT[path].healed
    if what == "healed" and after[:1] in _RANGES:
        return f"{name} was {before}, declared {after}"
    if what == "healed":
        return f"{name} {said if before != after else f'is {after}'}".strip()
    if not name:
        return "there, and not declared" if declared == NOT_DECLARED else after
    if value.difference and not least:
        return value.difference
    wanted = "yes" if declared == path else declared or "none"
    return f"{name} is {after or 'none'}, declared {least}{wanted}"


class _Content(NamedTuple):
    differs: str
    healed: str


# Fields whose values say nothing to people, and what it means that they differ, or no longer do.
_CONTENT: Final[Mapping[str, _Content]] = {
    "sha256": _Content("its content differs", "its content"),
    "written_at": _Content("it was written anew", "when it was written"),
}


def describe_difference(path: str, declared: object, observed: object) -> str:
    """Return a difference that is better said without both values; else "".

    Of two lists that share a member, it says what was added and removed, as `members +alice`.
    """
    if said := _CONTENT.get(path):
        return said.differs
    wanted, found = (value if isinstance(value, list) else [] for value in (declared, observed))
    is_of_texts = all(isinstance(one, str) for one in (*wanted, *found))
    if not is_of_texts or set(wanted).isdisjoint(found):
        return ""
    left, came = ([v for v in a if v not in b] for a, b in ((wanted, found), (found, wanted)))
    return " ".join([path, *_signed("-", left), *_signed("+", came)]) if left or came else ""


def at_least_prefix(kind_id: tuple[str, str], name: str) -> str:
    """Return "at least " for a partly declared field, also within `properties`, else ""."""
    return "at least " if (*kind_id, name.rpartition(".")[2]) in AT_LEAST else ""


def _format_sides(old: str, new: str) -> FieldSides:
    """Format a field's JSON values; for lists, the added and removed members."""
    before, after = (json.loads(text) if text else None for text in (old, new))
    sides = ("", "")
    if old and new:
        sides = _shorten_pair(before, after)
    elif old or new:
        side = _shorten_value(_json_text(before if old else after))
        sides = (side, "") if old else ("", side)
    difference = f"{sides[0] or 'none'} -> {sides[1] or 'none'}" if old or new else ""
    had, has = _list_members(before), _list_members(after)
    if had is not None and has is not None and set(had) != set(has):
        left, came = ([v for v in a if v not in b] for a, b in ((had, has), (has, had)))
        if len(left) == len(came) == 1:
            left, came = (
                [side] for side in name_lists.show_difference(left[0], came[0], MAX_VALUE)
            )
        difference = " ".join([*_signed("-", left), *_signed("+", came)])
    return FieldSides(*sides, difference)


def _signed(sign: str, values: Iterable[str]) -> Iterator[str]:
    return (f"{sign}{_shorten_value(value)}" for value in values)


def _list_members(value: object) -> Sequence[str] | None:
    """Return the strings of a list or of a text with commas; None for any other value."""
    if isinstance(value, str) and "," in value and ", " not in value:
        return value.split(",")
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return None


def _shorten_pair(before: object, after: object) -> tuple[str, str]:
    """Shorten two values so that their difference stays visible."""
    texts = _json_text(before), _json_text(after)
    if before != after and texts[0] == texts[1]:
        texts = json.dumps(before), json.dumps(after)
    first, second = name_lists.show_difference(*texts, MAX_VALUE)
    return first or '""', second or '""'


def _json_text(value: object) -> str:
    if value in ([], {}):
        return "none"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "yes", False: "no"}[value]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shorten_value(text: str) -> str:
    return name_lists.shorten(" ".join(text.split()) or '""', MAX_VALUE)


# Events of the whole host by their causes: the subject and the verb.
_OF_HOST: Final = {"boot:reboot": ("this host", "was rebooted")}
# Fields from a unit's files, not from its state.
_OF_FILES: Final = ("description", "exec", "user", "calendar", "drop_ins")
_RESTARTS: Final = {"exit": "ended and was started again", "stop": "was stopped and started again"}
_RUNS: Final = {"exit": "was started and ended", "stop": "was started and stopped"}
_ACTIVE_STATES: Final = {
    "failed": "failed",
    "inactive": "stopped",
    "activating": "is starting",
    "deactivating": "is stopping",
}


def _describe_unit_event(cause: str) -> str:
    """Return the event that left a unit as it was; "" if it was no job and no end of a process."""
    if whole_run := jobs.ended_after_start(cause):
        return _RUNS[whole_run]
    ended, cause = jobs.ended_by(cause), jobs.alone(cause)
    if not cause.startswith("job:"):
        exact = {"start:failed": "failed again", "start:ran": "ran", jobs.GAVE_UP: "failed again"}
        verbs = {"exit": _RESTARTS["exit"], "start": "restarted"}
        return exact.get(cause) or verbs.get(cause.partition(":")[0], "")
    if cause.endswith(jobs.FAILED):
        return "failed again"
    verbs = {"restart": "restarted", "reload": "reloaded", "stop": "stopped"}
    return verbs.get(jobs.act(cause), _RESTARTS.get(ended, "ran"))


def _describe_unit(values: FieldValues, cause: str) -> tuple[str, str] | None:
    """Return a change of a unit in words; None if the fields are clearer."""
    before, after = values["active_state"][:2]
    result, file_change = _unit_result(values), _unit_file_change(values)
    if values["restart_loop"].after:
        return f"is restarted again and again{result}", ""
    if values["restart_loop"].before and after == "active" and not cause.startswith("job:"):
        return "is not restarted again and again any more", ""
    if after:
        verb = _ACTIVE_STATES.get(after, "started" if before != "reloading" else "reloaded")
        if after == "inactive":
            has_run = jobs.act(cause) in {"start", "restart"}
            ran = "ran" if has_run and before in {"failed", "activating"} else ""
            mended = "is no longer failed" if before == "failed" else ""
            verb = ", ".join(filter(None, (ran, mended))) or verb
        again = values["sub_state"].after.startswith("auto-restart")
        if after == "activating" and (again or (result and before == "active")):
            verb, result = f"exited{result}, is starting again", ""
        # in a loop, the state is the same whether the unit runs or waits
        was = "restart loop" if values["restart_loop"].before else before or "unknown"
        detail = f"{was} -> {after}{result}"
        others = (f"{name} {values[name].said}" for name in _OF_FILES if values[name].said)
        return ", ".join(filter(None, (verb, file_change))), ", ".join([detail, *others])
    if values["sub_state"].after == "elapsed":
        return "elapsed, and is not set again", ""
    if values["load_state"].after in {"error", "bad-setting"}:
        return "cannot be loaded", values["load_error"].after
    return (file_change, "") if file_change else None


def _unit_result(values: FieldValues) -> str:
    """Return the end of a unit's process in brackets, in more detail than systemd's result."""
    result, status = values["result"].after, values["exit_status"].after
    if result in {"signal", "core-dump"}:
        by = "killed by " if result == "signal" and values["exit_signal"].after else ""
        result = f"{by}{values['exit_signal'].after or result}"
    elif result == "exit-code" and status:
        result = f"status {status}"
    return f" ({result})" if result else ""


def _unit_file_change(values: FieldValues) -> str:
    """Return a change of a unit's file: masked, enabled, the reverse, or removed."""
    if values["load_state"].after == "not-found" and "yes" not in values["masked"]:
        return "has no file any more"
    for field, yes, no in (("masked", "masked", "unmasked"), ("enabled", "enabled", "disabled")):
        before, after = values[field][:2]
        if "yes" in {before, after}:
            return yes if after == "yes" else no
    return ""


# A change as History1 returns it.
Change: TypeAlias = Mapping[str, Any]
# Kind of the state file itself, not of the objects that it declares.
STATE_FILE: Final = ("op-dbus", "state_file")
# Verbs for objects of a kind that appear and disappear.
_COMES: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("packages", "package"): ("installed", "removed"),
    ("net", "listener"): ("opened", "closed"),
    ("net", "address"): ("added", "removed"),
    ("net", "route"): ("added", "removed"),
    ("mounts", "mount"): ("mounted", "unmounted"),
    ("users", "account"): ("added", "removed"),
    ("users", "group"): ("added", "removed"),
    ("files", "file"): ("created", "deleted"),
    ("kernel", "module"): ("loaded", "unloaded"),
    # only settings that a file names are listed
    ("kernel", "sysctl"): ("named", "is named no longer"),
    ("login1", "session"): ("began", "ended"),
    ("login1", "user"): ("logged in", "logged out"),
    ("cron", "job"): ("added", "removed"),
    ("machined", "machine"): ("started", "ended"),
}
_PUBLISHED: Final = ("published", "no longer published")
_SESSION: Final = ("login1", "session")
# Kinds whose names need no noun before them.
_WITHOUT_NOUN: Final = frozenset({UNIT, ("files", "file")})
_NOUNS: Final[Mapping[tuple[str, str], str]] = {
    ("net", "listener"): "port",
    ("cron", "job"): "cron job",
    ("devices", "block"): "block device",
    ("devices", "pci"): "PCI device",
    ("devices", "usb"): "USB device",
}
# Fields of a package that change with its version.
_OF_VERSION: Final = frozenset(
    "version description homepage installed_size_mb priority section source".split()
)
_DRIFT_VERBS: Final[Mapping[str, str]] = {
    "drift": "is other than declared",
    "healed": "is as declared again",
    "intended": "is not yet as declared",
    "undeclared": "is no longer declared",
}


class ChangeWords(NamedTuple):
    """A change in words: `sshd.service`, `stopped`, `active -> inactive`."""

    subject: str
    verb: str
    detail: str = ""

    def __str__(self) -> str:
        between = "" if self.detail[:1] in {"", ",", " "} else ": "
        return f"{self.subject} {self.verb}{between}{self.detail}"


def describe_change(
    change: Change, user: Callable[[int], str] = lambda uid: f"uid {uid}"
) -> ChangeWords:
    """Return a change in plain words; `user` returns the name of a uid."""
    return _describe_note(change, user) or _describe_change(change)


def _describe_change(change: Change) -> ChangeWords:
    kind_id = (change["plugin"], change["kind"])
    values = read_fields(change["fields"])
    is_published = str(change.get("source", "")).startswith(PUBLISHED)
    # a lingering user exists without being logged in
    known = {} if "yes" in values["linger"] else _COMES
    comes, leaves = _PUBLISHED if is_published else known.get(kind_id, ("appeared", "is gone"))
    subject, what = subject_of(kind_id, change["name"]), change["what"]
    subject += _user_of_session(values) if kind_id == _SESSION else ""
    if kind_id == STATE_FILE:
        return ChangeWords(subject, *_describe_state_file(change["fields"]))
    if is_declaration(change):
        if what == "appeared":
            return ChangeWords(subject, "declared")
        removed_or_changed = (
            ("removed",) if what == "gone" else ("changed", describe_fields(values))
        )
        return ChangeWords(f"declaration of {subject}", *removed_or_changed)
    if what == "appeared":
        comes = _incomplete_state(values) or comes if kind_id[1] == "package" else comes
        verb = "found" if change["cause"] == "first" else comes
        return ChangeWords(subject, verb, _detail_of_new(kind_id, values))
    if what == "gone":
        unit = values["unit"].before if kind_id == ("net", "listener") else ""
        return ChangeWords(subject, leaves, f" by {unit}" if unit else "")
    if what == "changed":
        cause = jobs.alone(change["cause"])
        said = _BY_KIND[kind_id](values, cause) if kind_id in _BY_KIND else None
        return ChangeWords(subject, *(said or ("changed", describe_fields(values))))
    if what == "event":
        event = _describe_unit_event(change["cause"]) if kind_id == UNIT else ""
        usual = "had an event" if kind_id[0] == "devices" else "changed, and is as it was"
        of_host = _OF_HOST.get(change["cause"])
        return ChangeWords(*(of_host or (subject, event or usual)))
    if what == "forgot":
        count = values["count"].after if "count" in values else "some"
        rows = f"{count} {plural('row', 1 if count == '1' else 2)}"
        return ChangeWords("history", "was made to forget", f" the values of {rows}")
    # rows of earlier versions lack the prefix of declared values
    presence = {values[f"{prefix}{PRESENCE}"].before for prefix in (DECLARED, "")}
    if what == "undeclared" and NOT_DECLARED in presence:
        return ChangeWords(subject, "need not be declared any more")
    is_late = change["cause"] == NOT_FOLLOWED
    verb = "is still other than declared" if is_late else _DRIFT_VERBS.get(what, what)
    return ChangeWords(subject, verb, describe_drift(what, values, kind_id))


def _user_of_session(values: FieldValues) -> str:
    """Return whose session came or went; empty if that is not kept."""
    user = values["user"].after or values["user"].before
    return f" of {user}" if user else ""


def is_declaration(change: Change) -> bool:
    """Return true if a change is an edit of the state file and not of the host."""
    return change.get("source") == FILE and change["what"] in {"appeared", "changed", "gone"}


def _describe_state_file(fields: Iterable[Sequence[str]]) -> tuple[str, str]:
    """Return that the state file is readable again, or the full reason why it is not."""
    for path, before, after in fields:
        if path == "error" and (before or after):
            return ("cannot be read", json.loads(after)) if after else ("can be read again", "")
    return "changed", ""


def plural(kind: str, count: int = 2) -> str:
    """Return the plural of a kind, or the singular if the count is 1."""
    word = kind.replace("_", " ")
    if word == SETTINGS:
        # an object of this kind has many
        return f"{'set' if count == 1 else 'sets'} of {word}"
    if count == 1:
        return word
    if word.endswith("y"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "ch")) else f"{word}s"


def subject_of(kind_id: tuple[str, str], name: str) -> str:
    """Return an object's name in plain words."""
    if kind_id == ("cron", "job") and " " in name:
        # the name has a file and a program, which may be `false`
        file, _, program = name.partition(" ")
        return f"{noun(kind_id)} {program} of {file}"
    return name if kind_id in _WITHOUT_NOUN else f"{noun(kind_id)} {name}"


def format_stamp(at: int) -> str:
    """Format a time in 15 columns; a time long ago with its year, as ls does."""
    local = datetime.fromtimestamp(at / 1e6, UTC).astimezone()
    is_recent = abs(local - datetime.now(UTC)) < _RECENT
    return local.strftime("%b %d %H:%M:%S" if is_recent else "%b %d  %Y")


def noun(kind_id: tuple[str, str]) -> str:
    """Return the noun for a kind."""
    return _NOUNS.get(kind_id, kind_id[1].replace("_", " "))


def _detail_of_new(kind_id: tuple[str, str], values: FieldValues) -> str:
    """Return the most important value of a new object."""
    if kind_id == ("net", "listener") and "unit" in values:
        return f" by {values['unit'].after}"
    if kind_id == ("kernel", "sysctl"):
        parts = (("file", " in "), ("wanted", ", to be "), ("value", ", is "))
        return "".join(
            f"{words}{values[name].after}" for name, words in parts if values[name].after
        )
    if kind_id == ("packages", "package") and "version" in values:
        return f" {values['version'].after}"
    if kind_id == ("users", "account") and values["administrator"].after == "yes":
        return ", an administrator"
    if kind_id == UNIT:
        failed = f"failed{_unit_result(values)}" if values["active_state"].after == "failed" else ""
        return "".join(f", {said}" for said in (_unit_file_change(values), failed) if said)
    return ""


def _describe_package(values: FieldValues, _cause: str) -> tuple[str, str] | None:
    """Return a change of a package in words; None if the fields are clearer."""
    before, after = values["version"][:2]
    on_hold = "put on hold" if values["on_hold"].after == "yes" else "no longer on hold"
    if values["removed"].after == "yes":
        return "removed", ", its configuration is left"
    if values["removed"].before == "yes":
        return _incomplete_state(values) or "installed", f" {after}" if after else ""
    if before and after:
        verb = "upgraded" if versions.compare(before, after) < 0 else "downgraded"
        more = [on_hold] if "on_hold" in values else []
        rest = {k: v for k, v in values.items() if k not in {*_OF_VERSION, "on_hold"}}
        more += [describe_fields(rest)] if rest else []
        return ", ".join([verb, *more]), f"{'' if more else ' '}{before} -> {after}"
    if values["status"].after == "installed" and not after:
        has_waited = values["status"].before.startswith("triggers-")
        return ("ran its triggers" if has_waited else "installed"), ""
    return (on_hold, "") if values.keys() == {"on_hold"} else None


def _incomplete_state(values: FieldValues) -> str:
    """Return the state in which a package manager left an incomplete installation, else ""."""
    status = values["status"].after
    return f"left {status}" if status not in {"", "installed", "config-files"} else ""


def _describe_file(values: FieldValues, _cause: str) -> tuple[str, str] | None:
    """Return a change of a file in words; None if the fields are clearer."""
    missing = values["missing"]
    if "yes" in missing:
        return ("created", "") if missing.before == "yes" else ("deleted", "")
    if values.keys().isdisjoint(("sha256", "owner", "written_at")):
        return None
    # a field that was readable on one side only need not have changed
    is_read = values["sha256"].before and values["sha256"].after
    own = {"sha256", "size"} if is_read else {"sha256", "modified", "readable"}
    own |= {"owner", "written_at"}
    rest = {name: value for name, value in values.items() if name not in own}
    may = "not readable for all any more" if values["readable"].after else "readable for all"
    said = ["its content"] if is_read else [may] if "readable" in values else []
    if values["written_at"].before and values["written_at"].after:
        said.append("written anew")
    if "owner" in values:
        # one of root has no such field
        before, after = (side or "root" for side in values["owner"][:2])
        said.append(f"owner {before} -> {after}")
    return "changed", ", ".join([*said, *([describe_fields(rest)] if rest else [])])


def _describe_note(change: Change, user: Callable[[int], str]) -> ChangeWords | None:
    """Return what the journal said of a user or a unit, in words; None if the fields are clearer.

    Others than the journal's reader may publish such objects: these say nothing of the user.
    """
    if change["plugin"] != "journal":
        return None
    if not change.get("believed"):
        caller = _CALLER.fullmatch(change["cause"])
        by = f"published by {user(int(caller[2]))}" if caller else "published by others"
        plain = _describe_change(change)
        return plain._replace(subject=f"{by}: {change['kind']} {change['name']}")
    if change["kind"] == "reader":
        again = "from now on" if change["what"] == "appeared" else "no longer"
        return ChangeWords("the journal", f"is read {again}")
    if change["what"] not in {"appeared", "changed"}:
        return None
    after = {path: json.loads(new) for path, _, new in change["fields"] if new}
    if change["kind"] == "failure":
        last = _dicts(after.get("failed"))
        is_logged = any(one.get("why") in _list(one.get("lines")) for one in last)
        why = "; ".join(str(one.get("why", "")) for one in last)
        return ChangeWords(
            change["name"], "logged before it failed" if is_logged else "failed", why
        )
    if change["kind"] == "user":
        ran = [_describe_act(act) for act in _dicts(after.get("ran"))]
        root = [_describe_act(act) for act in _dicts(after.get("as_root"))]
        subject = f"user {change['name']}"
        if ran:
            return ChangeWords(subject, "ran as root", name_lists.join_first(ran, MAX_FIELDS, "; "))
        said = name_lists.join_first(root, MAX_FIELDS, "; ")
        return ChangeWords(subject, *(("is root", said) if root else ("is root no longer", "")))
    return None


def time_of_acts(change: Change) -> int:
    """Return when a user ran the commands of a row, in microseconds since 1970; 0 if unknown.

    The row itself has the time at which the journal was read.
    """
    if (change["plugin"], change["kind"]) != ("journal", "user") or not change.get("believed"):
        return 0
    times = []
    for path, old, new in change["fields"]:
        if path in {"ran", "as_root"} and new:
            before = _list(json.loads(old)) if old else []
            acts = (act for act in _dicts(json.loads(new)) if act not in before)
            with suppress(ValueError, OverflowError):
                times += [datetime.fromisoformat(str(act.get("at"))).timestamp() for act in acts]
    at = int(min(times, default=0.0) * 1e6)
    return at if 0 <= change["at"] - at <= _MOST_LATE else 0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [one for one in _list(value) if isinstance(one, dict)]


def _describe_act(act: Mapping[str, Any]) -> str:
    words = str(act.get("with", "")), str(act.get("command", "") or act.get("folder", ""))
    return name_lists.shorten(" ".join(filter(None, words)), MAX_ACT)


_BY_KIND: Final[Mapping[tuple[str, str], Callable[[FieldValues, str], tuple[str, str] | None]]] = {
    UNIT: _describe_unit,
    ("packages", "package"): _describe_package,
    ("files", "file"): _describe_file,
}
