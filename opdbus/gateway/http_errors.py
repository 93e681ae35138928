"""Errors as HTTP answers: a status for each class, and a body in the form of each route family."""

import json
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from opdbus import errors

# Seconds after which a client asks again: a queue that is full, a model that loads.
_RETRY_SECONDS: Final = 1
_NESTED_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_SERVER_FAULT: Final = 500
_FLAT_TYPES: Final = {
    400: "Validation",
    404: "Validation",
    413: "Validation",
    429: "Overloaded",
    503: "Unhealthy",
}
_RETRY: Final = ("Retry-After", str(_RETRY_SECONDS))
_HEADERS: Final = {
    401: ("WWW-Authenticate", "Bearer"),
    405: ("Allow", "GET, POST"),
    429: _RETRY,
    503: _RETRY,
}
# Routes of ollama, whose errors are one text, and of text-embeddings-inference, which are flat.
OLLAMA_PREFIX: Final = "/api/"
FLAT_PATHS: Final = frozenset(
    "/embed /embed_sparse /embed_all /rerank /similarity /predict /tokenize /decode /info".split()
)
# The first class that an error is an instance of gives its status.
_STATUS: Final = (
    (errors.LimitsExceeded, 429),
    (errors.UnknownObject, 404),
    (errors.AccessDenied, 403),
    (errors.NoVector, 503),
    (errors.NotKept, 404),
    (errors.TimedOut, 503),
    (errors.Cancelled, 503),
    (errors.CallerError, 400),
    (errors.ModelError, 503),
    (errors.ProviderError, 503),
    (errors.BusError, 503),
    (errors.DatabaseUnreachable, 503),
    (errors.ShuttingDown, 503),
)


@dataclass(eq=False)
class HttpError(Exception):
    """An answer with an error: its status, its sentence, and the parameter that is at fault."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None


def add_error_answers(app: FastAPI) -> None:
    """Let an application answer every error in the form of the route that was asked for."""

    @app.exception_handler(HttpError)
    async def answer_http_error(request: Request, error: HttpError) -> Response:
        return answer_error(request, error)

    @app.exception_handler(errors.OpDbusError)
    async def answer_daemon_error(request: Request, error: errors.OpDbusError) -> Response:
        return answer_error(request, HttpError(status_of(error), str(error)))

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(request: Request, error: RequestValidationError) -> Response:
        found = error.errors()[0]
        place = [str(part) for part in found["loc"] if part != "body"]
        message = f"{'.'.join(place)}: {found['msg']}" if place else f"body: {found['msg']}"
        return answer_error(request, HttpError(400, message, place[0] if place else None))

    @app.exception_handler(HTTPException)
    async def answer_no_route(request: Request, error: HTTPException) -> Response:
        answer = answer_error(request, HttpError(error.status_code, error.detail))
        answer.headers.update(error.headers or {})
        if "GET" in (allowed := answer.headers.get("Allow", "")).split(", "):
            answer.headers["Allow"] = f"{allowed}, HEAD"
        return answer

    @app.exception_handler(Exception)
    async def answer_fault(request: Request, _error: Exception) -> Response:
        # raised again behind this answer, for the log
        return answer_error(request, HttpError(500, "a fault of op-dbus itself: its log says more"))


def status_of(error: errors.OpDbusError) -> int:
    """Return the HTTP status of an error of the daemon; 500 for its own faults."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def answer_error(request: Request, error: HttpError) -> Response:
    """Return the answer with an error, in the form of the route that was asked for."""
    headers = dict([_HEADERS[error.status]] if error.status in _HEADERS else [])
    # a lone surrogate in a message cannot be sent as UTF-8; JSON escapes it
    content = json.dumps(_body(request.url.path, error))
    return Response(content, error.status, headers, "application/json")


def type_of(status: int) -> str:
    """Return the type that OpenAI's clients know for a status."""
    usual = "invalid_request_error" if status < _SERVER_FAULT else "server_error"
    return _NESTED_TYPES.get(status, usual)


def _body(path: str, error: HttpError) -> dict[str, Any]:
    """Return an error's body: flat on routes of text-embeddings-inference, a text on ollama's."""
    kind = type_of(error.status)
    if path.startswith(OLLAMA_PREFIX):
        return {"error": error.message}
    if path in FLAT_PATHS:
        flat = _FLAT_TYPES.get(error.status, "Backend")
        return {"error": error.message, "error_type": flat, "message": error.message}
    nested = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return {"error": nested}
