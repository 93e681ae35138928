"""Changes in plain words: what happened, to what, and why. Pure."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from opdbus.drift import versions
from opdbus.state.object import FILE

# A change as History1 gives it.
Change: TypeAlias = Mapping[str, Any]


class Value(NamedTuple):
    """A field's value before and after, as people read it, empty where there was none; and both."""

    before: str
    after: str
    said: str


_NONE: Final = Value("", "", "")
Values: TypeAlias = Mapping[str, Value]

MAX_FIELDS: Final = 3
MAX_VALUE: Final = 40
# How things of a sort come and leave.
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
    ("login1", "session"): ("began", "ended"),
    ("cron", "job"): ("added", "removed"),
    ("machined", "machine"): ("started", "ended"),
}
# Sorts whose names say themselves what they are.
_PLAIN: Final = frozenset({("systemd", "unit"), ("files", "file")})
_NOUNS: Final[Mapping[tuple[str, str], str]] = {
    ("net", "listener"): "port",
    ("cron", "job"): "cron job",
}
# These say again what other fields say.
_REPEATING: Final = frozenset({"description", "package_summary"})
_WHATS: Final[Mapping[str, str]] = {
    "event": "had an event",
    "drift": "is other than declared",
    "healed": "is as declared again",
    "intended": "is not yet as declared",
}
_CAUSES: Final[Mapping[str, str]] = {
    "first": "listed for the first time",
    "start": "while op-dbus was not running",
    "boot": "while this host was not running",
    "reload": "systemd reloaded its units",
    "exit": "its own process ended",
    "state file": "by the state file",
    "kernel": "by the kernel",
    "source": "with its source",
    "": "cause not known",
}
_RUN: Final = re.compile(r"(dpkg|apt|rpm|dnf|yum|zypper):\d{4}-\d\d-\d\dT(\d\d:\d\d)\S*(?: (.+))?")
_CALLER: Final = re.compile(r"bus:(:\S+) uid (\d+)")


class Told(NamedTuple):
    """A change in words: `sshd.service`, `stopped`, `active -> inactive`."""

    subject: str
    verb: str
    detail: str = ""

    def __str__(self) -> str:
        line = f"{self.subject} {self.verb}"
        return (
            f"{line}{self.detail}"
            if self.detail[:1] in {"", ",", " "}
            else f"{line}: {self.detail}"
        )


def cause(text: str, user: Callable[[int], str] = lambda uid: f"uid {uid}") -> str:
    """Say a cause in plain words; `user` names the user of a number."""
    if text in _CAUSES:
        return _CAUSES[text]
    if text.startswith("job:"):
        return f"job {text.removeprefix('job:')}"
    if run := _RUN.fullmatch(text):
        return f"package run {run[2]} {run[3] or run[1]}"
    if caller := _CALLER.fullmatch(text):
        return f"published by {user(int(caller[2]))} ({caller[1]})"
    return text


def tell(change: Change) -> Told:
    """Say in plain words what happened."""
    sort = (change["plugin"], change["kind"])
    values = {path: _value(old, new) for path, old, new in change["fields"] if path}
    comes, leaves = _COMES.get(sort, ("appeared", "is gone"))
    subject, what = _subject(sort, change["name"], values), change["what"]
    if is_declaration(change):
        return _edited(subject, what, values)
    if what == "appeared":
        told = Told(subject, "found" if change["cause"] == "first" else comes)
        return told._replace(detail=_came(sort, values))
    if what == "gone":
        return Told(subject, leaves)
    if what == "changed":
        said = _SORTS[sort](values) if sort in _SORTS else None
        return Told(subject, *(said or ("changed", _fields(values))))
    if what == "event" and sort == ("systemd", "unit"):
        return Told(subject, _happened(change["cause"]))
    if what == "forgot":
        count = values["count"].after if "count" in values else "some"
        return Told("history", "was made to forget", f" the values of {count} rows")
    return Told(subject, _WHATS.get(what, what), _declared(what, values))


def is_declaration(change: Change) -> bool:
    """Return whether a change is one of what the state file declares, and none of the host."""
    return change.get("source") == FILE and change["what"] in {"appeared", "changed", "gone"}


def _edited(subject: str, what: str, values: Values) -> Told:
    if what == "appeared":
        return Told(subject, "declared")
    if what == "gone":
        return Told(f"declaration of {subject}", "removed")
    return Told(f"declaration of {subject}", "changed", _fields(values))


def plural(kind: str) -> str:
    """Give the plural of a kind."""
    word = kind.replace("_", " ")
    if word.endswith("y"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "ch")) else f"{word}s"


def _subject(sort: tuple[str, str], name: str, values: Values) -> str:
    if sort == ("net", "listener"):
        port = values.get("port", _NONE)
        # a name such as tcp [::1]:53 ends with the port
        return f"port {port.before or port.after or name.rpartition(':')[2]}"
    return name if sort in _PLAIN else f"{noun(sort)} {name}"


def noun(sort: tuple[str, str]) -> str:
    """Say what a thing of a sort is."""
    return _NOUNS.get(sort, sort[1].replace("_", " "))


def _came(sort: tuple[str, str], values: Values) -> str:
    """Say the most of something new."""
    if sort == ("net", "listener") and "unit" in values:
        return f" by {values['unit'][1]}"
    if sort == ("packages", "package") and "version" in values:
        return f" {values['version'][1]}"
    if values.get("active_state", _NONE)[1] == "failed":
        return f", failed{_in_brackets(values.get('result', _NONE)[1])}"
    return ""


def _happened(cause: str) -> str:
    """Say what left a unit as it was: a run that ended, or a process that was replaced."""
    if cause == "exit":
        return "ended and was started again"
    if cause.endswith(", failed"):
        return "failed again"
    verbs = {"restart": "restarted", "reload": "reloaded"}
    return next((verb for word, verb in verbs.items() if word in cause.split()), "ran")


def _unit(values: Values) -> tuple[str, str] | None:
    before, after, _ = values.get("active_state", _NONE)
    if after:
        verbs = {"failed": "failed", "inactive": "stopped", "activating": "is starting"}
        verb = verbs.get(after, "started" if before != "reloading" else "reloaded")
        verb = "is stopping" if after == "deactivating" else verb
        result = _in_brackets(values.get("result", _NONE)[1])
        again = values.get("sub_state", _NONE)[1].startswith("auto-restart")
        if after == "activating" and (again or (result and before == "active")):
            verb, result = f"exited{result}, is starting again", ""
        detail = f"{before or 'unknown'} -> {after}{result}"
        return ", ".join(filter(None, (verb, _file_state(values)))), detail
    return (said, "") if (said := _file_state(values)) else None


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _file_state(values: Values) -> str:
    """Say whether a unit was masked or enabled, or is not any more."""
    for field, yes, no in (("masked", "masked", "unmasked"), ("enabled", "enabled", "disabled")):
        if after := values.get(field, _NONE)[1]:
            return yes if after == "yes" else no
    return ""


def _package(values: Values) -> tuple[str, str] | None:
    before, after, _ = values.get("version", _NONE)
    status = values.get("status", _NONE)
    if values.get("removed", _NONE)[1] == "yes":
        return "removed", ", its configuration is left"
    if values.get("removed", _NONE)[0] == "yes":
        return "installed", f" {after}" if after else ""
    if before and after:
        verb = "upgraded" if versions.compare(before, after) < 0 else "downgraded"
        return verb, f" {before} -> {after}"
    if status[1] == "installed" and not after:
        return "installed", ""
    return None


def _file(values: Values) -> tuple[str, str] | None:
    missing = values.get("missing", _NONE)
    if "yes" in missing:
        return ("created", "") if missing[0] == "yes" else ("deleted", "")
    if "sha256" not in values:
        return None
    rest = {name: value for name, value in values.items() if name not in {"sha256", "size"}}
    return "changed", ", ".join(["its content", *([_fields(rest)] if rest else [])])


_SORTS: Final[Mapping[tuple[str, str], Callable[[Values], tuple[str, str] | None]]] = {
    ("systemd", "unit"): _unit,
    ("packages", "package"): _package,
    ("files", "file"): _file,
}


def _fields(values: Values) -> str:
    """Tell the first fields of a change; names alone where values are not kept."""
    rest = {path: value for path, value in values.items() if path not in _REPEATING} or values
    return _first([f"{path} {value.said}".strip() for path, value in rest.items()])


def _declared(what: str, values: Values) -> str:
    """Tell fields of which the declared and the observed value are given."""
    if what == "healed":
        return ", ".join(values)
    told = [
        f"{path} is {observed or 'none'}, declared {declared or 'none'}"
        if declared or observed
        else path
        for path, (declared, observed, _) in values.items()
    ]
    return _first(told, "; ")


def _first(told: Sequence[str], between: str = ", ") -> str:
    more = len(told) - MAX_FIELDS
    return between.join(told[:MAX_FIELDS]) + (f" and {more} more" if more > 0 else "")


def _value(old: str, new: str) -> Value:
    """Read a field's values, which are JSON; of lists is said what came and what left."""
    before, after = (json.loads(text) if text else None for text in (old, new))
    sides = (_said(before) if old else "", _said(after) if new else "")
    told = f"{sides[0] or 'none'} -> {sides[1] or 'none'}" if old or new else ""
    had, has = _members(before), _members(after)
    if had is not None and has is not None and set(had) != set(has):
        left, came = ([v for v in a if v not in b] for a, b in ((had, has), (has, had)))
        told = " ".join([*(f"-{_short(v)}" for v in left), *(f"+{_short(v)}" for v in came)])
    return Value(*sides, told)


def _members(value: object) -> Sequence[str] | None:
    """Return the texts in a list, or in a text that is one with commas; None for anything else."""
    if isinstance(value, str) and "," in value and ", " not in value:
        return value.split(",")
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return None


def _said(value: object) -> str:
    """Give a value in few characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "yes", False: "no"}[value]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    return _short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    said = " ".join(text.split()) or '""'
    return said if len(said) <= MAX_VALUE else f"{said[: MAX_VALUE - 3]}..."
