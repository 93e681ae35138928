"""Routes that op-dbus's predecessors promised: /query, /stats and /models."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import Field

from opdbus.client import Client
from opdbus.gateway import host_models as models
from opdbus.gateway.embeddings import Daemon

router: Final = APIRouter(tags=["predecessors"])
_DEFAULT_K: Final = 10


class QueryRequest(models.Request):
    """A question, and the number of results."""

    text: models.Text
    k: models.Limit = _DEFAULT_K


class QueryResult(models.Answer):
    """An object that was found."""

    id: Annotated[str, Field(description="PLUGIN/KIND/NAME.")]
    text: str
    score: float | None
    metadata: dict[str, str]


class QueryAnswer(models.Answer):
    """Results, best first."""

    query: str
    count: int
    results: list[QueryResult]


class StatsAnswer(models.Answer):
    """Numbers of the host and of the engine."""

    objects: int
    vectorized: int
    pending: int
    drifted: int
    sources: dict[str, int]
    level: str
    model: str
    dimension: int
    provider: str
    state: str
    texts: Annotated[int, Field(description="Texts that were turned into vectors so far.")]
    queue_depth: int
    memory_bytes: int
    version: str


class ModelRow(models.Answer):
    """A level and its model."""

    level: str
    model: str
    dimension: int
    status: str
    detail: str


class ModelsAnswer(models.Answer):
    """All levels."""

    models: list[ModelRow]


@router.get("/query", response_model=QueryAnswer)
async def query(asked: Annotated[QueryRequest, Query()], client: Daemon) -> Response:
    """Return the objects that answer a question; `/search` has more options."""
    return await _query(asked, client)


@router.post("/query", response_model=QueryAnswer)
async def post_query(asked: QueryRequest, client: Daemon) -> Response:
    """Return the objects that answer a question; `/search` has more options."""
    return await _query(asked, client)


async def _query(asked: QueryRequest, client: Client) -> Response:
    hits = map(models.Hit.of, await client.search(asked.text, asked.k, {}))
    results = [
        QueryResult(
            id=f"{hit.plugin}/{hit.kind}/{hit.name}",
            text=hit.snippet,
            score=hit.score,
            metadata={
                "plugin": hit.plugin,
                "kind": hit.kind,
                "name": hit.name,
                "source": hit.source,
            },
        )
        for hit in hits
    ]
    return QueryAnswer(query=asked.text, count=len(results), results=results).response()


@router.get("/stats", response_model=StatsAnswer)
async def stats(client: Daemon) -> Response:
    """Return numbers of the host and of the engine; `/status` has all."""
    known = await client.status()
    return StatsAnswer(
        objects=known["Count"],
        vectorized=known["Vectorized"],
        pending=known["Pending"],
        drifted=known["Drifted"],
        sources=dict(known["Sources"]),
        level=known["Level"],
        model=known["Model"],
        dimension=known["Dimension"],
        provider=known["Provider"],
        state=known["State"],
        texts=known["Texts"],
        queue_depth=known["QueueDepth"],
        memory_bytes=known["Memory"],
        version=known["Version"],
    ).response()


@router.get("/models", response_model=ModelsAnswer)
async def list_models(client: Daemon) -> Response:
    """Return the levels, their models, and the reason why one is not served."""
    keys = ModelRow.model_fields
    rows = [ModelRow(**dict(zip(keys, row, strict=True))) for row in await client.levels()]
    return ModelsAnswer(models=rows).response()
