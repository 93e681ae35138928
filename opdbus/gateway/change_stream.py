"""Changes as server-sent events, which resume by row number and survive restarts of the daemon."""

import asyncio
import json
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from opdbus.client import Client
from opdbus.errors import BusError, CallerError, OpDbusError
from opdbus.gateway import host_models as models
from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.http_errors import HttpError
from opdbus.gateway.request_parameters import resolve
from opdbus.platform.tasks import cancel

router: Final = APIRouter(tags=["host"])
# Open streams of one application, and those of one client.
MAX_STREAMS: Final = 256
MAX_STREAMS_OF_CLIENT: Final = 64
# Seconds between comments on a silent stream, so that no proxy closes it.
HEARTBEAT_SECONDS: Final = 15.0
# Milliseconds after which a client connects again.
_RETRY_MILLISECONDS: Final = 2000
# Rows of one read, and reads that are kept for other streams at the same row.
_ROWS: Final = 200
_KEPT_PAGES: Final = 8
_TRANSITIONS: Final = frozenset({"drift", "intended", "healed", "undeclared"})
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


LastEventId = Annotated[models.Row | None, Header(description="The last row that the client has.")]


class Page(NamedTuple):
    """Events after a row, and the last row that they cover; `is_full` if there may be more."""

    events: str
    last: int
    is_full: bool


class ChangeFeed:
    """The connection on which all streams hear of new rows; open while there is a stream."""

    def __init__(self, link: DaemonLink) -> None:
        self.link = link
        self.streams = Counter[str]()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._pages: OrderedDict[object, asyncio.Task[Page]] = OrderedDict()

    def open(self, client: str) -> None:
        """Take a place for a client's stream; raises HttpError if none is left."""
        if (count := self.streams[client]) >= MAX_STREAMS_OF_CLIENT:
            raise HttpError(429, f"{count} streams of this client are open: close some")
        if (count := self.streams.total()) >= MAX_STREAMS:
            raise HttpError(503, f"{count} streams are open: ask later")
        self.streams[client] += 1
        if not self._task or self._task.done():
            self._task = asyncio.create_task(self._listen())

    async def close(self, client: str) -> None:
        """Give the place back."""
        self.streams[client] -= 1
        if not self.streams[client]:
            del self.streams[client]
        if not self.streams and self._task:
            task, self._task = self._task, None
            self._pages.clear()
            await cancel([task])

    def news(self) -> asyncio.Event:
        """Return the event that is set when there may be something new from now on."""
        return self._news

    async def read(self, wanted: dict[str, Any], after: int) -> Page:
        """Return the next events; streams at the same row share a read."""
        key = (*sorted(wanted.items()), after)
        task = self._pages.get(key)
        if not task:
            task = self._pages[key] = asyncio.create_task(self._read(wanted, after))
            task.add_done_callback(lambda done: self._forget_failure(key, done))
            if len(self._pages) > _KEPT_PAGES:
                self._pages.popitem(last=False)
        return await asyncio.shield(task)

    async def last_row(self) -> int:
        """Return the newest row's number."""
        return await (await self._served()).last_row()

    async def check(self, wanted: dict[str, Any]) -> None:
        """Raise CallerError for a filter that the daemon refuses."""
        await (await self._served()).changes({**wanted, "below": 1}, 1)

    async def _served(self) -> Client:
        """Return a client; raises BusError instead of starting a daemon that was stopped."""
        client = await self.link.client()
        if not await client.is_served():
            raise BusError("op-dbus is not running")
        return client

    async def _read(self, wanted: dict[str, Any], after: int) -> Page:
        client = await self._served()
        kept, _ = await client.kept_rows()
        last = kept.stop - 1
        events = []
        if last < after or (after and kept.start > after + 1):
            # history began anew, or rows are not kept any more
            events.append(_event("gap", {"after": after, "first": kept.start, "last": last}))
            after = 0 if last < after else kept.start - 1
        new = {**wanted, "after": after, "below": last + 1, "order": "oldest"}
        rows = await client.changes(new, _ROWS) if last > after else []
        for row in rows:
            name = "drift" if row["what"] in _TRANSITIONS else "change"
            content = models.Change.of(row).as_json()
            events.append(f"id: {row['seq']}\nevent: {name}\ndata: {content}\n\n")
        is_full = len(rows) == _ROWS
        last = rows[-1]["seq"] if is_full else last
        return Page("".join(events) or f"id: {last}\n\n", last, is_full)

    async def _listen(self) -> None:
        """Announce new rows, and starts and ends of the daemon."""
        async with aclosing(self.link.follow()) as bursts:
            async for _ in bursts:
                self._announce()

    def _forget_failure(self, key: object, done: asyncio.Task[Page]) -> None:
        if (done.cancelled() or done.exception()) and self._pages.get(key) is done:
            del self._pages[key]

    def _announce(self) -> None:
        news, self._news = self._news, asyncio.Event()
        self._pages.clear()
        news.set()


@router.get(
    "/changes/stream",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events: change, drift, gap and daemon.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def stream_changes(
    request: Request,
    asked: Annotated[models.StreamRequest, Query()],
    last_event_id: LastEventId = None,
) -> Response:
    """Send changes as they come, the oldest first, from a row on.

    Events: `change` and `drift` (a transition) have a row of `/changes`, and its number as id;
    `gap` tells that rows are missing, and `daemon` that it began or ceased to answer.
    """
    return await open_stream(request, asked, last_event_id)


async def open_stream(
    request: Request, asked: models.StreamRequest, last_event_id: int | None
) -> Response:
    """Return a stream; raises CallerError for its filter, and HttpError if there are too many."""
    feed: ChangeFeed = request.app.state.feed
    client = request.client.host if request.client else ""
    after = asked.after if last_event_id is None else last_event_id
    stream = _Stream(feed, asked.given("after", "around"), after)
    await stream.begin(asked.around)
    feed.open(client)
    return _EventResponse(feed, stream, client)


class _EventResponse(StreamingResponse):
    """The answer with a stream, which holds a place of the feed until it ends."""

    def __init__(self, feed: ChangeFeed, stream: "_Stream", client: str) -> None:
        super().__init__(stream.events(), headers=_HEADERS, media_type="text/event-stream")
        self._feed = feed
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._feed.close(self._client)


class _Stream:
    """One client's stream: its filter, and the last row that was sent."""

    def __init__(self, feed: ChangeFeed, wanted: dict[str, Any], after: int | None) -> None:
        self._feed = feed
        self._wanted = wanted
        self._after = after
        self._is_served = True

    async def begin(self, around: str) -> None:
        """Check the filter; raises CallerError; a daemon that is away may come later."""
        try:
            if around:
                client = await self._feed.link.client()
                self._wanted["around"] = await resolve(client, "around", around)
            if self._after is None:
                self._after = await self._feed.last_row()
            await self._feed.check(self._wanted)
        except CallerError:
            raise
        except OpDbusError:
            if around:
                raise

    async def events(self) -> AsyncIterator[str]:
        """Yield events until the gateway ends."""
        yield f"retry: {_RETRY_MILLISECONDS}\n\n"
        ending = news = asyncio.ensure_future(self._feed.link.is_ending.wait())
        try:
            while not ending.done():
                news = asyncio.ensure_future(self._feed.news().wait())
                async for text in self._new_events():
                    yield text
                await asyncio.wait(
                    {news, ending},
                    timeout=HEARTBEAT_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                news.cancel()
        finally:
            ending.cancel()
            news.cancel()

    async def _new_events(self) -> AsyncIterator[str]:
        """Yield all that is new; a daemon that is away is told once."""
        try:
            if self._after is None:
                self._after = await self._feed.last_row()
            is_full = True
            while is_full:
                text, self._after, is_full = await self._feed.read(self._wanted, self._after)
                if not self._is_served:
                    self._is_served = True
                    yield _event("daemon", {"serving": True})
                yield text
        except OpDbusError as error:
            if self._is_served:
                self._is_served = False
                yield _event("daemon", {"serving": False, "why": str(error)})
            else:
                yield ":\n\n"


def _event(name: str, content: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n"
