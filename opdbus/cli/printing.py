"""Prints changes: for people, or one JSON object a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from opdbus.cli import grouping, output, telling

# of the lines that a program reads: the second number grows with what is added
FORMAT: Final = "1.0"
_STAMP: Final = "%b %d %H:%M:%S"


class Printer:
    """Prints changes as they are asked for: for people, or one JSON object a line."""

    def __init__(self, *, is_json: bool, is_by_cause: bool = False) -> None:
        self._is_json = is_json
        self._is_by_cause = is_by_cause
        self._first = {"format_version": FORMAT}

    def print(self, rows: Sequence[dict[str, Any]], more: str = "", indent: str = "") -> None:
        """Print changes in their order, and more about them; what is indented is theirs already."""
        if self._is_json:
            self._print_json([] if indent else rows)
        elif self._is_by_cause:
            _print_by_cause(rows)
        else:
            for line in grouping.lines(rows):
                why = f" ({telling.cause(line.cause, _user)})" if line.cause else ""
                _print(stamp(line.at), f"{indent}{line.text}{why}{more}")
        # a pipe is read as it is written
        sys.stdout.flush()

    def _print_json(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            print(json.dumps({**self._first, **_line(row)}, ensure_ascii=False))
            self._first = {}


def _print_by_cause(rows: Sequence[dict[str, Any]]) -> None:
    for cause, items in grouping.by_cause(rows):
        if len(items) > 1:
            title = output.visible(f"{telling.cause(cause, _user)}: {len(items):,} changes")
            print(f"{stamp(items[-1]['at']):15}  {output.style(title, 'bold')}")
        for line in grouping.lines(items):
            if len(items) == 1:
                _print(stamp(line.at), f"{line.text} ({telling.cause(cause, _user)})")
            else:
                # what has no known cause has not one time either
                _print("" if cause else stamp(line.at), f"  {line.text}")


def _print(stamp: str, text: str) -> None:
    output.labelled(stamp.ljust(15), 15, text)


def stamp(at: int) -> str:
    """Say when; the year if it is another one."""
    local = datetime.fromtimestamp(at / 1e6, UTC).astimezone()
    is_this_year = local.year == datetime.now(UTC).astimezone().year
    return local.strftime(_STAMP if is_this_year else "%Y-%m-%d %H:%M")


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
    """Give a field; a side that had no value is left out."""
    sides = {"before": before, "after": after}
    return {"path": path} | {side: json.loads(text) for side, text in sides.items() if text}
