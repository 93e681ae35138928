"""Routes of ollama that its clients use for embeddings."""

import hashlib
import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from opdbus import __version__
from opdbus.gateway.embedding_call import (
    Calls,
    JsonRoute,
    LevelModel,
    Texts,
    read_texts,
    served_headers,
)
from opdbus.gateway.http_errors import HttpError

router: Final = APIRouter(prefix="/api", tags=["ollama"], route_class=JsonRoute)


class EmbedRequest(BaseModel):
    """The body of `/api/embed`."""

    model: str
    input: Texts
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


class EmbedAnswer(BaseModel):
    """The answer of `/api/embed`; times are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OldEmbedRequest(BaseModel):
    """The body of `/api/embeddings`."""

    model: str
    prompt: str


class OldEmbedAnswer(BaseModel):
    """The answer of `/api/embeddings`."""

    embedding: list[float]


class ShowRequest(BaseModel):
    """The body of `/api/show`; older clients send `name`."""

    model: str = ""
    name: str = ""


@router.post("/embed", response_model=EmbedAnswer)
async def embed(asked: EmbedRequest, request: Request, calls: Calls) -> Response:
    """Return the vectors of one text or a list of texts."""
    began = time.perf_counter_ns()
    if asked.input == []:
        return _answer(asked.model, [], began, 0, {})
    may_cut = asked.truncate is not False
    texts = read_texts(asked.input)
    try:
        found = await calls.embed(
            request, texts, asked.model, dimensions=asked.dimensions, may_cut=may_cut
        )
    except HttpError as error:
        # ollama's own status for a text that is too long
        raise HttpError(400 if error.status == 413 else error.status, error.message) from None
    vectors = await calls.write_vectors(found)
    return _answer(asked.model, vectors, began, found.read_tokens, served_headers(found))


@router.post("/embeddings", response_model=OldEmbedAnswer)
async def embed_one(asked: OldEmbedRequest, request: Request, calls: Calls) -> Response:
    """Return the vector of one text."""
    found = await calls.embed(request, read_texts(asked.prompt, "prompt"), asked.model)
    (vector,) = await calls.write_vectors(found)
    content = f'{{"embedding": {vector}}}'
    return Response(content, media_type="application/json", headers=served_headers(found))


@router.get("/tags")
async def tags(calls: Calls) -> dict[str, list[dict[str, Any]]]:
    """List the models."""
    return {"models": [_describe(level) for level in await calls.levels()]}


@router.post("/show")
async def show(asked: ShowRequest, calls: Calls) -> dict[str, Any]:
    """Describe one model."""
    level = await calls.find(asked.model or asked.name)
    return {
        "details": _describe(level)["details"],
        "model_info": {
            "general.architecture": "bert",
            "general.basename": level.model,
            "bert.embedding_length": level.dimension,
        },
        "capabilities": ["embedding"],
    }


@router.get("/version")
async def version() -> dict[str, str]:
    """Return the version of op-dbus."""
    return {"version": __version__}


def _answer(
    model: str, vectors: Sequence[str], began: int, count: int, headers: dict[str, str]
) -> Response:
    answer = {
        "model": model,
        "total_duration": time.perf_counter_ns() - began,
        "load_duration": 0,
        "prompt_eval_count": count,
    }
    rest = json.dumps(answer).removesuffix("}")
    content = f'{rest}, "embeddings": [{",".join(vectors)}]}}'
    return Response(content, media_type="application/json", headers=headers)


def _describe(level: LevelModel) -> dict[str, Any]:
    """Return a model as ollama lists it; what is not known of it is zero or empty."""
    return {
        "name": f"{level.id}:latest",
        "model": f"{level.id}:latest",
        "modified_at": "1970-01-01T00:00:00Z",
        "size": 0,
        "digest": hashlib.sha256(level.model.encode()).hexdigest(),
        "details": {
            "parent_model": "",
            "format": "",
            "family": "bert",
            "families": ["bert"],
            "parameter_size": "",
            "quantization_level": "",
        },
    }
