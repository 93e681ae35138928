"""Open files that are sent with messages: each has one owner, and is closed with it."""

import os
from typing import Protocol, Self

from opdbus.bus.transport.fd_closer import closer_of


class HasFileno(Protocol):
    """An open file of any kind."""

    def fileno(self) -> int:
        """Return its number in this process."""


class Descriptor:
    """An open file, closed by `close` or with its last reference.

    Threads rely on the latter: while one reads, the number must not be reused for another file.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    @classmethod
    def copy_of(cls, file: HasFileno | int) -> Self:
        """Duplicate an open file, not inheritable; raise ValueError if it is not open."""
        number = file if isinstance(file, int) else file.fileno()
        try:
            return cls(os.dup(number))
        except (OSError, OverflowError) as error:
            raise ValueError(f"{number} is not an open file: {error}") from None

    def fileno(self) -> int:
        """Return its number; raise ValueError if it is closed."""
        if self._number < 0:
            raise ValueError("this file is closed")
        return self._number

    def close(self) -> None:
        """Close the file, if it is open."""
        number, self._number = self._number, -1
        if number >= 0:
            self._close_number(number)

    def _close_number(self, number: int) -> None:
        os.close(number)

    def __del__(self) -> None:
        self.close()


class Received(Descriptor):
    """An open file of any kind from a client: a thread closes it, since that may block."""

    __slots__ = ()

    def _close_number(self, number: int) -> None:
        closer_of(number).close(number)
