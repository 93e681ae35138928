"""Routes of embedding servers: OpenAI's, text-embeddings-inference's and ollama's."""

import base64
import json
from array import array
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from opdbus.client import Client
from opdbus.gateway.http_errors import HttpError

router: Final = APIRouter()
_MOST_ITEMS: Final = 2048


async def connected(request: Request) -> Client:
    """Return the client of the daemon that serves a request."""
    client: Client = await request.app.state.link.client()
    return client


Daemon = Annotated[Client, Depends(connected)]


class EmbeddingsRequest(BaseModel):
    """The body of `/v1/embeddings`."""

    input: str | list[str] | list[int] | list[list[int]]
    model: str = ""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None


@router.post("/v1/embeddings")
async def embeddings(asked: EmbeddingsRequest, client: Daemon) -> Response:
    """Return the vectors of one text or a list of texts, in OpenAI's form."""
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if not all(isinstance(text, str) for text in texts):
        raise HttpError(400, "input: token ids are not accepted: send texts", "input")
    if len(texts) > _MOST_ITEMS:
        raise HttpError(413, f"input: at most {_MOST_ITEMS} texts in one request", "input")
    options: dict[str, Any] = {"dimensions": asked.dimensions} if asked.dimensions else {}
    dimension, data = await client.vectorize_raw([str(text) for text in texts], options)
    size = 4 * dimension
    rows = [data[at : at + size] for at in range(0, len(data), size)]
    vectors = [
        base64.b64encode(row).decode()
        if asked.encoding_format == "base64"
        else array("f", row).tolist()
        for row in rows
    ]
    listed = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    answer = {"object": "list", "data": listed, "model": asked.model}
    return Response(json.dumps(answer), media_type="application/json")


@router.get("/health")
async def health(client: Daemon) -> dict[str, Any]:
    """Return the daemon's state, and the provider that was proven."""
    status = await client.status()
    return {"status": status["State"], "provider": status["Provider"]}
