"""A field that was observed with another value than the declared one, and how bad that is."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from opdbus.state.object import Json

Path: TypeAlias = tuple[str, ...]

# A difference counts after so long without a change: a restart is none.
QUIET_SECONDS: Final = 2.0
# A unit that is being stopped, or a package that is being unpacked, is on its way to something.
PATIENT_SECONDS: Final = 600.0
# The path of what says whether there is an object at all.
PRESENCE: Final[Path] = ("presence",)
# What is observed of an object that is not there, of which the file may declare that it is.
MISSING: Final = "missing"
ENSURE: Final[Path] = ("ensure",)
ABSENT: Final = "absent"
_ABSENCES: Final = ((PRESENCE, MISSING), (ENSURE, ABSENT))
# Below this, rows of history have what is declared of a field.
DECLARED: Final = "declared"
# What is declared of an object that the file would have to declare.
NOT_DECLARED: Final = "not declared"


class Severity(IntEnum):
    """How bad a difference is."""

    INFO = 0
    NOTICE = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        """The severity as settings, the bus and people have it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Field:
    """A difference; it counts once it has lasted for `patience` seconds."""

    path: Path
    declared: Json
    observed: Json
    severity: Severity
    patience: float = QUIET_SECONDS
    # what was stored is known by name only, until it is compared again
    is_known: bool = True

    @property
    def name(self) -> str:
        """Its path with dots."""
        return ".".join(self.path)

    @property
    def is_absence(self) -> bool:
        """Whether it says that there is no such object."""
        return (self.path, self.observed) in _ABSENCES
