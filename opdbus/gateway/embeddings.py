"""Routes of OpenAI's embedding server, and health."""

import binascii
import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from opdbus.client import Client
from opdbus.client.embedding import Embedded
from opdbus.gateway.embedding_call import (
    Calls,
    JsonRoute,
    LevelModel,
    Texts,
    read_texts,
    served_headers,
)
from opdbus.gateway.http_errors import HttpError

router: Final = APIRouter(tags=["embeddings"], route_class=JsonRoute)
READY: Final = ("ready", "degraded")


async def connected(request: Request) -> Client:
    """Return the client of the daemon that serves a request."""
    client: Client = await request.app.state.link.client()
    return client


Daemon = Annotated[Client, Depends(connected)]


class EmbeddingsRequest(BaseModel):
    """The body of `/v1/embeddings`."""

    input: Texts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None


class EmbeddingRow(BaseModel):
    """A text's vector: numbers, or base64 of float32 in little-endian order."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that the model read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """The answer of `/v1/embeddings`; `model` is the full name of the model that served."""

    object: Literal["list"]
    data: list[EmbeddingRow]
    model: str
    usage: Usage


class ModelRow(BaseModel):
    """A model that `/v1/embeddings` serves."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "op-dbus"
    root: str = ""
    dimension: int = 0


class ModelList(BaseModel):
    """The answer of `/v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelRow]


@router.post("/v1/embeddings", response_model=EmbeddingsAnswer)
@router.post("/embeddings", response_model=EmbeddingsAnswer)
async def embeddings(asked: EmbeddingsRequest, request: Request, calls: Calls) -> Response:
    """Return the vectors of one text or a list of texts, in OpenAI's form."""
    texts = read_texts(asked.input)
    found = await calls.embed(request, texts, asked.model, dimensions=asked.dimensions)
    if asked.encoding_format == "base64":
        vectors = [b'"%s"' % binascii.b2a_base64(row, newline=False) for row in found.rows]
    else:
        vectors = [vector.encode() for vector in await calls.write_vectors(found)]
    content = _write(found, vectors)
    return Response(content, media_type="application/json", headers=served_headers(found))


@router.get("/v1/models")
async def models(calls: Calls) -> ModelList:
    """List the models, the configured one first."""
    levels = list(await calls.levels())
    try:
        first = await calls.configured()
    except HttpError:
        # the level none: others may be asked for all the same
        return ModelList(data=[_model(level) for level in levels])
    return ModelList(data=[_model(level) for level in sorted(levels, key=lambda o: o != first)])


@router.get("/v1/models/{name:path}")
async def model(name: str, calls: Calls) -> ModelRow:
    """Return one model by any of its names."""
    return _model(await calls.find(name))


@router.get("/health")
async def health(client: Daemon, response: Response) -> dict[str, Any]:
    """Return the daemon's state, and the provider that was proven."""
    status = await client.status()
    if status["State"] not in READY:
        response.status_code = 503
        response.headers["Retry-After"] = "1"
    return {
        "status": status["State"],
        "level": status["Level"],
        "model": status["Model"],
        "provider": status["Provider"],
        "precision": status["Precision"],
    }


def _write(found: Embedded, vectors: Sequence[bytes]) -> bytes:
    """Write the answer; by hand, since vectors are most of it and need no escapes."""
    rows = [
        b'{"object":"embedding","index":%d,"embedding":%s}' % (index, vector)
        for index, vector in enumerate(vectors)
    ]
    count = found.read_tokens
    name = json.dumps(found.details["model"]).encode()
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (count, count)
    head, tail = b'{"object":"list","data":[', b'],"model":%s,"usage":%s}' % (name, usage)
    return head + b",".join(rows) + tail


def _model(level: LevelModel) -> ModelRow:
    return ModelRow(id=level.id, root=level.model, dimension=level.dimension)
