"""Whether a text's caller waits for many other answers: those who wait for few go first."""

from contextvars import ContextVar
from typing import Final

in_a_crowd: Final[ContextVar[bool]] = ContextVar("in_a_crowd", default=False)
