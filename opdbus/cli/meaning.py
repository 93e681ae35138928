"""Semantic queries of `op-dbus changes`: about a topic, before an event, like another change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opdbus.cli import output
from opdbus.cli.asking import fields_of, path_of, unknown
from opdbus.cli.printing import Printer, print_lines
from opdbus.errors import InvalidArgs, NotKept, UnknownObject
from opdbus.platform import timestamps
from opdbus.settings.parsing import decimal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opdbus.client import Client

# The best answers come first, so few are needed.
MOST: Final = 10
_BEFORE_THIS: Final = "what may have led to this, the likeliest first:"
_LIKE_THIS: Final = "what was like this, the most alike first, and what followed within 10 minutes:"


class Meaning(NamedTuple):
    """A semantic query: a question, an event in words, or a change to compare with."""

    about: str = ""
    event: str = ""
    like: str = ""


def read(about: str | None, before: str | None, like: str | None) -> Meaning | None:
    """Return the semantic query of the options, None if there is none; raises InvalidArgs."""
    event = before if before and timestamps.is_event(before) else None
    given = {"--about": about, "--before EVENT": event, "--like": like}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidArgs(f"{' and '.join(named)} ask for different things: give one of them")
    if not named:
        return None
    if not any(value and value.strip() for value in given.values()):
        raise InvalidArgs(f"{named[0]} needs words")
    return Meaning(about or "", event or "", like or "")


async def tell(
    client: Client, meaning: Meaning, asked: dict[str, Any], limit: int, printer: Printer
) -> None:
    """Print the best answers first, below the change that they are compared with."""
    like = await _like(client, meaning.like) if meaning.like else {}
    that = "no change answers this"
    if like:
        near = await client.nearest({**asked, **like}, limit)
        rows = [{**row, "followed": after} for row, after in near]
    else:
        said = {"about": meaning.about} if meaning.about else {"before_event": meaning.event}
        try:
            rows = await client.found({**asked, **said}, limit)
        except NotKept as error:  # the event never happened, which is an answer
            rows, that = [], str(error)
    if not rows:
        await require_fields(client, asked)
        if not printer.is_json:
            for row in await _meant(client, like):
                print_lines([row], f" [row {row['seq']}]")
        output.note("nothing like it is known to have happened" if meaning.like else that)
    elif printer.is_json:
        printer.print(rows)
    else:
        compared = rows[0].get("event", 0)
        if compared:
            event = await client.changes({"after": compared - 1, "below": compared + 1}, 1)
            print_lines(event, f" [row {compared}]")
            print(output.style(_LIKE_THIS if meaning.like else _BEFORE_THIS, "bold"))
        _print(rows, {compared})
        if (more := rows[0].get("total", 0) - len(rows)) > 0:
            output.note(f"... {more:,} more: --limit N gives more")


async def require_fields(client: Client, asked: dict[str, Any]) -> None:
    """Raise InvalidArgs if conditions name a field that neither an object nor a change has."""
    where = asked.get("where", "")
    known = [path for path, _ in await client.fields({})] if where else ()
    for field, advice in unknown(fields_of(where), known):
        if not await client.changes({"where": f'{field}~""'}, 1):
            raise InvalidArgs(f"no row of history has a field {field}{advice}")


async def _meant(client: Client, like: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """Return the change that others are compared with, if it is one."""
    if "seq" in like:
        return await client.changes({"after": like["seq"] - 1, "below": like["seq"] + 1}, 1)
    return await client.changes(dict(like), 1) if "object" in like else []


def _print(rows: Sequence[dict[str, Any]], told: set[int]) -> None:
    """Print changes, and below each what followed; rows in `told` are omitted."""
    for row in rows:
        if row["seq"] in told:
            continue
        print_lines([row], _besides(row))
        told.add(row["seq"])
        new = [each for each in row.get("followed", ()) if each["seq"] not in told]
        print_lines(new, after=row["at"])
        told |= {each["seq"] for each in new}


def _besides(row: Mapping[str, Any]) -> str:
    """Return the number of times a change happened, and of other objects with a similar change."""
    times = f" [{row['count']:,} times]" if row["count"] > 1 else ""
    return times + (f" [and {row['others']:,} others likewise]" if row.get("others") else "")


async def _like(client: Client, said: str) -> dict[str, Any]:
    """Parse the reference of --like: a row number, an object's name, or words."""
    if (number := decimal(said)) is not None:
        return {"seq": number}
    try:
        return {"object": await path_of(client, said, past=True)}
    except (InvalidArgs, UnknownObject):
        if " " not in said.strip():
            raise
    return {"about": said}
