"""Makes the application: every endpoint over one pipeline, behind one guard.

::

    async with omni_core.open_async("demo") as pipe:
        app = create_app(pipe, Settings(keys={"me": "a secret of mine"}))

The parts that others add to it: ``app.state.server`` is the :class:`~omni_serve.server.Server`, ``app.state.guard`` the
:class:`~omni_serve.guard.Guard`, whose ``open_paths`` need no key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from omni_core import __version__
from omni_core.api import watched
from omni_serve import (
    chat,
    completions,
    health,
    images,
    models,
    page,
    responses,
    speech,
    speech_socket,
    transcriptions,
    voices,
)
from omni_serve.bodies import component_schemas
from omni_serve.dispatch import Dispatch
from omni_serve.errors import ApiError, api_error
from omni_serve.guard import Guard, deny
from omni_serve.rate_limits import HEADERS as RATE_HEADERS
from omni_serve.realtime import live_socket
from omni_serve.realtime import secrets as realtime_secrets
from omni_serve.realtime import socket as realtime_socket
from omni_serve.server import ServedPipe, Server
from omni_serve.settings import Settings

ROUTERS = [
    chat.router,
    completions.router,
    responses.router,
    speech.router,
    speech_socket.router,
    realtime_socket.router,
    realtime_secrets.router,
    live_socket.router,
    voices.router,
    transcriptions.router,
    images.router,
    models.router,
    health.router,
]


class Application(FastAPI):
    """The application: FastAPI's routes, wrapped in the guard."""

    warm_up: Callable[[], object] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. A mounted application gets no events of the lifespan: its warm-up begins with the first request."""
        if self.warm_up is not None and scope.get("root_path"):
            self.warm_up()
        await super().__call__(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Put the guard around everything else: unknown paths and mounted applications are behind it."""
        guard: Guard = self.state.guard
        guard.wrap(Dispatch(self, super().build_middleware_stack()))
        if not guard.origins:
            return guard
        return CORSMiddleware(
            guard,
            allow_origins=list(guard.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-request-id", "x-omni-session"],
            expose_headers=["x-request-id", "x-omni-ignored", "retry-after", *RATE_HEADERS],
        )


def create_app(pipe: ServedPipe, settings: Settings | None = None) -> Application:
    """Return the ASGI application that serves a running pipeline.

    Args:
        pipe: what :func:`omni_core.open_async` yields. It is not closed here.
        settings: by default: no keys, no uploads, no URLs, no web pages of other origins.

    Raises:
        ConfigError: a file of the settings cannot be used.
    """
    settings = settings or Settings()
    server = Server.make(pipe, settings)

    warming: list[asyncio.Future[None]] = []

    def begin_warm_up() -> None:
        if not warming:
            warming.append(watched(health.warm_up(server), "the warm-up"))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        begin_warm_up()
        try:
            yield
        finally:
            for each in warming:
                each.cancel()

    app = Application(
        title="omni",
        version=__version__,
        summary=f"The pipeline {pipe.config.resolved_name}, for OpenAI's clients",
        openapi_url="/openapi.json" if settings.docs else None,
        docs_url=None,  # FastAPI's page runs scripts of another site
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.warm_up = begin_warm_up
    app.state.server = server
    app.state.guard = Guard(server)
    routers = list(ROUTERS)
    if settings.docs:
        routers.append(page.docs_router)
        app.state.guard.open_paths |= page.DOCS_PATHS
    if settings.page:
        routers.append(page.router)
        app.state.guard.open_paths |= page.OPEN_PATHS
    for router in routers:
        app.router.routes.extend(router.routes)  # not included: that would ask router by router at every request
    app.router.default = _unknown_socket(app.router.default)
    add_error_handlers(app)
    _describe(app)
    return app


def _unknown_socket(others: ASGIApp) -> ASGIApp:
    """Answer a WebSocket on an unknown path with 404: Starlette's 403 looks like a problem of the key."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await others(scope, receive, send)
            return
        message = f"There is no WebSocket {scope['path']}."
        await deny(ApiError(404, message, code="not_found"), scope, receive, send)

    return answer


def add_error_handlers(app: FastAPI) -> None:
    """Answer every exception in OpenAI's form."""

    async def answer(request: Request, error: Exception) -> Response:
        return api_error(error).response()

    async def answer_unexpected(request: Request, error: Exception) -> Response:
        request.scope["omni.answered"] = True  # Starlette raises it again, for the guard
        return api_error(error).response()

    async def answer_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        what = f"{request.method} {request.scope['path']}"
        message = {404: f"There is no {what}.", 405: f"{what} is not allowed."}.get(
            error.status_code, str(error.detail)
        )
        made = ApiError(error.status_code, message, code=code).response()
        made.headers.update(error.headers or {})
        return made

    async def answer_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        name = ".".join(str(each) for each in first["loc"][1:])
        return ApiError(400, f"{name}: {first['msg']}", param=name or None, code="invalid_value").response()

    for kind in (ApiError, ValidationError):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(Exception, answer_unexpected)
    app.add_exception_handler(HTTPException, answer_http)
    app.add_exception_handler(RequestValidationError, answer_invalid)


def _describe(app: FastAPI) -> None:
    """Add to the OpenAPI document what the routes read by themselves: bodies, keys, and the form of errors."""
    made: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made()
            components = document.setdefault("components", {})
            error = {"type": "object", "properties": {"error": {"type": "object"}}, "required": ["error"]}
            components.setdefault("schemas", {}).update(component_schemas() | {"Error": error})
            guard: Guard = app.state.guard
            if guard.asks_for_keys:
                components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"key": []}]
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    if guard.asks_for_keys and path in guard.open_paths:
                        operation["security"] = []
                    _describe_errors(operation)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_errors(operation: dict[str, Any]) -> None:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation["responses"].pop("422", None)
    operation["responses"]["default"] = {"description": "An error in OpenAI's form", "content": content}
