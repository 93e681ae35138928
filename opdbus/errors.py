"""Every error raised on purpose, by whose fault it is, with its D-Bus name and exit code."""

from typing import ClassVar

_OPDBUS = "org.opdbus.Error."
_FREEDESKTOP = "org.freedesktop.DBus.Error."


class OpDbusError(Exception):
    """The root: its text is one sentence that says what happened, where, and what to do."""

    dbus_name: ClassVar[str] = _OPDBUS + "Failed"
    exit_code: ClassVar[int] = 1


class CallerError(OpDbusError):
    """The caller asked for something that cannot be."""


class InvalidArgs(CallerError):
    """An argument's type or value is not what the method takes."""

    dbus_name = _FREEDESKTOP + "InvalidArgs"
    exit_code = 2


class UnknownObject(CallerError):
    """No object has this path."""

    dbus_name = _FREEDESKTOP + "UnknownObject"


class UnknownInterface(CallerError):
    """The object has no such interface."""

    dbus_name = _FREEDESKTOP + "UnknownInterface"


class UnknownMethod(CallerError):
    """The interface has no such method."""

    dbus_name = _FREEDESKTOP + "UnknownMethod"


class UnknownProperty(CallerError):
    """The interface has no such property."""

    dbus_name = _FREEDESKTOP + "UnknownProperty"


class PropertyReadOnly(CallerError):
    """The property cannot be set."""

    dbus_name = _FREEDESKTOP + "PropertyReadOnly"


class AccessDenied(CallerError):
    """The caller may not do this."""

    dbus_name = _FREEDESKTOP + "AccessDenied"
    exit_code = 5


class InteractiveAuthorizationRequired(AccessDenied):
    """The caller may do this once its user has given a password, and nobody can be asked."""

    dbus_name = _FREEDESKTOP + "InteractiveAuthorizationRequired"


class LimitsExceeded(CallerError):
    """A queue is full or a reply would be too large: ask for less, or later."""

    dbus_name = _FREEDESKTOP + "LimitsExceeded"


class Truncated(CallerError):
    """A text is longer than the model reads, and the caller asked not to cut it."""

    dbus_name = _OPDBUS + "Truncated"


class TimedOut(CallerError):
    """The caller's own limit of time passed; what still waited was taken out of the queue."""

    dbus_name = _FREEDESKTOP + "Timeout"


class NoVector(CallerError):
    """The object is known but its vector is not computed yet."""

    dbus_name = _OPDBUS + "NoVector"


class Cancelled(CallerError):
    """Somebody who may do so cancelled the job."""

    dbus_name = _OPDBUS + "Cancelled"


class ConfigError(OpDbusError):
    """A setting is wrong."""

    dbus_name = _OPDBUS + "Config"
    exit_code = 2


class StateFileError(OpDbusError):
    """The state file cannot be used; the last good state stays."""

    dbus_name = _OPDBUS + "StateFile"


class ModelError(OpDbusError):
    """A model's files are missing, damaged or of an unknown shape."""

    dbus_name = _OPDBUS + "Model"
    exit_code = 3


class NoModel(ModelError):
    """No model of the asked level is loaded."""

    dbus_name = _OPDBUS + "NoModel"


class ProviderError(OpDbusError):
    """A provider is not available."""

    dbus_name = _OPDBUS + "Provider"
    exit_code = 3


class ProofFailed(ProviderError):
    """A session did not run where it said, or its vectors are not the model's."""

    dbus_name = _OPDBUS + "ProofFailed"


class ProviderLost(ProviderError):
    """A provider that was proven stopped working; the next one of the chain takes over."""

    dbus_name = _OPDBUS + "ProviderLost"


class StoreError(OpDbusError):
    """The database cannot be opened or written."""

    dbus_name = _OPDBUS + "Store"


class BusError(OpDbusError):
    """The message bus cannot be reached, or its connection was lost."""

    dbus_name = _OPDBUS + "Bus"
    exit_code = 4


class ShuttingDown(OpDbusError):
    """The daemon is stopping; the work was not done."""

    dbus_name = _OPDBUS + "ShuttingDown"

    def __init__(self, sentence: str = "op-dbus is stopping; ask again when it is back") -> None:
        super().__init__(sentence)


class Internal(OpDbusError):
    """A fault of op-dbus itself: the log has the details under the same id."""

    dbus_name = _OPDBUS + "Internal"


def tree(root: type[OpDbusError] = OpDbusError) -> list[type[OpDbusError]]:
    """List the root and everything below it, the general before the special."""
    below = [kind for child in root.__subclasses__() for kind in tree(child)]
    return [root, *below]
