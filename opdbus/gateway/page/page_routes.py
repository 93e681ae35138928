"""Routes of the page: static files with a strict policy, revalidated by their digest."""

import hashlib
from importlib import resources
from typing import Final

from fastapi import APIRouter, Request, Response

router: Final = APIRouter(include_in_schema=False)

_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/fleet.js": ("fleet.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # a browser asks each time, and is answered 304
    "Cache-Control": "no-cache",
}


def _add_file(path: str, name: str, media_type: str) -> None:
    content = resources.files("opdbus.gateway.page").joinpath(name).read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": tag}

    @router.get(path)
    async def answer_file(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if tag in {each.strip().removeprefix("W/") for each in known.split(",")}:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)


for _path, (_name, _media_type) in _FILES.items():
    _add_file(_path, _name, _media_type)
