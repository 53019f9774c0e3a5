"""Serves the page's files, read and compressed once, and the pipeline as JSON for its graph."""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from omni_serve.bodies import RawRoute, json_response
from omni_serve.errors import ApiError
from omni_serve.page.graph import snapshot
from omni_serve.server import server_of

router = APIRouter(route_class=RawRoute, tags=["page"])

TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The page loads nothing from elsewhere, runs no inline script, reads no text as HTML, and is shown in no frame."""

_HEADERS = {
    "content-security-policy": POLICY,
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}


@cache
def contents() -> dict[str, tuple[bytes, str]]:
    """Return every file of the page by name, with its entity tag."""
    found = {}
    for each in files("omni_serve.page").joinpath("static").iterdir():
        if each.name.rpartition(".")[2] in TYPES:
            data = each.read_bytes()
            found[each.name] = (data, f'"{sha256(data).hexdigest()[:16]}"')
    return found


OPEN_PATHS = frozenset({"/", *(f"/page/{name}" for name in contents())})

docs_router = APIRouter(route_class=RawRoute)

_DOCS_FILES = ("docs.js", "docs.css", "api.js", "icon.svg")

DOCS_PATHS = frozenset({"/docs", *(f"/page/{name}" for name in _DOCS_FILES)})


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """Return the page."""
    return _file(request, "index.html")


@router.get("/page/{name}", include_in_schema=False)
async def page_file(request: Request) -> Response:
    """Return one of the page's files."""
    return _file(request, request.path_params["name"])


@docs_router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """Return the page that shows the description of the API; it asks for a key to read it."""
    return _file(request, "docs.html")


async def _docs_file(request: Request) -> Response:
    return _file(request, request.url.path.rpartition("/")[2])


for _name in _DOCS_FILES:  # also where the page at / is not served
    docs_router.add_api_route(f"/page/{_name}", _docs_file, methods=["GET"], include_in_schema=False)


@router.get("/v1/omni/pipeline")
async def pipeline(request: Request) -> Response:
    """Return the pipeline as a graph: its stages with their state and counters, and its edges with what went over them."""
    server = server_of(request)
    return json_response(snapshot(server, await server.statistics()))


@cache
def _compressed(name: str) -> bytes:
    return gzip.compress(contents()[name][0], mtime=0)


def _file(request: Request, name: str) -> Response:
    if name not in contents():
        raise ApiError(404, f"There is no GET {request.url.path}.", code="not_found")
    data, tag = contents()[name]
    headers = {**_HEADERS, "etag": tag}
    if "gzip" in request.headers.get("accept-encoding", ""):
        data = _compressed(name)
        headers |= {"content-encoding": "gzip", "etag": f'{tag[:-1]}-gzip"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=TYPES[name.rpartition(".")[2]])
