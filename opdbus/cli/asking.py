"""Asks the daemon for a command, and says why no daemon answers."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opdbus.bus import paths
from opdbus.cli import output
from opdbus.cli.root import settings
from opdbus.errors import BusError, InvalidArgs, ShuttingDown, UnknownObject

if TYPE_CHECKING:
    from opdbus.client import Client
    from opdbus.unit import Unit

    T = TypeVar("T")


def ask(question: Callable[[Client], Awaitable[T]]) -> T:
    """Ask the daemon on the chosen bus."""
    # asyncio and the D-Bus library are half of the start-up time: only what asks pays it
    import asyncio

    from opdbus.client import Client

    bus = settings(click.get_current_context().obj).bus

    async def asking() -> T:
        async with Client(bus) as client:
            # a call would start the service, and wait half a minute for one that ends at once
            if bus == "system" and not await client.is_served():
                _refuse_if_failed(lambda service: service.is_given_up)
            return await question(client)

    try:
        return asyncio.run(asking())
    except (BusError, ShuttingDown):
        if bus == "system":
            _refuse_if_failed(lambda service: service.has_failed)
        raise


def _refuse_if_failed(condition: Callable[[Unit], bool]) -> None:
    """Raise BusError that says why the service of systemd ended or is off, if it is."""
    from opdbus import unit

    service = unit.find()
    if service and service.shown["LoadState"] == "masked" and not service.is_running:
        advice = "`systemctl unmask op-dbus`, then `systemctl start op-dbus`"
        raise BusError(f"{unit.NAME} is masked, and nothing starts it: {advice}") from None
    if service and condition(service):
        advice = "correct that, then `systemctl restart op-dbus`"
        raise BusError(f"{service.fault()}; {advice}") from None


async def path_of(client: Client, name: str, *, past: bool = False) -> str:
    """Return the path of the object that is named by its path, by PLUGIN/KIND/NAME, or shorter.

    With `past`, it may be gone. Raises UnknownObject where there is none, and InvalidArgs where
    there are several.
    """
    if name.startswith(paths.STATE + "/"):
        return name
    found, close = await client.resolve(name, past=past)
    if len(found) == 1:
        return found[0][0]
    if found:
        listed = "".join(f"\n  {each}" for each in _names(found))
        raise InvalidArgs(f"{name!r} may be any of these: give the one that is meant{listed}")
    *names, last = _names(close) or [""]
    either = f"{', '.join(names)} or {last}" if names else last
    hint = f"do you mean {either}?" if close else "`op-dbus list` shows all"
    raise UnknownObject(f"there is no object {name or repr(name)}; {hint}")


def _names(rows: Sequence[Sequence[str]]) -> list[str]:
    """Give full names as a shell takes them."""
    return [shlex.quote("/".join(row[1:])) for row in rows]


def name_of(path: str) -> str:
    """Give the PLUGIN/KIND/NAME of an object's path."""
    return "/".join(paths.parse(path))


def fields_of(where: str) -> list[str]:
    """Give the fields that conditions name; raises InvalidArgs."""
    from opdbus.state import conditions

    return [asked.field for asked in conditions.parse(where)]


def unknown(fields: Iterable[str], known: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the names of fields that are not among those known, each with near names.

    `before.` and `after.` say on which side of a change, and are no part of a name.
    """
    import difflib

    from opdbus.state.conditions import AllOf, Condition

    for asked in fields:
        name = asked.removeprefix("before.").removeprefix("after.")
        if not AllOf([Condition(name, "=", "")]).names.are_in(known):
            near = difflib.get_close_matches(name, known, 3, 0.7)
            yield asked, f"; did you mean {', '.join(near)}?" if near else ""


def tell_unknown(fields: Sequence[str]) -> None:
    """Say on stderr which fields no object has, each with near names."""
    known = [path for path, _ in ask(lambda client: client.fields({}))] if fields else []
    for field, advice in unknown(fields, known):
        output.note(f"no object has a field {field}{advice}")


def chosen(**options: Any) -> dict[str, Any]:  # noqa: ANN401 -- click's values
    """Return the options that have a value."""
    return {key: value for key, value in options.items() if value}
