"""The command that shows live in a terminal what op-dbus knows and does."""

from __future__ import annotations

import os
import shutil
import socket
import time
from typing import TYPE_CHECKING, Final

import click

from opdbus.cli.asking import ask
from opdbus.cli.root import root, settings
from opdbus.cli.top import draw, lines
from opdbus.cli.top.terminal import Terminal, has_colours, is_usable

if TYPE_CHECKING:
    from opdbus.cli.top.facts import Facts
    from opdbus.client import Client

# Between two looks, of which texts a second are made.
_APART_SECONDS: Final = 0.5


@root.command()
@click.option("--once", is_flag=True, help="Print one screen and end, as into a pipe.")
@click.pass_context
def top(context: click.Context, once: bool) -> int:  # noqa: FBT001 -- click passes flags so
    """Show live what serves, what changed and what drifted.

    Keys: / search, Enter open, c changes, d drift, o observers, ? help, q quit.
    """
    if once or not is_usable(os.environ):
        facts = ask(_looked)
        columns, rows = shutil.get_terminal_size()
        for line in draw.once(facts, columns, rows, time.time()):
            print(lines.plain(line))
        return 0
    # refused where a service is down that would end at once
    ask(lambda client: client.is_served())
    return _live(settings(context.obj).bus)


async def _looked(client: Client) -> Facts:
    import asyncio

    from opdbus.cli.top.feed import Feed

    feed = Feed("", socket.gethostname())
    await feed.read(client)
    await asyncio.sleep(_APART_SECONDS)
    await feed.read(client, frozenset())
    return feed.facts


def _live(bus: str) -> int:
    # only what asks the daemon pays for asyncio and the D-Bus library
    import asyncio

    from opdbus.cli.top.app import App
    from opdbus.cli.top.feed import Feed
    from opdbus.platform.tasks import until_first_ends

    async def living() -> int:
        news = asyncio.Event()
        feed = Feed(bus, socket.gethostname(), news.set)
        app = App(feed, Terminal(is_coloured=has_colours(os.environ)), news)
        await until_first_ends(feed.run(), app.run())
        return app.code

    return asyncio.run(living())
