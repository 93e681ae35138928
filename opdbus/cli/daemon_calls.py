"""Calls to the daemon for a command, and reasons why no daemon answers."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from opdbus.bus import paths
from opdbus.cli import output
from opdbus.cli.root import load_settings
from opdbus.errors import BusError, InvalidArgs, ShuttingDown, UnknownObject
from opdbus.platform import name_lists
from opdbus.platform.lines import HIDDEN

if TYPE_CHECKING:
    from opdbus.client import Client
    from opdbus.state.conditions import Condition
    from opdbus.systemd.unit import Unit

    T = TypeVar("T")

# conditions of a query such as `kind:unit`
_KIND_CONDITION: Final = re.compile(r"(?<!\S)(plugin|kind):([\w-]+)", re.IGNORECASE)
# Number of objects whose values are searched for a near one, and number of values listed if none is
# near.
_SEARCHED_VALUES: Final = 1000
_LISTED_VALUES: Final = 8
# (plugin, kind) preferred for a name that objects of several kinds have, the first one first
_LIKELIEST: Final = (["systemd", "unit"], ["packages", "package"], ["users", "account"])


def ask(question: Callable[[Client], Awaitable[T]]) -> T:
    """Run a query against the daemon on the chosen bus."""
    # asyncio and the D-Bus library take half of the start-up time, so only these commands import
    # them
    import asyncio

    from opdbus.client import Client

    bus = load_settings(click.get_current_context().obj).bus

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
    """Raise BusError with the reason if the systemd service is masked or `condition` holds."""
    from opdbus.systemd import unit

    service = unit.find_unit()
    if service and service.shown["LoadState"] == "masked" and not service.is_running:
        advice = "`systemctl unmask op-dbus`, then `systemctl start op-dbus`"
        raise BusError(f"{unit.NAME} is masked, and nothing starts it: {advice}") from None
    if service and condition(service):
        raise BusError(f"{service.fault()}; {service.cure()}") from None


async def path_of(client: Client, name: str, *, past: bool = False, unique: bool = False) -> str:
    """Return the path of an object that is given as path, PLUGIN/KIND/NAME, or shorter.

    With `past`, the object may be gone. Of several objects a unit is preferred, else a package,
    else an account, with a note on stderr, unless the name must be `unique`. Raises UnknownObject
    if there is none, and InvalidArgs if there are several.
    """
    if name.startswith(paths.STATE + "/"):
        return name
    found, close = await client.resolve(name, past=past)
    if len(found) == 1:
        return found[0][0]
    of_kinds = ([row for row in found if row[1:3] == kind_id] for kind_id in _LIKELIEST)
    likely = next(filter(None, of_kinds), [])
    if len(likely) == 1 and not unique:
        taken, *others = _quoted_names([*likely, *(row for row in found if row not in likely)])
        rest = ", ".join(others)
        output.print_note(f"{name!r} is taken for {taken}; others of this name: {rest}")
        return likely[0][0]
    if found:
        listed = "".join(f"\n  {each}" for each in _quoted_names(found))
        raise InvalidArgs(f"{name!r} may be any of these: give the one that is meant{listed}")
    *names, last = _quoted_names(close) or [""]
    either = f"{', '.join(names)} or {last}" if names else last
    hint = f"do you mean {either}?" if close else "`op-dbus list` shows all"
    raise UnknownObject(f"there is no object {output.escape_hidden(name) or repr(name)}; {hint}")


def _quoted_names(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return full names on one line each, quoted for a shell."""
    return [_quote("/".join(row[1:])) for row in rows]


def _quote(name: str) -> str:
    shown = output.escape_hidden(name.replace("\\", r"\\").replace("'", r"\'"))
    # $'...' of bash and zsh has these escapes
    return f"$'{shown}'" if HIDDEN.search(name) else shlex.quote(name)


def name_of_path(path: str) -> str:
    """Return the PLUGIN/KIND/NAME of an object's path."""
    return "/".join(paths.parse(path))


def id_of_path(path: str) -> dict[str, str]:
    """Return the plugin, kind and name of an object's path."""
    return dict(zip(("plugin", "kind", "name"), paths.parse(path), strict=True))


def fields_of(where: str) -> list[str]:
    """Return the fields that conditions name; raises InvalidArgs."""
    from opdbus.state import conditions

    return [asked.field for asked in conditions.parse(where)]


def find_unknown(fields: Iterable[str], known: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields that are not among the known ones, each with advice on near names.

    The prefixes `before.` and `after.` select a side of a change and are not part of the name.
    """
    import difflib

    from opdbus.state.conditions import AllOf, Condition

    for asked in fields:
        name = asked.removeprefix("before.").removeprefix("after.")
        if not AllOf([Condition(name, "=", "")]).names.are_in(known):
            near = difflib.get_close_matches(name, known, 3, 0.7)
            yield asked, f"; did you mean {', '.join(near)}?" if near else ""


def note_unknown_fields(fields: Sequence[str]) -> None:
    """Print on stderr the fields that no object has, each with near names."""
    known = [path for path, _ in ask(lambda client: client.fields({}))] if fields else []
    for field, advice in find_unknown(fields, known):
        output.print_note(f"no object has a field {field}{advice}")


def note_unmet_conditions(where: str, query: str = "") -> None:
    """Print on stderr the values in conditions that no object has, each with existing values."""
    from opdbus.state import conditions

    found = [asked for asked in conditions.parse(where) if asked.operator == "="]
    given = _KIND_CONDITION.findall(query)
    found += [conditions.condition(field, "=", value) for field, value in given]
    for asked in found:
        if hint := ask(partial(_unmet_hint, asked)):
            output.print_note(hint)


async def _unmet_hint(asked: Condition, client: Client) -> str:
    """Return a message that no object has this field value, with near ones; empty if one has it."""
    import difflib

    if asked.field in {"plugin", "kind"}:
        try:
            await client.page({asked.field: asked.value}, 0, 1)
        except InvalidArgs as error:
            return str(error)
        return ""
    if '"' in asked.value:  # a quoted condition cannot contain it
        return ""
    either = [f'{asked.field}{operator}"{asked.value}"' for operator in ("=", "!=")]
    (count, _), (_, others) = [await client.page({"where": c}, 0, _SEARCHED_VALUES) for c in either]
    rows = await client.values([path for path, *_ in others], [asked.field]) if others else []
    values = [each for (value,) in rows for each in (value if isinstance(value, list) else [value])]
    said = [name_lists.format_value(each) for each in values if not isinstance(each, dict | list)]
    known = Counter(filter(None, said))
    if count or not known:
        return ""
    usual = [value for value, _ in known.most_common(_LISTED_VALUES)]
    near = difflib.get_close_matches(asked.value, known, 3) or usual
    return f"no object has {asked.field} {asked.value}; there are {', '.join(near)}"


def describe_storage_error(error: str) -> str:
    """Return that nothing new is known while nothing can be stored; empty without an error."""
    return error and f"nothing new is stored, so what changes now is not known: {error}"


def without_empty(**options: Any) -> dict[str, Any]:
    """Return the options that have a value."""
    return {key: value for key, value in options.items() if value}
