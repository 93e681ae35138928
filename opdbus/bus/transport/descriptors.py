"""Open files that travel with messages: each is owned by one holder, and closed with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from opdbus.bus.transport.fd_closer import closer_of

if TYPE_CHECKING:
    from typing import Self


class HasFileno(Protocol):
    """An open file of any kind."""

    def fileno(self) -> int:
        """Give its number in this process."""


class Descriptor:
    """An open file that is ours: closed by `close`, or as soon as nobody holds it any more.

    The second is what threads need: while one reads, the number must not become another file's.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    @classmethod
    def copy_of(cls, file: HasFileno | int) -> Self:
        """Open a file once more, not to be inherited; raises ValueError if it is not open."""
        number = file if isinstance(file, int) else file.fileno()
        try:
            return cls(os.dup(number))
        except (OSError, OverflowError) as error:
            raise ValueError(f"{number} is not an open file: {error}") from None

    def fileno(self) -> int:
        """Give its number; raises ValueError if it is closed."""
        if self._number < 0:
            raise ValueError("this file is closed")
        return self._number

    def close(self) -> None:
        """Close it, unless that is done."""
        number, self._number = self._number, -1
        if number >= 0:
            self._shut(number)

    def _shut(self, number: int) -> None:
        os.close(number)

    def __del__(self) -> None:
        self.close()


class Received(Descriptor):
    """An open file that somebody else sent, of whatever kind: closing it must not stop us."""

    __slots__ = ()

    def _shut(self, number: int) -> None:
        closer_of(number).close(number)
