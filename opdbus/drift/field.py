"""A declared field that was observed with another value, and the severity of the difference."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from opdbus.state.object import Json

Path: TypeAlias = tuple[str, ...]

# A difference counts as drift after this time without a change: a restart is no drift.
QUIET_SECONDS: Final = 2.0
# Patience for states in transition: a unit that is stopping, a package that is being unpacked.
PATIENT_SECONDS: Final = 600.0
# The path of the difference between a present and a missing object.
PRESENCE: Final[Path] = ("presence",)
# The observed value of an object that is declared to exist and does not.
MISSING: Final = "missing"
ENSURE: Final[Path] = ("ensure",)
ABSENT: Final = "absent"
_ABSENCES: Final = ((PRESENCE, MISSING), (ENSURE, ABSENT))
# The first path element of declared values in rows of history.
DECLARED: Final = "declared"
# The declared value of an observed object that a complete state file does not declare.
NOT_DECLARED: Final = "not declared"


class Severity(IntEnum):
    """The severity of a difference."""

    INFO = 0
    NOTICE = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        """The severity as a lower-case word, as settings and D-Bus use it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Field:
    """A difference; it counts as drift once it has lasted for `patience` seconds."""

    path: Path
    declared: Json
    observed: Json
    severity: Severity
    patience: float = QUIET_SECONDS
    # False if only path and severity were read from the database, until it is compared again
    is_known: bool = True

    @property
    def name(self) -> str:
        """The path, joined by dots."""
        return ".".join(self.path)

    @property
    def is_absence(self) -> bool:
        """True if the difference is that the object does not exist."""
        return (self.path, self.observed) in _ABSENCES
