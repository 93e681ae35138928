"""Calls for vectors that the routes of all embedding servers share: texts, models, cancellation."""

import asyncio
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from pydantic import WithJsonSchema
from starlette.types import Receive, Scope, Send

from opdbus.client.embedding import Embedded, embed
from opdbus.errors import InvalidArgs, ModelError, NoModel
from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.http_errors import HttpError
from opdbus.platform.tasks import cancel

MOST_ITEMS: Final = 2048
# The daemon's limit of a call's texts.
_MOST_TEXT_BYTES: Final = 1 << 20
# Each running request has a connection to the daemon, which drops the work when that is closed.
# dbus-daemon allows a user 256.
_CONNECTIONS: Final = 64
# Seconds for which the list of levels is kept.
_LEVELS_SECONDS: Final = 5.0
# Numbers that are written before other requests have their turn: 1 ms.
_NUMBERS_A_TURN: Final = 8192
# Digits that give every float32 exactly.
_NUMBER: Final = "%.9g"
PREFIX: Final = "op-dbus-embed-"
# Names of the configured level: clients of OpenAI send these if their user names no model.
DEFAULT_MODELS: Final = frozenset(
    {
        "",
        "default",
        "text-embedding-3-small",
        "text-embedding-3-large",
        "text-embedding-ada-002",
    }
)
Texts = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "maxItems": MOST_ITEMS},
            ],
            "description": "A text or texts, of at most 1 MiB each; token ids are refused.",
        }
    ),
]


class JsonRoute(APIRoute):
    """A route whose body is JSON whatever its content type: `curl -d` sends that of forms."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        headers = [each for each in scope["headers"] if each[0] != b"content-type"]
        headers.append((b"content-type", b"application/json"))
        await super().handle({**scope, "headers": headers}, receive, send)


@dataclass(frozen=True, slots=True)
class LevelModel:
    """A level that can serve, and its model."""

    level: str
    model: str
    dimension: int
    status: str

    @property
    def id(self) -> str:
        """The model's name in lists: some clients show only those that contain `embed`."""
        return PREFIX + self.level

    @property
    def names(self) -> set[str]:
        """All names by which requests may ask for it, in lower case."""
        given = {self.level, self.id, self.model, self.model.rpartition("/")[2]}
        return {name.lower() for name in given}


@dataclass
class EmbeddingCalls:
    """Calls for vectors to the daemon of a link; keeps the list of levels for a moment."""

    link: DaemonLink
    _levels: Sequence[LevelModel] = ()
    _listed_at: float = float("-inf")
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONNECTIONS))
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def levels(self) -> Sequence[LevelModel]:
        """Return the levels that can serve."""
        if time.monotonic() - self._listed_at > _LEVELS_SECONDS:
            rows = await (await self.link.client()).levels()
            self._levels = [
                LevelModel(level, model, dimension, status)
                for level, model, dimension, status, _ in rows
                if status != "missing" and dimension
            ]
            self._listed_at = time.monotonic()
        return self._levels

    async def find(self, name: str) -> LevelModel:
        """Return the level of a model's name; raises HttpError 404."""
        wanted = name.lower().removesuffix(":latest")
        levels = await self.levels()
        found = next((level for level in levels if wanted in level.names), None)
        if found:
            return found
        known = ", ".join(level.id for level in levels)
        raise HttpError(
            404, f"model: there is no model {name!r}; there are {known}", "model", "model_not_found"
        )

    async def configured(self) -> LevelModel:
        """Return the level that serves requests without a model's name; raises HttpError."""
        status = await (await self.link.client()).status()
        if status["Level"] == "none":
            raise HttpError(404, "the level is none, which has no vectors", "model")
        return await self.find(status["Level"])

    async def embed(
        self,
        request: Request,
        texts: Sequence[str],
        model: str | None,
        *,
        dimensions: int | None = None,
        may_cut: bool = True,
    ) -> Embedded:
        """Return the vectors of texts; raises HttpError and the daemon's errors.

        A request whose client leaves is cancelled.
        """
        name = model or ""
        options: dict[str, Any] = {"wait": False}
        if name.lower().removesuffix(":latest") not in DEFAULT_MODELS:
            options["level"] = (await self.find(name)).level
        if dimensions:
            options["dimensions"] = dimensions
        try:
            found = await self._embed_while_connected(request, texts, options)
        except InvalidArgs as error:
            param = "dimensions" if str(error).startswith("dimensions") else None
            raise HttpError(400, str(error), param) from None
        except NoModel:
            raise
        except ModelError as error:
            status = 404 if "level" in options else 503
            raise HttpError(status, str(error), "model", "model_not_found") from None
        if found.cut and not may_cut:
            most = found.details["max_tokens"]
            raise HttpError(
                413,
                f"{len(found.cut)} of {len(texts)} texts are longer than the {most} tokens that the"
                f" model reads; the first is number {found.cut[0]}, counted from 0, with"
                f" {found.tokens[found.cut[0]]}: shorten it, or allow `truncate`",
                "input",
            )
        return found

    async def write_vectors(self, found: Embedded) -> list[str]:
        """Return each vector as a JSON list of numbers; other requests have turns meanwhile.

        On the loop in turns, not in a thread: there each turn of the loop would wait 5 ms for
        Python's lock.
        """
        rows, turn = found.rows, max(1, _NUMBERS_A_TURN // found.dimension)
        form = f"[{','.join([_NUMBER] * found.dimension)}]"
        if len(rows) <= turn:
            return [form % tuple(array("f", row)) for row in rows]
        texts: list[str] = []
        # one large answer at a time, or as many turns as there are answers would follow each other
        async with self._writing:
            for at in range(0, len(rows), turn):
                texts += [form % tuple(array("f", row)) for row in rows[at : at + turn]]
                await asyncio.sleep(0)
        return texts

    async def _embed_while_connected(
        self, request: Request, texts: Sequence[str], options: Mapping[str, Any]
    ) -> Embedded:
        work = asyncio.create_task(self._embed_on_own(texts, options))
        gone = asyncio.create_task(_wait_gone(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise HttpError(499, "the client left")
            return work.result()
        finally:
            await cancel((work, gone))

    async def _embed_on_own(self, texts: Sequence[str], options: Mapping[str, Any]) -> Embedded:
        async with self._places, self.link.own_client() as client:
            return await embed(client, texts, options)


async def _calls(request: Request) -> EmbeddingCalls:
    state = request.app.state
    if not hasattr(state, "embedding_calls"):
        state.embedding_calls = EmbeddingCalls(state.link)
    calls: EmbeddingCalls = state.embedding_calls
    return calls


Calls = Annotated[EmbeddingCalls, Depends(_calls)]


def read_texts(given: Any, param: str = "input") -> list[str]:  # noqa: ANN401 -- decoded JSON
    """Return the texts of a request; raises HttpError, which names the index of a bad one."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list):
        raise HttpError(400, f"{param}: send a text or a list of texts", param)
    if not texts:
        raise HttpError(400, f"{param}: the list is empty", param)
    if len(texts) > MOST_ITEMS:
        raise HttpError(
            413, f"{param}: {len(texts)} texts, at most {MOST_ITEMS} in one request", param
        )
    return [_check_text(text, index, param) for index, text in enumerate(texts)]


def served_headers(found: Embedded) -> dict[str, str]:
    """Return the response headers that say what served, and how many texts were cut."""
    details = found.details
    headers = {
        # headers are ASCII; the address of a remote provider need not be
        "x-opdbus-provider": details["provider"].encode("ascii", "backslashreplace").decode(),
        "x-opdbus-precision": details["precision"],
        "x-opdbus-level": details["level"],
        "x-opdbus-truncated": str(len(found.cut)),
    }
    if found.dimension < details["native_dimension"]:
        headers["x-opdbus-truncated-dimensions"] = (
            f"{found.dimension} of {details['native_dimension']}"
        )
    return headers


def _check_text(text: Any, index: int, param: str) -> str:  # noqa: ANN401 -- decoded JSON
    place = f"{param}.{index}"
    if not isinstance(text, str):
        if isinstance(text, int | list):
            raise HttpError(
                400,
                f"{place}: token ids are not accepted, since they are another tokenizer's: send"
                " texts (LangChain: check_embedding_ctx_length=False)",
                param,
            )
        raise HttpError(400, f"{place}: it is no text", param)
    # D-Bus carries no NUL; models read both signs as nothing
    sent: str = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if sent.isascii():
        size = len(sent)
    else:
        try:
            size = len(sent.encode())
        except UnicodeEncodeError:
            raise HttpError(400, f"{place}: it has half a surrogate pair", param) from None
    if size > _MOST_TEXT_BYTES:
        raise HttpError(413, f"{place}: {size} bytes, at most {_MOST_TEXT_BYTES} in a text", param)
    return sent


async def _wait_gone(request: Request) -> None:
    """Wait until the client disconnects; the body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
