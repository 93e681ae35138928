"""The sentence of a change for search: its object, events (by happenings.tsv) and fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from opdbus.history import jobs
from opdbus.language.object_text import DESCRIBING, VOLATILE
from opdbus.platform.accounts import ADMINISTRATORS
from opdbus.state.fields import split
from opdbus.state.object import FILE
from opdbus.state.secret_text import REDACTED

if TYPE_CHECKING:
    from opdbus.history.change import Change, FieldChange
    from opdbus.state.object import Json

MAX_FIELDS: Final = 4
MAX_VALUE: Final = 48
# Characters of a value that are read; runs of digits become shorter.
_MAX_READ: Final = 4096
_DIGITS = re.compile(r"\d+")
# State fields, which come first.
_STATE_FIELDS: Final = frozenset("state active enabled status result load ensure".split())
# Fields that add nothing: volatile ones, and those that repeat the object's text.
_IDLE: Final = VOLATILE | {*DESCRIBING, "size", "type", "modified", "packagesummary"}
# Maps the values of a field before and after (None for no value) to words.
_Turn: TypeAlias = Callable[["Json", "Json"], str]

# Events of objects that come and that go, by kind.
_COMINGS: Final = {
    "package": ("installed", ""),
    "listener": ("opened", "closed"),
    "mount": ("mounted", "unmounted"),
    "session": ("logged in", "logged out"),
    "machine": ("started", "stopped"),
    "module": ("loaded", "unloaded"),
    **dict.fromkeys(("pci", "usb", "block"), ("plugged in", "unplugged")),
}
# The field with the members of a group or the groups of an account.
_MEMBERSHIPS: Final = {"group": "members", "account": "groups"}
# Events by the state that an object enters.
_STATES: Final = {
    **dict.fromkeys(("failed", "error", "crashed", "degraded"), "failed"),
    **dict.fromkeys(("active", "running", "started"), "started"),
    **dict.fromkeys(("inactive", "stopped", "exited", "dead", "closed"), "stopped"),
    **dict.fromkeys(("up", "online", "connected"), "went up"),
    **dict.fromkeys(("down", "no-carrier", "offline", "disconnected"), "went down"),
}
_WHATS: Final = {
    "drift": "drifted",
    **{what: what for what in ("healed", "intended", "undeclared")},
}
# Events of declarations, which are no changes of the host.
_DECLARED: Final = {"appeared": "intended", "changed": "intended", "gone": "undeclared"}
OF_DECLARATIONS: Final = frozenset((*_DECLARED.values(), *_WHATS.values()))
# Events that change no field, by the verb of the job.
_EVENTS: Final = {
    "restart": "restarted",
    "start": "started",
    "stop": "stopped",
    "reload": "reloaded",
    "failed": "failed",
}
# Values of `active_state` before the end of a unit that a job started.
_NOT_UP: Final = (["failed"], ["activating"])
# Fields that depend on the content of a file.
_OF_CONTENT: Final = frozenset(("sha256", "size", "written_at"))
# The share of a file system, in percent, from which it is filled.
_FULL: Final = 80
_NUMBER = re.compile(r"[0-9]+")


def of_change(change: Change, text: str) -> Change:
    """Return a change with its sentence; `text` is the object's, "" if values are not kept.

    The last part, after a semicolon, begins with the event: see events_of.
    """
    _, plugin, kind, name = change.identity
    # the second line has the terms of the glossary
    named = ", ".join(text.splitlines()) or " ".join([*split(plugin), *split(kind), name])
    # without values, the sentence must not reveal them by the event
    happened = events_of(change if text else change._replace(fields=[]))
    details = ", ".join(_describe_fields(change.fields)) if change.change_type == "changed" else ""
    happened += f": {details.replace('; ', ', ')}" if details else ""
    return change._replace(sentence=f"{named}; {happened}")


def _describe_fields(fields: Iterable[FieldChange]) -> Iterator[str]:
    described = [field for field in fields if _IDLE.isdisjoint(split(field.path[-1]))]
    described.sort(key=lambda field: _STATE_FIELDS.isdisjoint(split(".".join(field.path))))
    for path, before, after in described[:MAX_FIELDS]:
        name = " ".join(split(path[-1]))
        old, new = _shorten(before or ()), _shorten(after or ())
        yield f"{name} changed" if old == new else f"{name} {old} to {new}"


def _shorten(values: Iterable[Json]) -> str:
    """Return values as short text; digits become 0, so that sentences repeat."""
    text = ", ".join(map(_as_words, values))
    if REDACTED in text:
        return REDACTED
    return _DIGITS.sub("0", text[:_MAX_READ])[:MAX_VALUE] or "nothing"


def _as_words(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(_as_words, value))
    return "" if value is None or value == {} else str(value)


def events_of(change: Change) -> str:
    """Return the events of a change, joined by commas; "changed" if nothing else is known."""
    if change.change_type == "event":
        return _unit_event(change.why.cause)
    if change.identity.source == FILE and change.change_type in _DECLARED:
        return _DECLARED[change.change_type]
    kind, found = change.identity.kind, list[str]()
    came, left = _COMINGS.get(kind, ("", ""))
    if change.change_type == "appeared":
        found += [came, "added"]
    elif change.change_type == "gone":
        found += [left, "removed"]
    elif change.change_type != "changed":
        found.append(_WHATS.get(change.change_type, ""))
    elif kind == "sysctl" or (kind == "file" and not _is_same_content(change)):
        found.append("edited")
    if change.change_type in {"appeared", "changed"}:
        found += _field_events(change)
        if kind in _MEMBERSHIPS:
            found += _membership_events(change)
    again = change.why.coalesced_count - sum(jobs.others(change.why.cause).values())
    if "crash loop" not in found and again > 0 and "failed" in found:
        found += ["crash loop"]
    return ", ".join(dict.fromkeys(filter(None, ", ".join(found).split(", ")))) or "changed"


def comings_of(kind: str) -> tuple[str, ...]:
    """Return the events by which an object of a kind comes into being."""
    return "added", *filter(None, _COMINGS.get(kind, ("",))[:1])


def _is_same_content(change: Change) -> bool:
    """Return whether no field shows that the content of a changed file changed."""
    # a field that was read only before or only after may be unchanged; without values it is unknown
    return bool(change.fields) and all(
        before is not None
        and path[-1] != "missing"
        and not (path[-1] in _OF_CONTENT and before and after)
        for path, before, after in change.fields
    )


def _unit_event(cause: str) -> str:
    if cause == "boot:reboot":
        return "rebooted, restarted"
    if jobs.ended_after_start(cause):
        return "started, stopped"
    if jobs.ended_by(cause):
        return "restarted"
    cause = jobs.alone(cause)
    # a change that was missed was a restart as well
    if cause == jobs.GAVE_UP:
        return "failed"
    if cause in jobs.CLEAN_ENDS:
        return "killed, restarted"
    if cause.startswith("exit:"):
        return f"{_ended(cause.removeprefix('exit:'))}, restarted"
    if cause.startswith("start:"):
        return "failed" if cause == "start:failed" else "started"
    return "restarted" if cause in {"exit", "start"} else _EVENTS.get(_done(cause), "happened")


def _ended(how: str) -> str:
    return "failed, killed" if how.startswith(("SIG", "signal", "core")) else "failed"


def _done(cause: str) -> str:
    """Return the verb of a job, such as restart; empty for other causes."""
    if not cause.startswith("job:"):
        return ""
    return "failed" if cause.endswith(jobs.FAILED) else jobs.act(cause)


def _field_events(change: Change) -> Iterator[str]:
    for path, before, after in change.fields:
        turn = _TURNS.get(path[-1])
        if turn and before is not None and after is not None:
            old, new = (values[0] if values else None for values in (before, after))
            yield turn(old, new)
    done = _done(change.why.cause) if change.change_type == "changed" else ""
    if done == "restart":
        yield "restarted"
    elif done == "start":
        for path, was, now in change.fields:
            # the unit that the job started has finished
            if [*path] == ["active_state"] and was in _NOT_UP and now == ["inactive"]:
                yield "started"


def _membership_events(change: Change) -> Iterator[str]:
    """Yield events of members that joined or left a group; some become administrators."""
    for path, *sides in change.fields:
        if path[-1] == _MEMBERSHIPS[change.identity.kind] and None not in sides:
            before, after = (
                set(map(str, values[0])) if values and isinstance(values[0], list) else set()
                for values in sides
            )
            if change.identity.name in ADMINISTRATORS:
                yield "administrator" if after - before else "no administrator"
            if change.change_type == "changed":
                yield "joined" if after - before else "left"


def _active(before: Json, after: Json) -> str:
    if after == "failed":
        return "failed, stopped" if before == "active" else "failed"
    if after == "active":
        return "started"
    return "stopped" if before in ("active", "activating", "reloading") else ""


def _sub(before: Json, after: Json) -> str:
    if str(after).startswith("auto-restart"):
        return "restarted"
    return "crash loop" if before == "auto-restart" else ""


def _result(_before: Json, after: Json) -> str:
    # systemd clears the result when a unit starts
    return "" if after in (None, "", "success") else _ended(str(after))


def _version(before: Json, after: Json) -> str:
    if not before or not after:
        return ""
    # numbers of any length: int() reads at most 4,300 digits
    numbers = ((n.lstrip("0") for n in _NUMBER.findall(str(value))) for value in (before, after))
    old, new = ([(len(n), n) for n in each] for each in numbers)
    return "downgraded" if new < old else "upgraded"


def _unit_file(before: Json, after: Json) -> str:
    old, new = str(before or ""), str(after or "")
    if new.startswith("masked"):
        return "masked, disabled" if old.startswith("enabled") else "masked"
    if old.startswith("masked"):
        return "unmasked, enabled" if new.startswith("enabled") else "unmasked"
    return {"enabled": "enabled", "disabled": "disabled"}.get(new, "") if old else ""


def _used(before: Json, after: Json) -> str:
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return ""
    if after < before:
        return "freed"
    return "filled" if after >= _FULL else ""


def _either(when_true: str, when_false: str) -> _Turn:
    def turn(before: Json, after: Json) -> str:
        if after is True:
            return when_true
        return when_false if before is True else ""

    return turn


def _state(_before: Json, after: Json) -> str:
    return _STATES.get(str(after).lower(), "")


def _status(before: Json, after: Json) -> str:
    if after == "installed":
        # triggers of a package that is installed wait for the end of a run
        return "" if str(before).startswith("triggers-") else "installed"
    return "removed" if before == "installed" else _state(before, after)


_LOGINS: Final = {(False, True): "may log in", (True, False): "locked out"}
_TURNS: Final[Mapping[str, _Turn]] = {
    "active_state": _active,
    "sub_state": _sub,
    "restart_loop": _either("crash loop", ""),
    "result": _result,
    "version": _version,
    "unit_file_state": _unit_file,
    "used_percent": _used,
    "inodes_used_percent": _used,
    "read_only": _either("read-only", "writable"),
    "administrator": _either("administrator", "no administrator"),
    "can_log_in": lambda before, after: _LOGINS.get((before, after), ""),
    "state": _state,
    "status": _status,
    "error": lambda _before, after: "failed" if after else "healed",
    "hostname": lambda before, _after: "renamed" if before else "",
    "mode": lambda before, after: "permissions" if before and after else "",
    "readable": lambda _before, _after: "permissions",
    "drop_ins": lambda _before, _after: "edited",
}
