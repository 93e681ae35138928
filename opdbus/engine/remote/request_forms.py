"""Forms of requests for embeddings: OpenAI's and text-embeddings-inference's."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.remote.http_client import Answer, HttpClient
from opdbus.errors import ProofFailed, ProviderError, ServerUnreachable

# Bytes of one number in JSON, with what stands around it.
_NUMBER_BYTES: Final = 40
_REST_BYTES: Final = 1 << 16
# Statuses of a server that is overloaded or still loads its model.
_BUSY: Final = {429, 503}
_NO_ROUTE: Final = {404, 405}
_NO_ACCESS: Final = {401, 403}
# Statuses of a request that is wrong or too large.
_REFUSED: Final = {400, 413, 422}
_MOST_MODELS: Final = 8


class Busy(ServerUnreachable):
    """The server asks to come again after `seconds`."""

    def __init__(self, sentence: str, seconds: float) -> None:
        super().__init__(sentence)
        self.seconds = seconds


class Refused(ProviderError):
    """The server refuses the request, which may have too many texts."""


class NoRoute(ProviderError):
    """The server has no such route or model."""


@dataclass(frozen=True, slots=True)
class Form:
    """A route of a server, the model to ask it for, and the form of its requests."""

    path: str
    model: str
    is_openai: bool

    def __str__(self) -> str:
        """Return the route and the model."""
        return f"{self.path}, {self.model}" if self.is_openai else self.path

    def embed(
        self, client: HttpClient, texts: Sequence[str], dimension: int
    ) -> NDArray[np.float32]:
        """Return the vectors (texts, dimension) of texts as the server gives them.

        Raises Busy, Refused, NoRoute, ProofFailed for an answer that is none, ProviderError.
        """
        wanted: dict[str, Any] = {"inputs": texts, "normalize": True, "truncate": True}
        if self.is_openai:
            wanted = {"input": texts, "model": self.model, "encoding_format": "base64"}
        most = len(texts) * dimension * _NUMBER_BYTES + _REST_BYTES
        answer = client.request(self.path, json.dumps(wanted).encode(), most)
        require_answer(client.url + self.path, answer)
        try:
            found = json.loads(answer.body)
            rows = _sorted_rows(found["data"]) if self.is_openai else found
            vectors = [_vector(row) for row in rows]
            is_whole = len(vectors) == len(texts) and {len(row) for row in vectors} == {dimension}
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise ProofFailed(f"{client.url}{self.path} answered with what is no vectors") from None
        if not is_whole:
            sizes = ", ".join(map(str, sorted({len(row) for row in vectors}))) or "no"
            raise ProofFailed(
                f"{client.url}{self.path} answered {len(texts)} texts with {len(vectors)} vectors"
                f" of {sizes} numbers, and the model's have {dimension}: it serves another model"
            )
        return np.stack(vectors)


def _sorted_rows(data: list[dict[str, Any]]) -> list[Any]:
    """Return the vectors of OpenAI's answer in the order of the texts; raises ValueError."""
    numbers = [row.get("index", number) for number, row in enumerate(data)]
    if sorted(numbers) != list(range(len(data))):
        raise ValueError("an index is missing")
    order = sorted(range(len(data)), key=numbers.__getitem__)
    return [data[number]["embedding"] for number in order]


def _vector(row: str | list[float]) -> NDArray[np.float32]:
    if isinstance(row, str):
        return np.frombuffer(b64decode(row, validate=True), "<f4").astype(np.float32)
    vector = np.array(row, np.float32)
    if vector.ndim != 1:
        raise ValueError("it is no list of numbers")
    return vector


def require_answer(where: str, answer: Answer) -> None:
    """Raise the error of a status that is not 200."""
    if answer.status == 200:
        return
    reason = f"{where} answered {answer.status}{_message(answer.body)}"
    if answer.status in _BUSY:
        raise Busy(reason, answer.retry_after)
    if answer.status in _NO_ACCESS:
        raise ProviderError(
            f"{reason}: put its token into a file that OP_DBUS_REMOTE_TOKEN_FILE names"
        )
    if answer.status in _NO_ROUTE:
        raise NoRoute(reason)
    if answer.status in _REFUSED:
        raise Refused(reason)
    raise ServerUnreachable(reason)


def _message(body: bytes) -> str:
    """Return the message of an error in any of the usual forms, without control characters."""
    try:
        found = json.loads(body)
        error = found.get("error", found.get("message", found.get("detail", "")))
        text = error.get("message", "") if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError, RecursionError):
        return ""
    shown = "".join(sign if sign.isprintable() else " " for sign in text[:200]).strip()
    return f" ({shown})" if shown else ""


def forms(client: HttpClient, chosen: str, level: str, name: str) -> Iterator[Form]:
    """Yield the forms to try on a server, the likeliest first.

    `chosen` is the model of the address; without it, those that the server lists are tried. Raises
    ServerUnreachable.
    """
    base = client.path
    if base.endswith("/embed"):
        yield Form(base, "", is_openai=False)
        return
    routes = [f"{base}/v1/embeddings", f"{base}/embeddings"]
    if base.endswith("/embeddings"):
        routes = [base]
    elif base.endswith("/v1"):
        routes = routes[1:]
    for route in routes:
        models = (
            [chosen] if chosen else _models(client, f"{route.removesuffix('embeddings')}models")
        )
        for model in _likeliest(models, name, level)[:_MOST_MODELS] or [name]:
            yield Form(route, model, is_openai=True)
    if routes[-1] != base:
        yield Form(f"{base}/embed", "", is_openai=False)


def _likeliest(models: Sequence[str], name: str, level: str) -> list[str]:
    """Return the models with the name of the level's model, else of the level, else all.

    A server may load a model when it is asked for it.
    """
    for part in (name.rpartition("/")[2].lower(), level):
        if found := [model for model in models if part in model.lower()]:
            return found
    return list(models)


def _models(client: HttpClient, path: str) -> list[str]:
    """Return the models that a server lists; an empty list if it lists none."""
    answer = client.request(path, None, _REST_BYTES)
    if answer.status in _BUSY:
        require_answer(client.url + path, answer)
    try:
        found = json.loads(answer.body)
        return [str(model["id"]) for model in found["data"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
