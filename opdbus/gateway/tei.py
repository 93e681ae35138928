"""Routes of text-embeddings-inference, and reranking in its form and in Cohere's."""

import asyncio
import json
from array import array
from collections.abc import Sequence
from operator import mul
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from opdbus import __version__
from opdbus.client.embedding import Embedded
from opdbus.gateway.embedding_call import (
    MOST_ITEMS,
    Calls,
    EmbeddingCalls,
    JsonRoute,
    Texts,
    read_texts,
    served_headers,
)
from opdbus.gateway.embeddings import READY, Daemon
from opdbus.gateway.http_errors import HttpError
from opdbus.gateway.http_limits import Limits

router: Final = APIRouter(tags=["text-embeddings-inference"], route_class=JsonRoute)
# Texts of a request and its query are one call.
_MOST_RANKED: Final = MOST_ITEMS - 1
# Characters of a text of `/tokenize`: the daemon's limit.
_MOST_TOKENIZED: Final = 16 << 10
_FLAT_ERROR: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/FlatError"}}}
_NO_SUCH_MODEL: Final[dict[int | str, dict[str, Any]]] = {
    424: {"description": "No level has such a model.", "content": _FLAT_ERROR}
}


class Truncation(BaseModel):
    """Parameters for texts that are longer than the model reads."""

    truncate: bool | None = None
    truncation_direction: Literal["Right", "Left", "right", "left"] | None = None


class EmbedRequest(Truncation):
    """The body of `/embed`."""

    inputs: Texts
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


class RerankRequest(Truncation):
    """The body of `/rerank`, which has `texts`, and of Cohere's, which has `documents`."""

    query: str
    texts: list[Any] | None = None
    documents: list[Any] | None = None
    model: str | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    return_documents: bool | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None


class TokenizeRequest(BaseModel):
    """The body of `/tokenize`."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None


class TokenRow(BaseModel):
    """A token; one that the tokenizer added has no place in the text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class SimilarityInputs(BaseModel):
    """A text, and those to compare it with."""

    source_sentence: str
    sentences: list[Any]


class SimilarityParameters(Truncation):
    """Options of `/similarity`."""

    prompt_name: str | None = None


class SimilarityRequest(BaseModel):
    """The body of `/similarity`."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


class Info(BaseModel):
    """The answer of `/info`; what op-dbus has no such number of is left out."""

    model_id: str
    model_sha: str
    model_dtype: str
    model_type: dict[str, dict[str, str]]
    max_concurrent_requests: int
    max_input_length: int
    max_client_batch_size: int
    auto_truncate: bool
    version: str
    provider: str


# InferenceClient of huggingface_hub posts to the server's root.
@router.post("/", response_model=list[list[float]])
@router.post("/embed", response_model=list[list[float]])
async def embed(asked: EmbedRequest, request: Request, calls: Calls) -> Response:
    """Return the vectors of one text or a list of texts."""
    if asked.normalize is False:
        raise HttpError(400, "normalize: vectors of these models always have length 1", "normalize")
    _refuse_prompt(asked.prompt_name)
    texts = read_texts(asked.inputs, "inputs")
    found = await _embed(calls, request, texts, asked, dimensions=asked.dimensions)
    content = f"[{','.join(await calls.write_vectors(found))}]"
    return Response(content, media_type="application/json", headers=served_headers(found))


@router.post("/embed_sparse", responses=_NO_SUCH_MODEL)
@router.post("/embed_all", responses=_NO_SUCH_MODEL)
async def embed_otherwise() -> Response:
    """Refuse: no level has such a model."""
    raise HttpError(424, "these models give one dense vector for each text: use /embed")


@router.post("/predict", responses=_NO_SUCH_MODEL)
async def predict() -> Response:
    """Refuse: no level classifies."""
    raise HttpError(424, "these models classify nothing: use /embed")


@router.post("/decode", responses=_NO_SUCH_MODEL)
async def decode() -> Response:
    """Refuse: token ids are never read, since they may be another tokenizer's."""
    raise HttpError(424, "token ids are not accepted, since they may be another tokenizer's")


@router.post("/tokenize")
async def tokenize(asked: TokenizeRequest, calls: Calls) -> list[list[TokenRow]]:
    """Return the tokens of one text or a list of texts, as if none were cut."""
    texts = read_texts(asked.inputs, "inputs")
    _refuse_prompt(asked.prompt_name)
    for index, text in enumerate(texts):
        if len(text) > _MOST_TOKENIZED:
            raise HttpError(
                413, f"inputs.{index}: {len(text)} characters, at most {_MOST_TOKENIZED}", "inputs"
            )
    found = await (await calls.link.client()).tokenize(texts, {"wait": False})
    return [
        [
            TokenRow(
                id=number,
                text=text,
                special=is_added,
                start=None if is_added else start,
                stop=None if is_added else end,
            )
            for number, text, is_added, start, end in tokens
            if asked.add_special_tokens or not is_added
        ]
        for tokens in found
    ]


@router.post("/similarity", response_model=list[float])
async def similarity(asked: SimilarityRequest, request: Request, calls: Calls) -> Response:
    """Return the cosine of each text with the first."""
    parameters = asked.parameters or SimilarityParameters()
    _refuse_prompt(parameters.prompt_name)
    texts = _read_compared(asked.inputs.sentences, "sentences")
    (source,) = read_texts(asked.inputs.source_sentence, "source_sentence")
    found = await _embed(calls, request, [source, *texts], parameters)
    headers = served_headers(found)
    cosines = await asyncio.to_thread(_cosines, found)
    return Response(json.dumps(cosines), media_type="application/json", headers=headers)


@router.get("/info")
async def info(client: Daemon) -> Info:
    """Describe the model that serves."""
    status = await client.status()
    if status["State"] not in READY or not status["Model"]:
        raise HttpError(503, f"the level {status['Level']} is {status['State']}: it has no model")
    return Info(
        model_id=status["Model"],
        model_sha=status["ModelRevision"],
        model_dtype=status["Precision"],
        model_type={"embedding": {"pooling": "mean"}},
        max_concurrent_requests=Limits().running_of_client,
        max_input_length=status["MaxTokens"],
        max_client_batch_size=MOST_ITEMS,
        auto_truncate=True,
        version=__version__,
        provider=status["Provider"],
    )


@router.post("/rerank")
@router.post("/v1/rerank")
async def rerank(asked: RerankRequest, request: Request, calls: Calls) -> Response:
    """Order texts by the cosine of their vectors and the query's: levels have no cross-encoder."""
    is_cohere = asked.texts is None
    given = asked.documents if asked.texts is None else asked.texts
    param = "documents" if is_cohere else "texts"
    if given is None:
        raise HttpError(400, "send `texts`, or `documents`", "texts")
    documents = [each.get("text") if isinstance(each, dict) else each for each in given]
    texts = _read_compared(documents, param)
    (query,) = read_texts(asked.query, "query")
    found = await _embed(calls, request, [query, *texts], asked, model=asked.model)
    scores = await asyncio.to_thread(_cosines, found)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top_n]
    if is_cohere:
        results = [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": texts[index]}} if asked.return_documents else {})
            for index in order
        ]
        usage = {"total_tokens": found.read_tokens}
        answer: Any = {"model": found.details["model"], "results": results, "usage": usage}
    else:
        answer = [
            {"index": index, "score": scores[index]}
            | ({"text": texts[index]} if asked.return_text else {})
            for index in order
        ]
    headers = served_headers(found)
    return Response(json.dumps(answer), media_type="application/json", headers=headers)


async def _embed(
    calls: EmbeddingCalls,
    request: Request,
    texts: Sequence[str],
    asked: Truncation,
    **options: Any,  # noqa: ANN401 -- those of EmbeddingCalls.embed
) -> Embedded:
    """Return the vectors of texts; raises HttpError if one would lose its beginning."""
    may_cut = asked.truncate is not False
    is_left = may_cut and asked.truncation_direction in {"Left", "left"}
    model = options.pop("model", None)
    try:
        return await calls.embed(request, texts, model, may_cut=may_cut and not is_left, **options)
    except HttpError as error:
        if not is_left or error.status != 413:
            raise
        param = "truncation_direction"
        why = f"{param}: these models cut a long text at its end only: shorten it, or send `Right`"
        raise HttpError(400, why, param) from None


def _refuse_prompt(name: str | None) -> None:
    if name:
        raise HttpError(400, "prompt_name: these models have no prompts", "prompt_name")


def _read_compared(given: list[Any], param: str) -> list[str]:
    """Return the texts of a request that are compared with one more; raises HttpError."""
    if len(given) > _MOST_RANKED:
        raise HttpError(413, f"{param}: at most {_MOST_RANKED} texts in one request", param)
    return read_texts(given, param)


def _cosines(found: Embedded) -> list[float]:
    """Return the cosine of each vector with the first, which is left out."""
    first, *rows = [array("f", row) for row in found.rows]
    return [sum(map(mul, first, row)) for row in rows]
