"""Changes printed for people, or as one JSON object a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from opdbus.cli import output
from opdbus.wording import change_words
from opdbus.wording.change_lines import group_by_cause, group_into_lines, user_name
from opdbus.wording.change_words import format_stamp

# version of the JSON lines; the minor number grows with additions
FORMAT: Final = "1.0"
# columns of a timestamp
_STAMP_WIDTH: Final = 15


class ChangePrinter:
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
                print(output.json_text({**self._first, **_change_json(row)}))
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
    for line in group_into_lines(rows, is_cut=is_cut, is_narrow=is_narrow):
        label = format_stamp(line.at)
        if after:
            minutes, seconds = divmod((line.at - after) // 1_000_000, 60)
            label = f"{f'+{minutes}:{seconds:02}':>{_STAMP_WIDTH}}"
        _print_line(label, f"{line}{more}")


def _print_by_cause(rows: Sequence[dict[str, Any]], *, is_cut: bool) -> None:
    for cause, items in group_by_cause(rows):
        is_part = is_cut and items[0] is rows[0]
        lines = group_into_lines(items, is_cut=is_part)
        said = change_words.describe_cause(cause, user_name)
        if len(items) == 1:
            line = next(lines)
            _print_line(format_stamp(items[0]["at"]), f"{line.text} ({said}){line.more}")
            continue
        text = f"{said}: {'at least ' if is_part else ''}{len(items):,} changes"
        _print_line(format_stamp(items[-1]["at"]), text, look="bold")
        for line in lines:
            _print_line(format_stamp(line.at), f"{line.text}{line.more}", indent=2)


def _print_line(label: str, text: str, *, indent: int = 0, look: str = "") -> None:
    width = _STAMP_WIDTH + indent
    output.print_labelled(f"{label:{width}}", width, text, look)


def _change_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a change with its fields as dicts; a side without a value is left out."""
    fields = []
    for path, before, after in row["fields"]:
        sides = {"before": before, "after": after}
        values = {side: json.loads(text) for side, text in sides.items() if text}
        fields.append({"path": path, **values})
    followed = {"followed": [*map(_change_json, row["followed"])]} if "followed" in row else {}
    return {**row, "fields": fields, **followed}
