"""Application loop of `top`: reads keys and events, draws screens, until it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opdbus.cli import output, status
from opdbus.cli.top import screen
from opdbus.cli.top.terminal import KeyDecoder
from opdbus.cli.top.view import Page, Search, View, press
from opdbus.errors import BusError, OpDbusError
from opdbus.platform.tasks import at_most, cancel

if TYPE_CHECKING:
    from opdbus.cli.top.feed import Feed
    from opdbus.cli.top.terminal import Terminal
    from opdbus.client import Client

_HITS: Final = 50
# ... and number of weak hits if there are no others.
_FEW_HITS: Final = 10
# A query is sent after this pause in typing.
_TYPING_SECONDS: Final = 0.15
# The rest of an escape sequence comes within this time, also over ssh.
_ESCAPE_SECONDS: Final = 0.05
_NOTHING: Final = "nothing here is about that; what comes nearest:"
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class App:
    """Application that draws the feed's facts and runs the requests of keys."""

    def __init__(self, feed: Feed, terminal: Terminal, news: asyncio.Event) -> None:
        self._feed, self._terminal, self._news = feed, terminal, news
        self._view: View | None = View()
        self._keys = KeyDecoder()
        self._escape: asyncio.TimerHandle | None = None
        self._wish: asyncio.Task[None] | None = None
        # exit code of the program
        self.code = 0
        self._fault: BaseException | None = None

    async def run(self) -> None:
        """Run until the user ends it."""
        with self._listening(), self._terminal:
            try:
                while self._view:
                    self._news.clear()
                    self._draw(self._view)
                    # until the clock's next second
                    async with at_most(1 - time.time() % 1):
                        await self._news.wait()
            finally:
                await cancel([self._wish] if self._wish else [])
        if self._fault:
            raise self._fault

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Handle keys, and signals that end, suspend or redraw the program."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._fail(context.get("exception")))
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGWINCH: self._redraw,
            signal.SIGTSTP: self._stop,
        }
        handlers |= {number: partial(self._end, 128 + number) for number in _ENDS}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        loop.add_reader(self._terminal.source, self._read)
        try:
            yield
        finally:
            loop.remove_reader(self._terminal.source)
            for number in handlers:
                loop.remove_signal_handler(number)

    def _end(self, code: int = 0) -> None:
        self._view, self.code = None, code
        self._news.set()

    def _redraw(self) -> None:
        self._terminal.forget()
        self._news.set()

    def _stop(self) -> None:
        """Suspend as for Ctrl-Z, and redraw when continued."""
        with self._terminal.suspend():
            os.kill(os.getpid(), signal.SIGSTOP)
        self._redraw()

    def _draw(self, view: View) -> None:
        try:
            lines = screen.draw_screen(self._feed.facts, view, *self._terminal.size, time.time())
            self._terminal.draw(lines)
        except OSError:  # the terminal is gone
            self._end()

    def _read(self) -> None:
        try:
            data = os.read(self._terminal.source, 4096)
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        if self._escape:
            self._escape.cancel()
        self._press(self._keys.read(data))
        if self._keys.is_waiting:
            loop, give_up = asyncio.get_running_loop(), self._keys.give_up
            self._escape = loop.call_later(_ESCAPE_SECONDS, lambda: self._press(give_up()))

    def _press(self, keys: list[str]) -> None:
        columns, rows = self._terminal.size
        for key in keys:
            if self._view is None:
                return
            if key == "redraw":
                self._terminal.forget()
                continue
            facts, now = self._feed.facts, time.time()
            found = screen.entries(facts, self._view, columns, rows, now)
            room = screen.room_for_entries(facts, columns, rows, now)
            self._view, wish = press(self._view, key, found, room)
            if not wish:
                continue
            # the request before it is cancelled
            if self._wish:
                self._wish.cancel()
            ask = self._search(wish.query) if isinstance(wish, Search) else self._show(wish.path)
            self._wish = asyncio.create_task(ask)
            self._wish.add_done_callback(self._done)
        self._news.set()

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()):
            self._fail(fault)

    def _fail(self, fault: BaseException | None) -> None:
        """End after a defect; `run` raises it once the terminal is restored."""
        self._fault = fault
        self._end(1)

    async def _search(self, query: str) -> None:
        await asyncio.sleep(_TYPING_SECONDS)
        if not query.strip():
            return
        try:
            hits, note = await self._client.search(query, _HITS, {}), ""
            if not hits:
                hits, note = await self._client.search(query, _FEW_HITS, {"all": True}), _NOTHING
        except OpDbusError as error:
            hits, note = [], str(error)
        self._change(Page.SEARCH, hits=hits, note=note)

    async def _show(self, path: str) -> None:
        try:
            # an absolute time, since "3 min ago" would become outdated here
            found = status.describe_object(path, await self._client.show(path), output.format_time)
        except OpDbusError as error:
            self._change(Page.OBJECT, note=str(error))
        else:
            said = {name: output.shorten_hashes(text) for name, text in found.items()}
            self._change(Page.OBJECT, said=said, note="")

    @property
    def _client(self) -> Client:
        if self._feed.client is None:
            raise BusError("there is no connection to op-dbus: try again when it is back")
        return self._feed.client

    def _change(self, page: Page, **more: Any) -> None:
        """Show an answer on the page that requested it, unless the user has left the page."""
        if self._view and self._view.page is page:
            self._view = replace(self._view, **more)
            self._news.set()
