"""Lines, rows and files that a reader could not parse, for the status of its observer."""

from pathlib import Path
from typing import Final

from opdbus.state.redact import redact_text

# The most places that are named, and the characters of each.
_MAX_NAMED: Final = 5
_MAX_PLACE: Final = 200
_PREDICATES: Final = {
    "line": "not understood", "row": "not understood", "file": "not read or not understood",
}  # fmt: skip


class Skipped:
    """Counts of skipped lines, rows and files, with the first places of each kind."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_PREDICATES, 0)
        self._places: dict[str, list[str]] = {kind: [] for kind in _PREDICATES}

    def line(self, path: Path | str, number: int) -> None:
        """Note a line, by its number from 1, that was not understood."""
        self._add("line", path, f":{number}")

    def row(self, what: str) -> None:
        """Note a row of a program or of the kernel, by its description."""
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
        notes = []
        for kind, count in self._counts.items():
            places = self._places[kind][:_MAX_NAMED]
            more = count - len(places)
            named = ", ".join(places) + (f" and {more:,} more" if more else "")
            if count:
                notes.append(f"{count:,} {kind}{'s' * (count > 1)} {_PREDICATES[kind]}: {named}")
        return "; ".join(notes)

    def _add(self, kind: str, path: Path | str, end: str = "") -> None:
        self._counts[kind] += 1
        if len(self._places[kind]) < _MAX_NAMED:
            # the end of a long path distinguishes it from others
            text = redact_text(str(path))
            text = text if len(text) <= _MAX_PLACE else f"...{text[3 - _MAX_PLACE :]}"
            printable = "".join(char if char.isprintable() else "?" for char in text)
            self._places[kind].append(printable + end)
