"""All errors raised on purpose, grouped by cause, with their D-Bus names and exit codes."""

from typing import ClassVar

_OPDBUS = "org.opdbus.Error"
_FREEDESKTOP = "org.freedesktop.DBus.Error"


class OpDbusError(Exception):
    """Base class: the text is one sentence that states what happened, where, and what to do.

    A class with a `prefix` is named on the bus by that and its own name, others as their parents.
    """

    dbus_name: ClassVar[str] = f"{_OPDBUS}.Failed"
    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, prefix: str = "") -> None:
        if prefix:
            cls.dbus_name = f"{prefix}.{cls.__name__.removesuffix('Error')}"


class CallerError(OpDbusError):
    """A fault of the caller: the request is invalid or cannot be met."""


class InvalidArgs(CallerError, prefix=_FREEDESKTOP):
    """An argument has a type or value that the method does not accept."""

    exit_code = 2


class UnknownObject(CallerError, prefix=_FREEDESKTOP):
    """No object has this path."""


class UnknownInterface(CallerError, prefix=_FREEDESKTOP):
    """The object has no such interface."""


class UnknownMethod(CallerError, prefix=_FREEDESKTOP):
    """The interface has no such method."""


class UnknownProperty(CallerError, prefix=_FREEDESKTOP):
    """The interface has no such property."""


class PropertyReadOnly(CallerError, prefix=_FREEDESKTOP):
    """The property cannot be set."""


class AccessDenied(CallerError, prefix=_FREEDESKTOP):
    """The caller is not permitted to do this."""

    exit_code = 5


class InteractiveAuthorizationRequired(AccessDenied, prefix=_FREEDESKTOP):
    """The caller's user must give a password first, and no agent can ask for it."""


class LimitsExceeded(CallerError, prefix=_FREEDESKTOP):
    """A queue is full, or a reply would be too large; ask for less, or later."""


class Truncated(CallerError, prefix=_OPDBUS):
    """A text is longer than the model's limit, and the caller does not allow it to be cut."""


class TimedOut(CallerError):
    """The caller's timeout passed; its waiting texts were removed from the queue."""

    dbus_name = f"{_FREEDESKTOP}.Timeout"


class NoVector(CallerError, prefix=_OPDBUS):
    """The object exists, but its vector is not computed yet."""


class NotKept(CallerError, prefix=_OPDBUS):
    """History does not have the answer: it begins later, or the values were erased."""


class Cancelled(CallerError, prefix=_OPDBUS):
    """A user who is permitted to do so cancelled the job."""


class ConfigError(OpDbusError, prefix=_OPDBUS):
    """A setting has an invalid value."""

    exit_code = 2


class StateFileError(OpDbusError, prefix=_OPDBUS):
    """The state file cannot be used; the last good state stays."""


class ModelError(OpDbusError, prefix=_OPDBUS):
    """A model's files are missing, damaged or of an unknown shape."""

    exit_code = 3


class NoModel(ModelError, prefix=_OPDBUS):
    """No model of the requested level is loaded."""


class ProviderError(OpDbusError, prefix=_OPDBUS):
    """A provider is not available."""

    exit_code = 3


class ServerUnreachable(ProviderError):
    """An embedding server cannot be reached; it may be at the daemon's next start."""

    exit_code = 1


class HardwareMissing(ProviderError):
    """A provider's hardware is not in this machine."""


class ProofFailed(ProviderError, prefix=_OPDBUS):
    """A session ran on another provider or in another precision, or its vectors are wrong."""


class ProviderLost(ProviderError, prefix=_OPDBUS):
    """A proven provider stopped working; the next provider of the chain takes over."""


class StoreError(OpDbusError, prefix=_OPDBUS):
    """The database cannot be opened or written."""


class DatabaseUnreachable(OpDbusError):
    """The fleet's database does not answer; it may later."""

    exit_code = 4


class BusError(OpDbusError, prefix=_OPDBUS):
    """The message bus cannot be reached, or its connection was lost."""

    exit_code = 4


class ShuttingDown(OpDbusError, prefix=_OPDBUS):
    """The daemon is stopping; the work was not done."""

    def __init__(self, sentence: str = "op-dbus is stopping; ask again when it is back") -> None:
        super().__init__(sentence)


class Internal(OpDbusError, prefix=_OPDBUS):
    """A fault of op-dbus itself; the log has the details under the same id."""


def read_log(fault: str = "") -> str:
    """Return the command that shows the log, or its entry of one fault."""
    found = f" -g {fault}" if fault else ""
    return f"`journalctl -u op-dbus{found}` says more, or the terminal that it runs in"


def blame(name: str, reason: str) -> str:
    """Return a reason with the name of the failing part in front, unless it begins with it."""
    return reason if reason.startswith(f"{name} ") else f"{name}: {reason}"


def tree(root: type[OpDbusError] = OpDbusError) -> list[type[OpDbusError]]:
    """Return an error class and all below it, parents before children."""
    below = [kind for child in root.__subclasses__() for kind in tree(child)]
    return [root, *below]
