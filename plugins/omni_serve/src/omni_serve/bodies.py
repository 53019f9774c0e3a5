"""Reads the bodies of requests, bounded, and describes them in the OpenAPI document."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import secrets
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from attrs import frozen
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from omni_core.api import shown
from omni_serve.errors import ApiError, invalid
from omni_serve.ignored import check_inside
from omni_serve.json_input import read_json
from omni_serve.server import server_of

M = TypeVar("M", bound=BaseModel)

_ENCODER = json.JSONEncoder(separators=(",", ":"))

_STEP = 3 * 2**18  # bytes that are encoded at once: a multiple of 3, so that the texts can be joined

MODELS: dict[str, type[BaseModel]] = {}
"""The models of bodies, for the OpenAPI document."""


class RawRoute(APIRoute):
    """A route whose handler reads the request by itself: without FastAPI's own reading of parameters, which costs more than the handler."""

    @property
    def handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The endpoint."""
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return endpoint

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint as it is."""
        return self.handler


async def body_of(request: Request, model: type[M], *, media: Collection[str] = (), empty: M | None = None) -> M:
    """Return the JSON body of a request. Unknown fields of the models in it are ignored; those of its own are the caller's.

    Args:
        media: its fields that may hold media: only with some the body may have ``limits.body_mib``.
        empty: is returned where there is no body.

    Raises:
        ApiError: 400, it is no JSON; 413, it is too large. pydantic.ValidationError: it is of another form; the application answers that.
    """
    kind = request.headers.get("content-type", "application/json")
    is_json = kind.startswith("application/json") or "+json" in kind
    limits = server_of(request).settings.limits
    body = await _content(request, limits.body_mib if media else limits.text_body_mib) if is_json or empty else None
    if not body and empty is not None:
        return empty
    if body is None or not is_json:
        raise invalid(f"The body must be JSON (content-type: application/json), is {shown(kind)}", code="invalid_json")
    read = await read_json(body, model.model_validate_json, limits, media)
    check_inside(read)
    return read


async def _content(request: Request, most_mib: float) -> bytes:
    """Return the body, which the request does not keep: it is large, and needed once. The guard bounds the time that it takes."""
    most, body = int(most_mib * 2**20), io.BytesIO()
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise too_large(int(length), most_mib)
    async for piece in request.stream():
        body.write(piece)
        if body.tell() > most:
            raise too_large(body.tell(), most_mib)
    return body.getvalue()  # not a copy


def too_large(size: int, most_mib: float) -> ApiError:
    """Return the error of a body that is over a limit."""
    return ApiError(
        413, f"The body has {size / 2**20:.1f} MiB or more; the limit is {most_mib:g} MiB.", code="too_large"
    )


@frozen
class Base64:
    """Bytes that an answer has as text in base64: encoded off the event loop, and not searched for what JSON escapes."""

    data: bytes


def dumps(data: Any) -> str:
    """Return compact JSON."""
    return _ENCODER.encode(data)


async def encoded(data: Any) -> bytes:
    """Return compact JSON of data with :class:`Base64` in it."""
    found: list[bytes] = []
    mark = secrets.token_hex(16)

    def remember(value: Any) -> str:
        assert isinstance(value, Base64)
        found.append(value.data)
        return mark

    text = json.JSONEncoder(separators=(",", ":"), default=remember).encode(data)
    pieces = iter([each.encode() for each in text.split(mark)])
    made = [next(pieces)]
    for each in found:
        made += [await asyncio.to_thread(_base64, each), next(pieces)]
    return await asyncio.to_thread(b"".join, made)


def _base64(data: bytes) -> bytes:
    """Encode in steps: one call would hold the interpreter's lock for all of it."""
    steps = range(0, len(data), _STEP)
    return b"".join([base64.b64encode(data[start : start + _STEP]) for start in steps])


def json_response(data: Any, status: int = 200) -> Response:
    """Return an answer in JSON."""
    return Response(dumps(data), status, media_type="application/json")


def schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return what the OpenAPI document says about a JSON body."""
    MODELS[model.__name__] = model
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def component_schemas() -> dict[str, Any]:
    """Return the schemas of all bodies and their parts by name."""
    found: dict[str, Any] = {}
    for name, model in MODELS.items():
        made = model.model_json_schema(ref_template="#/components/schemas/{model}")
        found |= made.pop("$defs", {})
        found[name] = made
    return found
