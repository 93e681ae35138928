"""Shell completion: known words, and names of objects."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from opdbus import config
from opdbus.errors import OpDbusError

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

    Offer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[Any]]

# Longest wait of the shell, and number of offered names.
_PATIENCE_SECONDS: Final = 5.0
_MOST_OFFERED: Final = 50
# Other names would need quoting, which differs between shells.
_UNQUOTED: Final = re.compile(r"[\w./:@+-]+")


def complete_words(known: Iterable[str]) -> Offer:
    """Return a completer for a fixed set of words."""
    return lambda _context, _parameter, begun: _filter_prefix(known, begun)


def complete_plugins(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Offer the plugins that op-dbus observes itself."""
    from opdbus.drift import observed_kinds

    return _filter_prefix({name.split("/")[0] for name in observed_kinds.observed_kinds()}, begun)


def complete_kinds(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Offer the kinds that op-dbus observes itself, of the given plugin if there is one."""
    from opdbus.drift import observed_kinds

    kind_ids = (name.split("/") for name in observed_kinds.observed_kinds())
    plugin = context.params.get("plugin")
    return _filter_prefix({kind for its, kind in kind_ids if plugin in {None, its}}, begun)


def complete_objects(
    context: click.Context, _parameter: click.Parameter | None, begun: str
) -> list[CompletionItem]:
    """Offer names of objects: PLUGIN/KIND/NAME, or NAME alone; nothing if no daemon runs."""
    import asyncio

    async def found() -> Sequence[Sequence[str]]:
        bus = context.find_root().params.get("bus")
        chosen = config.load(os.environ, {"bus": bus} if bus else {}).bus
        # objects whose names contain the text after PLUGIN/KIND/
        is_whole = begun.count("/") > 1 and begun[0] != "/"
        plugin, kind, name = begun.split("/", 2) if is_whole else ("", "", begun)
        where = f'name~"{name}"' if name and '"' not in name else ""
        given = {"plugin": plugin, "kind": kind, "where": where}
        wanted = {key: text for key, text in given.items() if text}
        async with asyncio.timeout(_PATIENCE_SECONDS), Client(chosen) as client:
            # completion must not ask for a password or start a service
            client.ask_no_user()
            if not await client.is_served():
                return ()
            return (await client.page(wanted, 0, _MOST_OFFERED))[1]

    from click.shell_completion import CompletionItem

    from opdbus.client import Client

    try:
        rows = asyncio.run(found())
    except (OpDbusError, TimeoutError):
        return []
    names = {name for row in rows for name in ("/".join(row[1:]), row[-1])}
    offered = _filter_prefix(filter(_UNQUOTED.fullmatch, names), begun)
    return [CompletionItem(name) for name in offered]


def _filter_prefix(known: Iterable[str], begun: str) -> list[str]:
    return sorted(word for word in known if word.startswith(begun))
