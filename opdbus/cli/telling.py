"""Plain words for changes: what happened, to which object, and why; pure."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from opdbus.cli import field_values, unit_words
from opdbus.cli.causes import NOT_FOLLOWED
from opdbus.cli.field_values import Values
from opdbus.drift import versions
from opdbus.history import jobs
from opdbus.state.object import FILE, PUBLISHED

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
_UNIT: Final = ("systemd", "unit")
# Kinds whose names need no noun before them.
_PLAIN: Final = frozenset({_UNIT, ("files", "file")})
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
_WHATS: Final[Mapping[str, str]] = {
    "drift": "is other than declared",
    "healed": "is as declared again",
    "intended": "is not yet as declared",
    "undeclared": "is no longer declared",
}
# Prefix of declared values; rows of earlier versions lack it.
_DECLARED_OR_OLD: Final = (field_values.DECLARED, "")
_AND_BACK: Final = "changed, and is as it was"


class ChangeWords(NamedTuple):
    """A change in words: `sshd.service`, `stopped`, `active -> inactive`."""

    subject: str
    verb: str
    detail: str = ""

    def __str__(self) -> str:
        between = "" if self.detail[:1] in {"", ",", " "} else ": "
        return f"{self.subject} {self.verb}{between}{self.detail}"


def tell(change: Change) -> ChangeWords:
    """Return a change in plain words."""
    sort = (change["plugin"], change["kind"])
    values = field_values.read(change["fields"])
    is_published = str(change.get("source", "")).startswith(PUBLISHED)
    # a lingering user exists without being logged in
    known = {} if "yes" in values["linger"] else _COMES
    comes, leaves = _PUBLISHED if is_published else known.get(sort, ("appeared", "is gone"))
    subject, what = subject_of(sort, change["name"]), change["what"]
    if sort == STATE_FILE:
        return ChangeWords(subject, *_readable(change["fields"]))
    if is_declaration(change):
        return _edited(subject, what, values)
    if what == "appeared":
        comes = _left_as(values) or comes if sort[1] == "package" else comes
        verb = "found" if change["cause"] == "first" else comes
        return ChangeWords(subject, verb, _came(sort, values))
    if what == "gone":
        return ChangeWords(subject, leaves, _left(sort, values))
    if what == "changed":
        said = _changed(sort, values, jobs.alone(change["cause"]))
        return ChangeWords(subject, *(said or ("changed", field_values.in_words(values))))
    if what == "event":
        return ChangeWords(subject, _happened(sort, change["cause"]))
    if what == "forgot":
        count = values["count"].after if "count" in values else "some"
        rows = f"{count} {plural('row', 1 if count == '1' else 2)}"
        return ChangeWords("history", "was made to forget", f" the values of {rows}")
    return _compared(subject, change, values)


def _compared(subject: str, change: Change, values: Values) -> ChangeWords:
    """Return an object's drift in words."""
    what = change["what"]
    presence = {values[f"{own}{field_values.PRESENCE}"].before for own in _DECLARED_OR_OLD}
    if what == "undeclared" and field_values.NOT_DECLARED in presence:
        return ChangeWords(subject, "need not be declared any more")
    is_late = change["cause"] == NOT_FOLLOWED
    verb = "is still other than declared" if is_late else _WHATS.get(what, what)
    return ChangeWords(
        subject, verb, field_values.compared(what, values, (change["plugin"], change["kind"]))
    )


def is_declaration(change: Change) -> bool:
    """Return true if a change is an edit of the state file and not of the host."""
    return change.get("source") == FILE and change["what"] in {"appeared", "changed", "gone"}


def _edited(subject: str, what: str, values: Values) -> ChangeWords:
    if what == "appeared":
        return ChangeWords(subject, "declared")
    if what == "gone":
        return ChangeWords(f"declaration of {subject}", "removed")
    return ChangeWords(f"declaration of {subject}", "changed", field_values.in_words(values))


def _readable(fields: Iterable[Sequence[str]]) -> tuple[str, str]:
    """Return that the state file is readable again, or the full reason why it is not."""
    for path, before, after in fields:
        if path == "error" and (before or after):
            return ("cannot be read", json.loads(after)) if after else ("can be read again", "")
    return "changed", ""


def plural(kind: str, count: int = 2) -> str:
    """Return the plural of a kind, or the singular if the count is 1."""
    word = kind.replace("_", " ")
    if count == 1:
        return word
    if word.endswith("y"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "ch")) else f"{word}s"


def subject_of(sort: tuple[str, str], name: str) -> str:
    """Return an object's name in plain words."""
    if sort == ("cron", "job") and " " in name:
        # the name has a file and a program, which may be `false`
        file, _, program = name.partition(" ")
        return f"{noun(sort)} {program} of {file}"
    return name if sort in _PLAIN else f"{noun(sort)} {name}"


def noun(sort: tuple[str, str]) -> str:
    """Return the noun for a kind."""
    return _NOUNS.get(sort, sort[1].replace("_", " "))


def _came(sort: tuple[str, str], values: Values) -> str:
    """Return the most important value of a new object."""
    if sort == ("net", "listener") and "unit" in values:
        return f" by {values['unit'].after}"
    if sort == ("kernel", "sysctl"):
        return _setting(values)
    if sort == ("packages", "package") and "version" in values:
        return f" {values['version'].after}"
    if sort == ("users", "account") and values["administrator"].after == "yes":
        return ", an administrator"
    return "".join(f", {said}" for said in unit_words.found(values)) if sort == _UNIT else ""


def _setting(values: Values) -> str:
    """Return the file that names a kernel setting, its wanted value and its value."""
    file, wanted, value = (values[name].after for name in ("file", "wanted", "value"))
    said = (f" in {file}" if file else "", f", to be {wanted}" if wanted else "")
    return "".join([*said, f", is {value}" if value else ""])


def _left(sort: tuple[str, str], values: Values) -> str:
    """Return the most important value of an object that left."""
    unit = values["unit"].before if sort == ("net", "listener") else ""
    return f" by {unit}" if unit else ""


def _happened(sort: tuple[str, str], cause: str) -> str:
    """Return the event that left an object as it was: a job, a new process, a change and back."""
    said = unit_words.happened(cause) if sort == _UNIT else ""
    return said or ("had an event" if sort[0] == "devices" else _AND_BACK)


def _changed(sort: tuple[str, str], values: Values, cause: str) -> tuple[str, str] | None:
    """Return a change of fields in words; None if the fields are clearer."""
    if sort == _UNIT:
        return unit_words.changed(values, cause)
    return _SORTS[sort](values) if sort in _SORTS else None


def _package(values: Values) -> tuple[str, str] | None:
    before, after, _ = values["version"]
    status = values["status"]
    if values["removed"].after == "yes":
        return "removed", ", its configuration is left"
    if values["removed"].before == "yes":
        return _left_as(values) or "installed", f" {after}" if after else ""
    if before and after:
        verb = "upgraded" if versions.compare(before, after) < 0 else "downgraded"
        more = _besides_version(values)
        return ", ".join([verb, *more]), f"{'' if more else ' '}{before} -> {after}"
    if status.after == "installed" and not after:
        return "installed", ""
    return (_held(values), "") if values.keys() == {"on_hold"} else None


def _left_as(values: Values) -> str:
    """Return the state in which a package manager left an incomplete installation, else ""."""
    status = values["status"].after
    return f"left {status}" if status not in {"", "installed", "config-files"} else ""


def _besides_version(values: Values) -> list[str]:
    """Return changes of a package that do not follow from its new version."""
    rest = {k: v for k, v in values.items() if k not in {*_OF_VERSION, "on_hold"}}
    held = [_held(values)] if "on_hold" in values else []
    return [*held, *([field_values.in_words(rest)] if rest else [])]


def _held(values: Values) -> str:
    return "put on hold" if values["on_hold"].after == "yes" else "no longer on hold"


def _file(values: Values) -> tuple[str, str] | None:
    missing = values["missing"]
    if "yes" in missing:
        return ("created", "") if missing.before == "yes" else ("deleted", "")
    if "sha256" not in values:
        return None
    # a field that was readable on one side only need not have changed
    is_read = values["sha256"].before and values["sha256"].after
    own = {"sha256", "size"} if is_read else {"sha256", "modified", "readable"}
    rest = {name: value for name, value in values.items() if name not in own}
    may = "not readable for all any more" if values["readable"].after else "readable for all"
    said = ["its content"] if is_read else [may] if "readable" in values else []
    return "changed", ", ".join([*said, *([field_values.in_words(rest)] if rest else [])])


_SORTS: Final[Mapping[tuple[str, str], Callable[[Values], tuple[str, str] | None]]] = {
    ("packages", "package"): _package,
    ("files", "file"): _file,
}
