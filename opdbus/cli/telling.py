"""Changes in plain words: what happened, to what, and why. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from opdbus.cli import field_values
from opdbus.cli.field_values import Values
from opdbus.drift import versions
from opdbus.state.object import FILE

# A change as History1 gives it.
Change: TypeAlias = Mapping[str, Any]
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
_NO_VALUES: Final = Values()
_WHATS: Final[Mapping[str, str]] = {
    "drift": "is other than declared",
    "healed": "is as declared again",
    "intended": "is not yet as declared",
}
_AND_BACK: Final = "changed, and is as it was"


class Told(NamedTuple):
    """A change in words: `sshd.service`, `stopped`, `active -> inactive`."""

    subject: str
    verb: str
    detail: str = ""

    def __str__(self) -> str:
        between = "" if self.detail[:1] in {"", ",", " "} else ": "
        return f"{self.subject} {self.verb}{between}{self.detail}"


def tell(change: Change) -> Told:
    """Say in plain words what happened."""
    sort = (change["plugin"], change["kind"])
    values = field_values.read(change["fields"])
    comes, leaves = _COMES.get(sort, ("appeared", "is gone"))
    subject, what = subject_of(sort, change["name"], values), change["what"]
    if is_declaration(change):
        return _edited(subject, what, values)
    if what == "appeared":
        told = Told(subject, "found" if change["cause"] == "first" else comes)
        return told._replace(detail=_came(sort, values))
    if what == "gone":
        return Told(subject, leaves)
    if what == "changed":
        said = _SORTS[sort](values) if sort in _SORTS else None
        return Told(subject, *(said or ("changed", field_values.in_words(values))))
    if what == "event":
        return Told(subject, _happened(sort, change["cause"]))
    if what == "forgot":
        count = values["count"].after if "count" in values else "some"
        return Told("history", "was made to forget", f" the values of {count} rows")
    return Told(subject, _WHATS.get(what, what), field_values.compared(what, values))


def is_declaration(change: Change) -> bool:
    """Return whether a change is one of what the state file declares, and none of the host."""
    return change.get("source") == FILE and change["what"] in {"appeared", "changed", "gone"}


def _edited(subject: str, what: str, values: Values) -> Told:
    if what == "appeared":
        return Told(subject, "declared")
    if what == "gone":
        return Told(f"declaration of {subject}", "removed")
    return Told(f"declaration of {subject}", "changed", field_values.in_words(values))


def plural(kind: str) -> str:
    """Give the plural of a kind."""
    word = kind.replace("_", " ")
    if word.endswith("y"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "ch")) else f"{word}s"


def subject_of(sort: tuple[str, str], name: str, values: Values = _NO_VALUES) -> str:
    """Name a thing in plain words."""
    if sort == ("net", "listener"):
        port = values["port"]
        # a name such as tcp [::1]:53 ends with the port
        return f"port {port.before or port.after or name.rpartition(':')[2]}"
    return name if sort in _PLAIN else f"{noun(sort)} {name}"


def noun(sort: tuple[str, str]) -> str:
    """Say what a thing of a sort is."""
    return _NOUNS.get(sort, sort[1].replace("_", " "))


def _came(sort: tuple[str, str], values: Values) -> str:
    """Say the most of something new."""
    if sort == ("net", "listener") and "unit" in values:
        return f" by {values['unit'].after}"
    if sort == ("packages", "package") and "version" in values:
        return f" {values['version'].after}"
    if values["active_state"].after == "failed":
        return f", failed{_in_brackets(values['result'].after)}"
    return ""


def _happened(sort: tuple[str, str], cause: str) -> str:
    """Say what left a thing as it was: a job, a process that was replaced, or a change and back."""
    if sort != ("systemd", "unit"):
        return "had an event" if sort[0] == "devices" else _AND_BACK
    if not cause.startswith("job:"):
        return {"exit": "ended and was started again", "start": "restarted"}.get(cause, _AND_BACK)
    if cause.endswith(", failed"):
        return "failed again"
    verbs = {"restart": "restarted", "reload": "reloaded"}
    return next((verb for word, verb in verbs.items() if word in cause.split()), "ran")


def _unit(values: Values) -> tuple[str, str] | None:
    before, after, _ = values["active_state"]
    if after:
        verbs = {"failed": "failed", "inactive": "stopped", "activating": "is starting"}
        verb = verbs.get(after, "started" if before != "reloading" else "reloaded")
        verb = "is stopping" if after == "deactivating" else verb
        result = _in_brackets(values["result"].after)
        again = values["sub_state"].after.startswith("auto-restart")
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
        if after := values[field].after:
            return yes if after == "yes" else no
    return ""


def _package(values: Values) -> tuple[str, str] | None:
    before, after, _ = values["version"]
    status = values["status"]
    if values["removed"].after == "yes":
        return "removed", ", its configuration is left"
    if values["removed"].before == "yes":
        return "installed", f" {after}" if after else ""
    if before and after:
        verb = "upgraded" if versions.compare(before, after) < 0 else "downgraded"
        return verb, f" {before} -> {after}"
    if status.after == "installed" and not after:
        return "installed", ""
    return None


def _file(values: Values) -> tuple[str, str] | None:
    missing = values["missing"]
    if "yes" in missing:
        return ("created", "") if missing.before == "yes" else ("deleted", "")
    if "sha256" not in values:
        return None
    rest = {name: value for name, value in values.items() if name not in {"sha256", "size"}}
    return "changed", ", ".join(["its content", *([field_values.in_words(rest)] if rest else [])])


_SORTS: Final[Mapping[tuple[str, str], Callable[[Values], tuple[str, str] | None]]] = {
    ("systemd", "unit"): _unit,
    ("packages", "package"): _package,
    ("files", "file"): _file,
}
