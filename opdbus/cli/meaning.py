"""`op-dbus changes` by meaning: about something, before an event, like another change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import click

from opdbus.cli import when
from opdbus.cli.asking import path_of
from opdbus.errors import InvalidArgs, UnknownObject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.client import Client

# The best answers are the first ones.
MOST: Final = 10


class Show(Protocol):
    """Prints changes in the order in which they are given, with what more is to be said."""

    def __call__(self, rows: Sequence[dict[str, Any]], more: str = "", indent: str = "") -> None:
        """Print them."""


class Meaning(NamedTuple):
    """What changes are found by: one of a question, an event in words, or what they are like."""

    about: str = ""
    event: str = ""
    like: str = ""


def read(about: str | None, before: str | None, like: str | None) -> Meaning | None:
    """Return what was asked for, None where it is not by meaning; raises InvalidArgs."""
    event = before if before and when.is_said(before) else None
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
    client: Client, meaning: Meaning, asked: dict[str, Any], limit: int, show: Show
) -> None:
    """Print what answers best, best first."""
    if meaning.like:
        await _tell_like(client, {**asked, **await _like(client, meaning.like)}, limit, show)
        return
    said = {"about": meaning.about} if meaning.about else {"before_event": meaning.event}
    rows = await client.found({**asked, **said}, limit)
    if not rows:
        click.echo("no change is known that answers this", err=True)
    elif "event" in rows[0]:
        event = await client.changes(
            {"after": rows[0]["event"] - 1, "below": rows[0]["event"] + 1}, 1
        )
        click.echo(
            f"before row {rows[0]['event']}, {event[0]['sentence'] if event else 'gone by now'}:",
            err=True,
        )
    for row in rows:
        show([row], _times(row))


async def _tell_like(client: Client, asked: dict[str, Any], limit: int, show: Show) -> None:
    found = await client.nearest(asked, limit)
    if not found:
        click.echo("nothing like it is known to have happened", err=True)
    for row, after in found:
        show([{**row, "followed": after}], _times(row))
        show(after, indent="  ")


async def _like(client: Client, said: str) -> dict[str, Any]:
    """Return what changes are to be like: a row by its number, an object by its name, or words."""
    if said.isdecimal():
        return {"seq": int(said)}
    try:
        return {"object": await path_of(client, said, past=True)}
    except (InvalidArgs, UnknownObject):
        if " " not in said.strip():
            raise
    return {"about": said}


def _times(row: dict[str, Any]) -> str:
    return f" [{row['count']:,} times]" if row["count"] > 1 else ""
