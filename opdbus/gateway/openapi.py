"""The OpenAPI description of an application, with the errors of each family of routes."""

from functools import cache
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from opdbus.gateway.http_errors import FLAT_PATHS, OLLAMA_PREFIX

_ABOUT: Final = (
    "A host's objects, what changed, and vectors of texts. Of the writing routes only those of the"
    " writing socket exist: see docs/http.md."
)
_ERRORS: Final = {
    "400": "The request is at fault; the message says where.",
    "401": "TCP: the token is missing or wrong.",
    "403": "The caller may not do this.",
    "404": "There is no such object, route or level.",
    "405": "The route has no such method.",
    "408": "The body came too slowly.",
    "413": "The body or the request is too large.",
    "421": "TCP: the server has no such name.",
    "424": "The level has no such vectors.",
    "429": "Too many requests, or an answer that would be too large.",
    "431": "The path and the headers are too large.",
    "500": "A fault of op-dbus itself: its log says more.",
    "503": "The daemon, its model or a place is not there now.",
    "505": "The version of HTTP is not served.",
}
_RETRIED: Final = ("429", "503")
_TEXT: Final = {"type": "string"}
_MAYBE: Final = {"type": ["string", "null"]}
_NESTED: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": _TEXT, "type": _TEXT, "param": _MAYBE, "code": _MAYBE},
        }
    },
}
_FLAT: Final = {
    "type": "object",
    "required": ["error", "error_type", "message"],
    "properties": {"error": _TEXT, "error_type": _TEXT, "message": _TEXT},
}
_PLAIN: Final = {"type": "object", "required": ["error"], "properties": {"error": _TEXT}}
_FORMS: Final = {"Error": _NESTED, "FlatError": _FLAT, "PlainError": _PLAIN}
_RETRY_AFTER: Final = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}


def describe_routes(app: FastAPI) -> None:
    """Let an application describe its routes with all their answers."""

    @cache
    def description() -> dict[str, Any]:
        found = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version=app.openapi_version,
            description=_ABOUT,
            routes=app.routes,
        )
        for path, operations in found["paths"].items():
            for operation in operations.values():
                # what is not valid is answered with 400
                operation["responses"].pop("422", None)
                for status, text in _ERRORS.items():
                    operation["responses"].setdefault(status, _error(path, status, text))
        components = found.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas.update(_FORMS)
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        # a unix socket needs no token
        found["security"] = [{}, {"token": []}]
        return found

    # FastAPI's way of doing this
    app.openapi = description  # type: ignore[method-assign]


def _error(path: str, status: str, text: str) -> dict[str, Any]:
    form = "Error"
    if path.startswith(OLLAMA_PREFIX):
        form = "PlainError"
    elif path in FLAT_PATHS:
        form = "FlatError"
    schema = {"$ref": f"#/components/schemas/{form}"}
    answer = {"description": text, "content": {"application/json": {"schema": schema}}}
    return answer | ({"headers": _RETRY_AFTER} if status in _RETRIED else {})
