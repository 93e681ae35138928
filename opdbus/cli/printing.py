"""Printing of changes: for people, or one JSON object a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from opdbus.cli import causes, grouping, output

# version of the JSON lines; the minor number grows with additions
FORMAT: Final = "1.0"
# columns of a timestamp, and the age past which it has the year
_WIDTH: Final = 15
_RECENT: Final = timedelta(days=300)


class Printer:
    """Printer of changes, as lines for people or as one JSON object a line."""

    def __init__(
        self, *, is_json: bool, is_by_cause: bool = False, is_narrow: bool = False
    ) -> None:
        self.is_json = is_json
        # true if the query is about few objects
        self._is_narrow = is_narrow
        self._is_by_cause = is_by_cause
        self._first = {"format_version": FORMAT}

    def print(self, rows: Sequence[dict[str, Any]], *, is_cut: bool = False) -> None:
        """Print changes in their order; `is_cut` if older ones were cut off."""
        if self.is_json:
            for row in rows:
                print(output.json_text({**self._first, **_line(row)}))
                self._first = {}
        elif self._is_by_cause:
            _print_by_cause(rows, is_cut=is_cut)
        else:
            print_lines(rows, is_cut=is_cut, is_narrow=self._is_narrow)
        # readers of a pipe get each line at once
        sys.stdout.flush()


def print_lines(
    rows: Sequence[dict[str, Any]],
    more: str = "",
    *,
    after: int = 0,
    is_cut: bool = False,
    is_narrow: bool = False,
) -> None:
    """Print changes for people, with `more` appended; `after` a time, print the delay from it."""
    for line in grouping.lines(rows, is_cut=is_cut, is_narrow=is_narrow):
        label = f"{_later(line.at - after):>{_WIDTH}}" if after else stamp(line.at)
        _print(label, f"{line.text}{why(line.cause)}{more}")


def why(cause: str) -> str:
    """Return the cause of a change in brackets; empty if there is none."""
    return f" ({causes.said(cause, _user)})" if cause else ""


def _print_by_cause(rows: Sequence[dict[str, Any]], *, is_cut: bool) -> None:
    for cause, items in grouping.by_cause(rows):
        is_part = is_cut and items[0] is rows[0]
        lines, said = grouping.lines(items, is_cut=is_part), causes.said(cause, _user)
        if len(items) == 1:
            _print(stamp(items[0]["at"]), f"{next(lines).text} ({said})")
            continue
        least = "at least " if is_part else ""
        _print(stamp(items[-1]["at"]), f"{said}: {least}{len(items):,} changes", look="bold")
        for line in lines:
            _print(stamp(line.at), line.text, indent=2)


def _print(label: str, text: str, *, indent: int = 0, look: str = "") -> None:
    width = _WIDTH + indent
    output.labelled(f"{label:{width}}", width, text, look)


def stamp(at: int) -> str:
    """Format a time in 15 columns; a time long ago with its year, as ls does."""
    local = datetime.fromtimestamp(at / 1e6, UTC).astimezone()
    is_recent = abs(local - datetime.now(UTC)) < _RECENT
    return local.strftime("%b %d %H:%M:%S" if is_recent else "%b %d  %Y")


def _later(microseconds: int) -> str:
    minutes, seconds = divmod(microseconds // 1_000_000, 60)
    return f"+{minutes}:{seconds:02}"


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"uid {uid}"


def _line(row: dict[str, Any]) -> dict[str, Any]:
    line = {**row, "fields": [_field(*field) for field in row["fields"]]}
    return line | ({"followed": [*map(_line, row["followed"])]} if "followed" in row else {})


def _field(path: str, before: str, after: str) -> dict[str, Any]:
    """Return a field as a dict; a side without a value is left out."""
    sides = {"before": before, "after": after}
    return {"path": path} | {side: json.loads(text) for side, text in sides.items() if text}
