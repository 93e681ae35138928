"""What an answer says: whether a handler was reached, and whether it may be so; all counted."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fuzz import marshal
from fuzz.shots import OWN, Shot
from opdbus import errors
from opdbus.bus.service import contract, standard

# What dispatch itself may answer, whatever the method.
GENERAL = {
    kind.dbus_name
    for kind in (
        errors.InvalidArgs,
        errors.LimitsExceeded,
        errors.UnknownObject,
        errors.UnknownInterface,
        errors.UnknownMethod,
    )
}
_PROPERTIES = {errors.UnknownProperty.dbus_name, errors.PropertyReadOnly.dbus_name}
_ASTRAY = {errors.UnknownInterface.dbus_name, errors.UnknownMethod.dbus_name}
_FIXED = {"/org/opdbus", "/org/opdbus/state"}
_STANDARD = {
    f"{standard.PROPERTIES}.Get": ("ss", "v"),
    f"{standard.PROPERTIES}.Set": ("ssv", ""),
    f"{standard.PROPERTIES}.GetAll": ("s", "a{sv}"),
    f"{standard.INTROSPECTABLE}.Introspect": ("", "s"),
    f"{standard.PEER}.Ping": ("", ""),
    f"{standard.PEER}.GetMachineId": ("", "s"),
}


@dataclass
class Row:
    """What was seen of one method."""

    calls: int = 0
    reached: int = 0
    ok: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class Tally:
    """Counts by method, and remembers every fault with the call that showed it."""

    def __init__(self) -> None:
        self.rows: defaultdict[str, Row] = defaultdict(Row)
        self.faults: list[str] = []

    def note(self, shot: Shot, answer: marshal.Message | None) -> None:
        """Count an answer; none where none was asked for."""
        row = self.rows[shot.target]
        row.calls += 1
        if answer is None:
            row.errors["(no reply wanted)"] += 1
            return
        row.reached += reached(shot, answer)
        row.ok += not answer.error
        if answer.error:
            row.errors[answer.error.removeprefix("org.freedesktop.DBus.Error.")] += 1
        if fault := wrong(shot, answer):
            self.fault(fault, shot)

    def fault(self, what: str, shot: Shot | None = None) -> None:
        """Remember a fault."""
        self.faults.append(f"{what}\n    {shot.line()}" if shot else what)

    @property
    def calls(self) -> int:
        """All calls."""
        return sum(row.calls for row in self.rows.values())

    @property
    def share(self) -> float:
        """Tell which part of the calls reached a handler."""
        return sum(row.reached for row in self.rows.values()) / max(1, self.calls)

    def missed(self) -> set[str]:
        """Name the methods of the XML that no call has reached."""
        return {name for name in signatures() if not self.rows[name].reached}

    def report(self) -> dict[str, Any]:
        """Give all of it as JSON has it."""
        return {
            "calls": self.calls,
            "reached a handler": round(self.share, 3),
            "methods": {
                name: {**vars(row), "errors": dict(row.errors.most_common())}
                for name, row in sorted(self.rows.items())
            },
            "faults": self.faults,
        }


def table(methods: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """Write a report's rows for people."""
    yield f"{'method':44}{'calls':>7}{'reached':>9}{'ok':>7}  errors"
    for name, row in methods.items():
        said = ", ".join(f"{kind} {count}" for kind, count in row["errors"].items())
        short = name.removeprefix("org.opdbus.").removeprefix("org.freedesktop.")
        yield f"{short:44}{row['calls']:7}{row['reached']:9}{row['ok']:7}  {said}"


def signatures() -> dict[str, tuple[str, str]]:
    """Give what every method takes and gives, by its full name."""
    ours = {
        f"{name}.{method.name}": (method.inputs, method.outputs)
        for name in OWN
        for method in contract.interface(name).methods.values()
    }
    return _STANDARD | ours


def reached(shot: Shot, answer: marshal.Message) -> bool:
    """Tell whether a handler was asked: dispatch refuses by path, interface, member and types."""
    if answer.error in _ASTRAY:
        return False
    if answer.error == errors.UnknownObject.dbus_name and shot.path not in _FIXED:
        return False
    if answer.error == errors.InvalidArgs.dbus_name:
        said = str(answer.body()[0])
        return " takes arguments of type " not in said and " names the descriptor " not in said
    if answer.error in GENERAL | {errors.AccessDenied.dbus_name}:
        return answer.error in allowed(shot)
    return True


def allowed(shot: Shot) -> set[str]:
    """Give the errors that the XML lists for what a call may be taken for."""
    listed: set[str] = set()
    for name in OWN:
        method = contract.interface(name).methods.get(shot.member)
        if method and shot.interface in {name, ""}:
            listed |= {_full(error) for error in method.errors}
    return listed


def _full(name: str) -> str:
    ours = name.startswith("Error.")
    return f"org.opdbus.{name}" if ours else f"org.freedesktop.DBus.Error.{name}"


def wrong(shot: Shot, answer: marshal.Message) -> str:
    """Say what may not be about an answer, or nothing."""
    if answer.error:
        also = _PROPERTIES if shot.interface in {standard.PROPERTIES, ""} else set()
        if answer.error == errors.Internal.dbus_name:
            return f"an internal error: {answer.body()[0]}"
        if answer.error not in GENERAL | also | allowed(shot):
            return f"{answer.error} is not listed for it: {answer.body()[0]}"
        if not answer.body()[0].strip():
            return f"{answer.error} without a sentence"
        return ""
    fitting = {
        gives
        for name, (_, gives) in signatures().items()
        if name == f"{shot.interface}.{shot.member}" or (not shot.interface and _ends(name, shot))
    }
    return "" if answer.signature in fitting else f"the reply's type is {answer.signature!r}"


def _ends(name: str, shot: Shot) -> bool:
    return name.rpartition(".")[2] == shot.member
