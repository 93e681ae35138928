"""Routes of ollama that its clients use for embeddings."""

import json
import time
from collections.abc import Mapping, Sequence
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
from opdbus.gateway.embeddings import READY, Daemon
from opdbus.gateway.http_errors import HttpError

router: Final = APIRouter(prefix="/api", tags=["ollama"], route_class=JsonRoute)
# Sentence encoders of op-dbus, for clients that need a name: not an architecture of ollama's.
_FAMILY: Final = "op-dbus"
# A text whose vector nobody gets: a request without one has the model loaded.
_NOTHING: Final = "."
# Status of a level whose engine serves.
_LOADED: Final = ("loaded", *READY)


class EmbedRequest(BaseModel):
    """The body of `/api/embed`."""

    model: str
    input: Texts = None
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=0)] | None = None


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
    prompt: str | None = None


class OldEmbedAnswer(BaseModel):
    """The answer of `/api/embeddings`."""

    embedding: list[float]


class ShowRequest(BaseModel):
    """The body of `/api/show`; older clients send `name`."""

    model: str | None = None
    name: str | None = None


@router.post("/embed", response_model=EmbedAnswer)
async def embed(asked: EmbedRequest, request: Request, calls: Calls) -> Response:
    """Return the vectors of one text or a list of texts."""
    began = time.perf_counter_ns()
    if asked.input in (None, "", []):
        await calls.embed(request, [_NOTHING], asked.model)
        return _answer(asked.model, [], began, 0, {})
    may_cut = asked.truncate is not False
    texts = read_texts(asked.input)
    try:
        found = await calls.embed(
            request, texts, asked.model, dimensions=asked.dimensions or None, may_cut=may_cut
        )
    except HttpError as error:
        # ollama's own status for a text that is too long
        raise HttpError(400 if error.status == 413 else error.status, error.message) from None
    vectors = await calls.write_vectors(found)
    return _answer(asked.model, vectors, began, found.read_tokens, served_headers(found))


@router.post("/embeddings", response_model=OldEmbedAnswer)
async def embed_one(asked: OldEmbedRequest, request: Request, calls: Calls) -> Response:
    """Return the vector of one text."""
    if not asked.prompt:
        await calls.embed(request, [_NOTHING], asked.model)
        return Response('{"embedding": []}', media_type="application/json")
    found = await calls.embed(request, read_texts(asked.prompt, "prompt"), asked.model)
    (vector,) = await calls.write_vectors(found)
    content = f'{{"embedding": {vector}}}'
    return Response(content, media_type="application/json", headers=served_headers(found))


@router.get("/tags")
async def tags(calls: Calls, client: Daemon) -> dict[str, list[dict[str, Any]]]:
    """List the models."""
    served = await client.status()
    return {"models": [_describe(level, served) for level in await calls.levels()]}


@router.get("/ps")
async def running(calls: Calls, client: Daemon) -> dict[str, list[dict[str, Any]]]:
    """List the models that are loaded."""
    served = await client.status()
    levels = [level for level in await calls.levels() if level.status in _LOADED]
    return {"models": [_describe(level, served) for level in levels]}


@router.post("/show")
async def show(asked: ShowRequest, calls: Calls, client: Daemon) -> dict[str, Any]:
    """Describe one model."""
    level = await calls.find(asked.model or asked.name or "")
    served = await client.status()
    info: dict[str, Any] = {
        "general.architecture": _FAMILY,
        "general.basename": level.model,
        f"{_FAMILY}.embedding_length": level.dimension,
    }
    if _is_served(level, served):
        info[f"{_FAMILY}.context_length"] = served["MaxTokens"]
    details = _describe(level, served)["details"]
    return {"details": details, "model_info": info, "capabilities": ["embedding"]}


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


def _describe(level: LevelModel, served: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model as ollama lists it, without what is not known of it.

    The digest is that of the weights, and known of the configured level when it serves.
    """
    name = f"{level.id}:latest"
    found: dict[str, Any] = {"name": name, "model": name, "details": {"family": _FAMILY}}
    if _is_served(level, served):
        found["digest"] = served["ModelRevision"]
        found["details"]["quantization_level"] = served["Precision"].upper()
    return found


def _is_served(level: LevelModel, served: Mapping[str, Any]) -> bool:
    """Return whether the properties of the daemon are about this level's model."""
    return bool(served["Level"] == level.level and served["Model"])
