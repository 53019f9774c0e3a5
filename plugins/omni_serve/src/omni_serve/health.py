"""Health: alive, ready by unit, the version, and metrics. Ready is more than alive: warm, and every stage served by a unit."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Any

from attrs import evolve
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from omni_core import __version__
from omni_core.api import OmniError, OmniRequest
from omni_core.runtime_api import message_of
from omni_serve.bodies import json_response
from omni_serve.calls import as_generator
from omni_serve.server import Server, server_of

logger = logging.getLogger(__name__)

router = APIRouter(tags=["operation"])


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health() -> Response:
    """Say that the server is alive."""
    return json_response({"status": "ok"})


@router.head("/health/ready", include_in_schema=False)
@router.get("/health/ready")
async def ready(request: Request) -> Response:
    """Say if requests are served: 200, or 503. With a key, the units are listed."""
    server = server_of(request)
    complete, units = server.units.report()
    status = "ready"
    if server.admission.draining:
        status = "draining"
    elif not server.warm:
        status = "warming up"
    elif not complete:
        status = "degraded"
    answer: dict[str, Any] = {"status": status}
    if request.scope["omni.key"] is not None:
        answer["units"] = units
        if server.warm_up_failure:
            answer["warm_up"] = server.warm_up_failure
    return json_response(answer, 200 if status == "ready" else 503)


@router.get("/version")
async def version(request: Request) -> Response:
    """Return the versions and the name of the pipeline."""
    return json_response({"version": __version__, "pipeline": server_of(request).pipe.config.resolved_name})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return metrics in Prometheus' text format."""
    server = server_of(request)
    text = server.metrics.exposition(await server.statistics(), server.warm and server.units.report()[0])
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def warm_up(server: Server) -> None:
    """Run the requests that the pipeline declares for this, then call the server warm.

    A failure is logged and shown by ``/health/ready``: the server is ready, for it may concern only some requests.
    """
    if not server.settings.warm_up:
        server.warm = True
        return
    for number, declared in enumerate(server.interface.warmup):
        try:
            request = evolve(OmniRequest(), **declared)
            async with aclosing(as_generator(server.pipe.stream(request))) as events:
                async for _ in events:
                    pass
        except Exception as error:
            if server.admission.draining:
                return
            known = isinstance(error, OmniError)
            server.warm_up_failure = f"warm-up request {number} failed: {message_of(error, with_type=not known)}"
            logger.warning("%s", server.warm_up_failure, exc_info=None if known else error)
    server.warm = True
