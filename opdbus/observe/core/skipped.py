"""Lines, rows and files that a reader could not parse, for the status of its observer."""

from pathlib import Path
from typing import Final

from opdbus.state.redact import redact_text

# Places that are named, and of each so many characters.
_MAX_NAMED: Final = 5
_MAX_PLACE: Final = 200
# What is skipped, and how it is said.
_SAID: Final = {
    "line": "not understood", "row": "not understood", "file": "not read or not understood",
}  # fmt: skip


class Skipped:
    """Counts of skipped lines, rows and files, with the first places of each kind."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_SAID, 0)
        self._places: dict[str, list[str]] = {kind: [] for kind in _SAID}

    def line(self, path: Path | str, number: int) -> None:
        """Note a line, by its number from 1, that was not understood."""
        self._add("line", path, f":{number}")

    def row(self, what: str) -> None:
        """Note a row of a program or of the kernel, by what it is."""
        self._add("row", what)

    def file(self, path: Path | str) -> None:
        """Note a file that could not be read, or not to its end, or that was not understood."""
        self._add("file", path)

    def include(self, other: "Skipped") -> None:
        """Add what another reader has skipped."""
        for kind, count in other._counts.items():
            self._counts[kind] += count
            self._places[kind] += other._places[kind]

    @property
    def sentence(self) -> str:
        """The note for the status; empty if nothing was skipped."""
        return "; ".join(
            f"{count:,} {kind}{'s' if count > 1 else ''} {_SAID[kind]}: {self._named(kind)}"
            for kind, count in self._counts.items()
            if count
        )

    def _named(self, kind: str) -> str:
        places = self._places[kind][:_MAX_NAMED]
        more = self._counts[kind] - len(places)
        return ", ".join(places) + (f" and {more:,} more" if more else "")

    def _add(self, kind: str, path: Path | str, end: str = "") -> None:
        self._counts[kind] += 1
        if len(self._places[kind]) < _MAX_NAMED:
            self._places[kind].append(_place(path) + end)


def _place(path: Path | str) -> str:
    """Return a path for a sentence: of a long one the end, which distinguishes it from others."""
    text = redact_text(str(path))
    text = text if len(text) <= _MAX_PLACE else f"...{text[3 - _MAX_PLACE :]}"
    return "".join(char if char.isprintable() else "?" for char in text)
