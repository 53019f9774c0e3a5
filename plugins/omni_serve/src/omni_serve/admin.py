"""The operator's endpoints, on a port or a Unix socket of their own: drain, restart a unit, change stages, flush, log level, profiles.

They are an application apart, so that no mistake in a path or a proxy opens them to clients. Keys need the scope ``admin``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from omni_core.api import ConfigError, OmniError, did_you_mean, shown
from omni_core.runtime_api import Change
from omni_serve.app import Application, add_error_handlers
from omni_serve.auth import describe
from omni_serve.bodies import body_of, json_response
from omni_serve.errors import ApiError, invalid
from omni_serve.guard import Guard
from omni_serve.server import Server, server_of


class LogLevel(BaseModel):
    """The level of a logger; by default of all of omni."""

    model_config = ConfigDict(extra="forbid")

    level: Literal["debug", "info", "warning", "error"]
    logger: str = "omni_core"


class Replacement(BaseModel):
    """The fields of a stage to change, by path; with ``wait``, the answer comes when the old units have ended."""

    model_config = ConfigDict(extra="forbid")

    set: dict[str, Any] = {}
    wait: bool = True


class Scaling(Replacement):
    """The number of replicas; ``set`` has ``gpu`` and ``host`` at most."""

    replicas: int


class Profile(BaseModel):
    """The stages whose torch operations are recorded too."""

    model_config = ConfigDict(extra="forbid")

    torch: list[str] = []


def create_admin_app(server: Server, *, keyless: bool = False, hosts: Iterable[str] = ()) -> Application:
    """Return the application for the operator of a server. It needs a key also where the server asks for none.

    Args:
        keyless: on a Unix socket, which only its owner can open.
        hosts: the host names by which it may be called; empty: any.
    """
    app = Application(title="omni admin", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.server = server
    app.state.guard = Guard(
        server, needs=lambda method, path: "admin", keyless=keyless, needs_key=not keyless, hosts=hosts, origins=()
    )
    add_error_handlers(app)
    _add_routes(app)
    return app


def _add_routes(app: FastAPI) -> None:
    app.add_api_route("/units", units, methods=["GET"])
    app.add_api_route("/units/{name}/restart", restart, methods=["POST"])
    app.add_api_route("/stages/{name}/replace", replace, methods=["POST"])
    app.add_api_route("/stages/{name}/scale", scale, methods=["POST"])
    app.add_api_route("/keys", keys, methods=["GET"])
    app.add_api_route("/keys/reload", reload_keys, methods=["POST"])
    app.add_api_route("/drain", drain, methods=["POST"])
    app.add_api_route("/caches/flush", flush, methods=["POST"])
    app.add_api_route("/log-level", log_level, methods=["PUT"])
    app.add_api_route("/profile/start", start_profile, methods=["POST"])
    app.add_api_route("/profile/stop", stop_profile, methods=["POST"])


async def units(request: Request) -> Response:
    """Return every unit with its processes, and the queue."""
    server = server_of(request)
    admission = server.admission
    queue = {"running": admission.running, "waiting": admission.waiting, "draining": admission.draining}
    return json_response({"units": server.pipe.health(), "queue": queue})


async def restart(request: Request, name: str) -> Response:
    """End the processes of a unit; they are started again. What they held fails, or is run again as ``retries`` allows."""
    server = server_of(request)
    health = server.pipe.health()
    unit = health.get(name)
    if unit is None:
        raise ApiError(404, f"No unit is called {shown(name)}{did_you_mean(name, health)}", code="unit_not_found")
    config = server.pipe.config
    remote = [stage for stage in unit["stages"] if config.stage(stage).host is not None]
    if remote:
        raise invalid(f"The stage {remote[0]} runs on the host {config.stage(remote[0]).host}; restart it there.")
    if any(pid and _parent(pid) not in (None, os.getpid()) for pid in unit["pids"]):
        raise invalid(f"The unit {name} runs on another machine; replace it: `omni stage replace`.")
    for pid in unit["pids"]:
        if pid:
            with suppress(ProcessLookupError):  # it has ended by itself in the meantime
                os.kill(pid, signal.SIGTERM)
    return json_response({"unit": name, "pids": unit["pids"]}, 202)


def _parent(pid: int) -> int | None:
    """Return the parent of a process of this machine; ``None``: there is none of this number."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


async def replace(request: Request, name: str) -> Response:
    """Replace the units of a stage while requests run."""
    asked = await body_of(request, Replacement, empty=Replacement())
    return await _operate(server_of(request).pipe.replace(name, asked.set, wait=asked.wait))


async def scale(request: Request, name: str) -> Response:
    """Change the number of replicas of a stage while requests run."""
    asked = await body_of(request, Scaling)
    return await _operate(server_of(request).pipe.scale(name, asked.replicas, asked.set, wait=asked.wait))


async def _operate(operation: Coroutine[Any, Any, Change]) -> Response:
    try:
        change = await operation
    except ConfigError as error:
        raise invalid(str(error)) from None
    except OmniError as error:
        raise ApiError(409, str(error), code="not_changed") from None
    return json_response({"group": change.group, "started": change.started, "ended": change.ended})


async def keys(request: Request) -> Response:
    """List the keys, without what opens anything."""
    return json_response({"keys": [describe(key) for key in server_of(request).keys.keys.values()]})


async def reload_keys(request: Request) -> Response:
    """Read the file of keys again, as at SIGHUP."""
    ring = server_of(request).keys
    try:
        await asyncio.to_thread(ring.reload)
    except ConfigError as error:
        raise ApiError(409, str(error), code="keys_not_read") from None
    return json_response({"keys": sorted(ring.keys)})


async def drain(request: Request) -> Response:
    """Refuse new requests from now on, and answer when the running ones have ended."""
    server = server_of(request)
    ended = await server.admission.drain(server.settings.drain_seconds)
    return json_response({"drained": ended, "running": server.admission.running}, 200 if ended else 202)


async def flush(request: Request) -> Response:
    """Forget what the server and the stages keep between requests: spoken answers, responses, cached prefixes, encoded media and voices."""
    server = server_of(request)
    stages = await server.pipe.flush_caches()
    kept = {
        "spoken_answers": server.spoken.clear(), "items": server.items.clear(), "responses": server.responses.clear()
    }  # fmt: skip
    return json_response({**kept, "stages": stages})


async def log_level(request: Request) -> Response:
    """Set the level of a logger of this process."""
    asked = await body_of(request, LogLevel)
    logging.getLogger(asked.logger).setLevel(asked.level.upper())
    return json_response({"logger": asked.logger, "level": asked.level})


async def start_profile(request: Request) -> Response:
    """Record what happens to requests in every process."""
    asked = await body_of(request, Profile, empty=Profile())
    try:
        await server_of(request).pipe.start_profile(asked.torch)
    except ConfigError as error:
        raise invalid(str(error), "torch") from None
    except OmniError as error:
        raise ApiError(409, str(error), code="profile_running") from None
    return json_response({"recording": True})


async def stop_profile(request: Request) -> Response:
    """Stop recording; the answer is the trace, which Perfetto opens."""
    handle, name = await asyncio.to_thread(tempfile.mkstemp, ".json", "omni-trace-")
    os.close(handle)
    try:
        await server_of(request).pipe.stop_profile(name)
    except BaseException as error:
        Path(name).unlink()
        if isinstance(error, OmniError):
            raise ApiError(409, str(error), code="no_profile") from None
        raise
    gone = BackgroundTask(Path(name).unlink)
    return FileResponse(name, media_type="application/json", filename="trace.json", background=gone)
