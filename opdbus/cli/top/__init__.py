"""Command `op-dbus top`: a live view in the terminal of op-dbus and the host."""

from __future__ import annotations

import os
import shutil
import socket
import time
from typing import TYPE_CHECKING, Final

import click

from opdbus.cli.daemon_calls import ask
from opdbus.cli.root import load_settings, root
from opdbus.cli.top import screen
from opdbus.cli.top.terminal import Terminal, has_colours, is_usable, plain_text

if TYPE_CHECKING:
    from opdbus.cli.top.feed import Facts
    from opdbus.client import Client

# Seconds between two readings, from which the rate of texts is computed.
_APART_SECONDS: Final = 0.5


@root.command()
@click.option("--once", is_flag=True, help="Print one screen and end, as into a pipe.")
@click.pass_context
def top(context: click.Context, once: bool) -> int:
    """Show live what serves, what changed and what drifted.

    Keys: / search, Enter open, c changes, d drift, o observers, ? help, q quit.
    """
    if once or not is_usable(os.environ):
        facts = ask(_read_facts)
        for line in screen.draw_once(facts, *shutil.get_terminal_size(), time.time()):
            print(plain_text(line))
        return 0
    # raises BusError if the service is down and would end at once
    ask(lambda client: client.is_served())
    return _live(load_settings(context.obj).bus)


async def _read_facts(client: Client) -> Facts:
    """Read the facts twice, for the rate of texts."""
    import asyncio

    from opdbus.cli.top.feed import Feed

    feed = Feed("", socket.gethostname())
    await feed.read(client)
    await asyncio.sleep(_APART_SECONDS)
    await feed.read(client, frozenset())
    return feed.facts


def _live(bus: str) -> int:
    """Show the screens until the user ends it; return the exit code."""
    # imported late, because asyncio and the D-Bus library are slow to import
    import asyncio

    from opdbus.cli.top.app import App
    from opdbus.cli.top.feed import Feed
    from opdbus.platform.tasks import until_first_ends

    async def run() -> int:
        news = asyncio.Event()
        feed = Feed(bus, socket.gethostname(), news.set)
        app = App(feed, Terminal(is_coloured=has_colours(os.environ)), news)
        await until_first_ends(feed.run(), app.run())
        return app.code

    return asyncio.run(run())
