"""Routes of the writing socket: objects published one by one, or as a stream of lines of JSON."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from fastapi import APIRouter, Request, Response
from pydantic import Discriminator, Field, Tag, ValidationError
from starlette.requests import ClientDisconnect

from opdbus.client import Client
from opdbus.errors import AccessDenied, CallerError, InvalidArgs, LimitsExceeded, TimedOut
from opdbus.gateway import host_models as models
from opdbus.gateway.embeddings import Daemon
from opdbus.gateway.http_errors import HttpError
from opdbus.state.object import MAX_NAME

router: Final = APIRouter(tags=["writing"])
# The source of all that is published here.
SOURCE: Final = "http"
_LINE_BYTES: Final = 1 << 20
# Objects and bytes of one call of the daemon.
_BATCH: Final = 500
_BATCH_BYTES: Final = 512 << 10
# Lines that are read before other requests have their turn: 10 ms.
_LINES_A_TURN: Final = 200
_MOST_ERRORS: Final = 100
# A body of `/add`, and values of a call: encoding one takes 7 us, in which nobody else is served.
# Together they keep a call below the 4 MiB that the daemon takes.
_BODY_BYTES: Final = 3 << 20
_MOST_VALUES: Final = 20_000
_MOST_ITEMS: Final = 1000
# A level takes three of the 64 that D-Bus has.
_MOST_LEVELS: Final = 12
_KEY: Final = r"^[^\x00]+$"


class Item(models.Strict):
    """An object to publish; a text is one of its properties."""

    plugin: Annotated[str, Field(pattern=_KEY, max_length=MAX_NAME["plugin"])] = "http"
    kind: Annotated[str, Field(pattern=_KEY, max_length=MAX_NAME["kind"])] = "document"
    name: Annotated[
        str,
        Field(
            pattern=_KEY,
            max_length=MAX_NAME["name"],
            description="What is sent again under the same name replaces the object.",
        ),
    ]
    text: str | None = None
    properties: Annotated[dict[str, Any], Field(default_factory=dict)]

    def count(self) -> int:
        """Return the number of values, or one that is past the limit."""
        count, waiting = 0, [self.properties]
        while waiting and count <= _MOST_VALUES:
            each: Any = waiting.pop()
            count += 1
            if isinstance(each, dict | list):
                waiting += each.values() if isinstance(each, dict) else each
        return count

    def row(self) -> tuple[str, str, str, dict[str, Any]]:
        """Return the object as State1.Publish takes it; raises InvalidArgs."""
        properties = {**self.properties, **({} if self.text is None else {"text": self.text})}
        return self.plugin, self.kind, self.name, _sendable(properties)


# The faults of a list are those of its items, not that it is no object.
_Items: TypeAlias = Annotated[
    Annotated[Item, Tag("object")]
    | Annotated[list[Item], Field(min_length=1, max_length=_MOST_ITEMS), Tag("list")],
    Discriminator(lambda body: "list" if isinstance(body, list) else "object"),
]


class AddAnswer(models.Answer):
    """The published objects."""

    added: int
    objects: list[models.ObjectName]


class LineError(models.Answer):
    """A line that was not imported."""

    line: Annotated[int, Field(description="Its number, counted from 1.")]
    message: str


class ImportAnswer(models.Answer):
    """Numbers of lines; empty lines do not count."""

    imported: int
    failed: int
    errors: Annotated[list[LineError], Field(description=f"The first {_MOST_ERRORS}.")]


class _Line(NamedTuple):
    number: int
    item: Item
    size: int


class _Import:
    """The lines of one request: those that wait for a call, and what became of the others."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._batch: list[_Line] = []
        self._size = self._values = 0
        self.imported = 0
        self.failed = 0
        self.errors: list[LineError] = []

    async def add(self, number: int, content: bytes) -> None:
        """Take a line, and publish the batch when it is full."""
        try:
            item = Item.model_validate_json(content)
        except ValidationError as error:
            self._fail(number, _describe(error))
            return
        if (count := item.count()) > _MOST_VALUES:
            self._fail(number, f"properties: at most {_MOST_VALUES:,} values in an object")
            return
        if self._values + count > _MOST_VALUES:
            await self.flush()
        self._batch.append(_Line(number, item, len(content)))
        self._size += len(content)
        self._values += count
        if len(self._batch) >= _BATCH or self._size >= _BATCH_BYTES:
            await self.flush()

    def refuse_long(self, number: int) -> None:
        """Count a line that is too long."""
        self._fail(number, f"the line has more than {_LINE_BYTES:,} bytes")

    async def flush(self) -> None:
        """Publish the lines that wait."""
        batch, self._batch, self._size, self._values = self._batch, [], 0, 0
        if batch:
            await self._publish(batch)

    async def _publish(self, batch: list[_Line]) -> None:
        """Publish lines; if one is at fault, halve them until it is found."""
        # of a name that occurs twice, the later line holds
        rows = {(line.item.plugin, line.item.kind, line.item.name): line for line in batch}
        try:
            await self._client.publish(SOURCE, [line.item.row() for line in rows.values()])
        except (AccessDenied, LimitsExceeded, TimedOut):
            # no line is at fault
            raise
        except CallerError as error:
            if len(batch) == 1:
                self._fail(batch[0].number, str(error))
                return
            middle = len(batch) // 2
            await self._publish(batch[:middle])
            await self._publish(batch[middle:])
        else:
            self.imported += len(batch)

    def _fail(self, number: int, message: str) -> None:
        self.failed += 1
        if len(self.errors) < _MOST_ERRORS:
            self.errors.append(LineError(line=number, message=message))


@router.post("/add", response_model=AddAnswer)
async def add(request: Request, asked: _Items, client: Daemon) -> Response:
    """Publish an object, or a list of them, under the source `http`."""
    items = asked if isinstance(asked, list) else [asked]
    if len(await request.body()) > _BODY_BYTES or sum(map(Item.count, items)) > _MOST_VALUES:
        most = f"at most {_BODY_BYTES:,} bytes with {_MOST_VALUES:,} values"
        raise HttpError(413, f"body: send {most} at a time, or lines to /batch/import")
    found = await client.publish(SOURCE, [item.row() for item in items])
    objects = [models.ObjectName(**models.identity(path)) for path in found]
    return AddAnswer(added=len(found), objects=objects).response()


@router.post(
    "/batch/import",
    response_model=ImportAnswer,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                form: {"schema": {"type": "string"}}
                for form in ("application/x-ndjson", "text/plain")
            },
            "description": "One object of `/add` a line, of any number of lines.",
        }
    },
)
async def batch_import(request: Request, client: Daemon) -> Response:
    """Publish one object a line; a line that is at fault is told, and the others are imported.

    What is sent again replaces what was sent under the same name, so an import may be repeated.
    """
    lines = _Import(client)
    async for number, content in _read_lines(request):
        if not number % _LINES_A_TURN:
            await asyncio.sleep(0)
        if content is None:
            lines.refuse_long(number)
        else:
            await lines.add(number, content)
    await lines.flush()
    errors = sorted(lines.errors, key=lambda error: error.line)
    return ImportAnswer(imported=lines.imported, failed=lines.failed, errors=errors).response()


async def _read_lines(request: Request) -> AsyncIterator[tuple[int, bytes | None]]:
    """Yield the number and content of each line that is not empty; None for one too long."""
    number, rest, is_long = 1, bytearray(), False
    try:
        async for part in request.stream():
            *ended, last = part.split(b"\n")
            for piece in ended:
                if is_long or len(rest) + len(piece) > _LINE_BYTES:
                    yield number, None
                elif content := bytes(rest + piece).strip():
                    yield number, content
                number, is_long = number + 1, False
                rest.clear()
            is_long = is_long or len(rest) + len(last) > _LINE_BYTES
            if is_long:
                rest.clear()
            else:
                rest += last
    except ClientDisconnect:
        raise HttpError(400, "the body ended early: lines before that are imported") from None
    if is_long or rest.strip():
        yield number, None if is_long else bytes(rest).strip()


def _describe(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, found["loc"]))
    return f"{place}: {found['msg']}" if place else found["msg"]


def _sendable(value: Any, level: int = 0) -> Any:  # noqa: ANN401 -- any value of JSON
    """Return a value without members that are null, since D-Bus has none.

    Raises InvalidArgs for a null in a list, whose other items would move, and if it is too deep.
    """
    if level > _MOST_LEVELS:
        raise InvalidArgs(f"properties: they are nested more than {_MOST_LEVELS} levels deep")
    if isinstance(value, Mapping):
        return {key: _sendable(item, level + 1) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        if None in value:
            raise InvalidArgs("properties: a list has a null, which cannot be kept: leave it out")
        return [_sendable(item, level + 1) for item in value]
    return value
