"""Reads the bodies of requests, bounded, and describes them in the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from omni_serve.errors import invalid

M = TypeVar("M", bound=BaseModel)

_ENCODER = json.JSONEncoder(separators=(",", ":"))

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


async def body_of(request: Request, model: type[M]) -> M:
    """Return the JSON body of a request. The guard bounds its size while it is read.

    Raises:
        ApiError: 400, it is no JSON, or of another form. pydantic.ValidationError: which the application turns into that.
    """
    kind = request.headers.get("content-type", "application/json")
    if not kind.startswith("application/json") and "+json" not in kind:
        raise invalid(f"The body must be JSON (content-type: application/json), is {kind!r:.80}", code="invalid_json")
    body = await request.body()
    if _may_have_no_number(body) and not _is_json(body):
        raise invalid("The body is not valid JSON: NaN and Infinity are no numbers of JSON", code="invalid_json")
    return model.model_validate_json(body)


def _may_have_no_number(body: bytes) -> bool:
    """Return whether a value seems to be ``NaN`` or ``Infinity``; media in base64 have such letters, too, but nothing before them."""
    for word in (b"NaN", b"Infinity"):
        at = body.find(word)
        while at >= 0:
            before = body[max(0, at - 64) : at].rstrip(b" \t\r\n-")
            if not before or before[-1:] in b":[,":
                return True
            at = body.find(word, at + 1)
    return False


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return not isinstance(error, NoNumberError)  # what else is wrong with it is told by its model
    return True


def _refuse(name: str) -> None:
    raise NoNumberError(name)


class NoNumberError(ValueError):
    """A number that JSON has not, which Python's and pydantic's readers take."""


def dumps(data: Any) -> str:
    """Return compact JSON."""
    return _ENCODER.encode(data)


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
