"""Changes as rows of an answer, one by one or many similar ones in one row."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from opdbus.gateway.mcp.tool_answers import Row, make_row
from opdbus.gateway.mcp.tool_arguments import object_name
from opdbus.wording.change_lines import ChangeLine, group_into_lines

# Changes that followed another, at most.
_MOST_FOLLOWERS: Final = 4
# Names of a row of many changes, at most.
_MOST_NAMES: Final = 3


def rows_one_by_one(changes: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """Yield a row for each change, in their order."""
    for change in changes:
        (line,) = group_into_lines([change])
        yield row_of_line(
            line, f" [one of {n} such changes]" if (n := change.get("count", 1)) > 1 else ""
        )


def row_with_followers(change: dict[str, Any], after: Sequence[dict[str, Any]]) -> Row:
    """Return a change and those that followed within minutes as one row."""
    ((line,), *followed) = ([*group_into_lines([each])] for each in (change, *after))
    texts = [f"after {(each.at - line.at) // 1_000_000} s {each}" for (each,) in followed]
    return row_of_line(line, "".join(f"; {text}" for text in texts[:_MOST_FOLLOWERS]))


def row_of_line(line: ChangeLine, more: str = "") -> Row:
    """Return a line of changes as a row."""
    first, last = line.of[0], line.of[-1]
    names = dict.fromkeys(object_name(change["object"]) for change in line.of)
    at = format_time(line.at)
    return make_row(
        f"[{last['seq']}] {at} {line}{more}",
        seq=last["seq"],
        first_seq=first["seq"] if len(line.of) > 1 else None,
        at=at,
        change=f"{line}{more}",
        objects=[*names][:_MOST_NAMES],
        what=last["what"],
    )


def format_time(at: int) -> str:
    """Format a time, in microseconds since 1970, in the host's zone."""
    return datetime.fromtimestamp(at // 1_000_000, UTC).astimezone().isoformat(sep=" ")
