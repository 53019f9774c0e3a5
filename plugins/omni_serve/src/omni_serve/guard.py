"""The one gate before every route, HTTP and WebSocket, known or not: keys and scopes, sizes, request ids, counts.

It is ASGI middleware and not a dependency of routes: a route that somebody adds later, or mounts, is behind it too.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_serve.auth import ANYONE, Key, presented
from omni_serve.bodies import too_large
from omni_serve.body_budget import Held
from omni_serve.errors import ApiError, api_error
from omni_serve.ignored import HEADER, collect
from omni_serve.logs import Audit, access_log, of_request, write
from omni_serve.paths import route_path
from omni_serve.server import Server
from omni_serve.streams import COMPLETE

logger = logging.getLogger(__name__)

_SAFE_ID = re.compile(rb"[\w.:-]{1,128}")

_READS = ("GET", "HEAD", "OPTIONS")

_NOSNIFF = (b"x-content-type-options", b"nosniff")
_OF_THE_PAGE = ("/page/", "/v1/omni/pipeline")
"""Browsers take an answer for what it says that it is."""

_BODY_SECONDS = 60.0
"""The time that a client has to send a whole body."""


class Guard:
    """Lets requests through to the application that it wraps.

    Args:
        needs: the scope for a method and a path; where it is given, all that changes something is audited.
        keyless: whoever reaches it may do everything: a Unix socket of its owner's.
        needs_key: also where the server itself asks for none.
        hosts, origins: by default those of the settings.

    Attributes:
        open_paths: need no key. Where the application is mounted, paths are those below it.
        origins: of web pages that may call.
    """

    def __init__(
        self,
        server: Server,
        needs: Callable[[str, str], str] | None = None,
        *,
        keyless: bool = False,
        needs_key: bool = False,
        hosts: Iterable[str] | None = None,
        origins: Iterable[str] | None = None,
    ) -> None:
        self._app: ASGIApp | None = None
        self._needs, self._audits_all = needs or scope_needed, needs is not None
        self._audit = Audit()
        self._keyless, self._needs_key = keyless, needs_key
        self.origins = tuple(server.settings.cors_origins if origins is None else origins)
        self._hosts = {each.encode() for each in (server.settings.hosts if hosts is None else hosts)}
        self._origins = {each.encode() for each in self.origins}
        self._server = server
        self._most = int(server.settings.limits.body_mib * 2**20)
        self.open_paths = {"/health", "/health/ready"}
        if server.settings.public_metrics:
            self.open_paths.add("/metrics")

    def wrap(self, app: ASGIApp) -> None:
        """Guard this application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer with an error."""
        assert self._app is not None
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None
        begun = time.perf_counter()
        scope["omni.request_id"] = _request_id(scope).decode()
        try:
            if self._server.admission.draining:
                raise self._server.admission.shutting_down()
            scope["omni.key"] = self._key(scope)
        except ApiError as error:
            await deny(error, scope, receive, send)
            self._done(scope, error.status, begun, error)
            return
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.accept":
                status = 101
                message["headers"] = [*message.get("headers", ()), *self._rates(scope, scope["omni.key"])]
            elif not status:
                status = message.get("status", 403)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            self._done(scope, status, begun)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None
        begun = time.perf_counter()
        identity = _request_id(scope)
        scope["omni.request_id"] = identity.decode()
        status, held, key = 0, False, None
        body = scope["omni.body"] = Held(self._server.body_budget)
        refused: ApiError | None = None
        ignored = collect()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.get("headers", ())
                added = [_NOSNIFF, (b"x-request-id", identity)]
                if ignored:
                    added.append((HEADER, ", ".join(ignored).encode()))
                added += self._rates(scope, key)
                message["headers"] = [*headers, *(added[1:] if _NOSNIFF in headers else added)]
            await send(message)

        try:
            scope["omni.key"] = key = self._key(scope)
            body.key = key.name if key is not None else ""
            if key is not None and scope["method"] == "POST":
                self._server.admission.count(key)
                held = self._server.admission.hold(key)
            await self._app(scope, self._bounded(scope, receive, body), send_with_id)
        except ApiError as error:
            refused = error
            if not status:
                await error.response()(scope, receive, send_with_id)
        except Exception as error:
            if scope.get("omni.answered"):
                return
            if status:
                raise
            await api_error(error).response()(scope, receive, send_with_id)
        finally:
            body.give_back()
            if held and key is not None:
                self._server.admission.release(key)
            status = scope.get("omni.status") or status
            taken = self._done(scope, status, begun, refused)
            self._server.metrics.answered(
                getattr(scope.get("route"), "path", "other"), status, taken, key.name if key is not None else None
            )

    def _done(self, scope: Scope, status: int, begun: float, refused: ApiError | None = None) -> float:
        """Log a request that is over; return the seconds that it took."""
        now, identity = time.perf_counter(), scope["omni.request_id"]
        if refused is not None and refused.status in (401, 403):
            self._audit.refused(scope, identity, refused.code or "", now)
        elif self._is_audited(scope):
            self._audit.done(scope, identity, status)
        asked = of_request(scope)
        shown = asked["route"].startswith(_OF_THE_PAGE) and status < 400  # while the page is open, several a second
        if access_log.isEnabledFor(logging.INFO) and not shown:
            write(access_log, "request", identity, **asked, status=status, seconds=round(now - begun, 4))
        return now - begun

    def _is_audited(self, scope: Scope) -> bool:
        method = scope.get("method", "GET")
        return method not in _READS and (self._audits_all or self._needs(method, route_path(scope)) == "voices")

    def _key(self, scope: Scope) -> Key | None:
        """Return the key of a request; ``None`` for an open path without one."""
        ring, path = self._server.keys, route_path(scope)
        self._check_caller(scope)
        if self._is_open:
            return ANYONE
        given = presented(scope["headers"])
        key = ring.find(given) if given else None
        if key is None:
            if path in self.open_paths:
                return None
            if given:
                raise ApiError(401, "The API key is not valid.", code="invalid_api_key")
            raise ApiError(401, "An API key is needed: send 'Authorization: Bearer KEY'.", code="missing_api_key")
        needed = self._needs(scope.get("method", "GET"), path)
        if not key.may(needed) and path not in self.open_paths:
            raise ApiError(
                403,
                f"The key {key.name!r} has no scope {needed!r}.",
                code="insufficient_scope",
                details={"scope": needed},
            )
        if key.expires is not None and path not in (*CONVERSATIONS, *self.open_paths):
            paths = " and ".join(CONVERSATIONS)
            raise ApiError(403, f"A short-lived key opens {paths} only.", code="insufficient_scope")
        return key

    def _rates(self, scope: Scope, key: Key | None) -> list[tuple[bytes, bytes]]:
        """Return what an answer tells of its key's limits per minute."""
        if key is None or not route_path(scope).startswith("/v1/"):
            return []
        return self._server.admission.rate_headers(key)

    @property
    def asks_for_keys(self) -> bool:
        """Return whether requests need a key, but for open paths."""
        return not self._is_open

    @property
    def _is_open(self) -> bool:
        return self._keyless or (self._server.keys.is_open and not self._needs_key)

    def _check_caller(self, scope: Scope) -> None:
        """Refuse web pages of other origins where no key protects the server, and names of hosts that are not ours.

        Browsers send forms and open WebSockets across origins without asking, and follow a name that leads to this machine.
        """
        if not (self._is_open or self._hosts):
            return
        host = origin = site = b""
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
        if self._hosts and host and re.sub(rb":\d+$", b"", host) not in self._hosts:
            raise ApiError(421, "This server is not called by that name (see the setting `hosts`).", code="wrong_host")
        if not self._is_open:
            return
        if origin:
            foreign = origin not in self._origins and origin.partition(b"://")[2] != host
        else:  # browsers send none with what a page embeds, or links to: the pages themselves
            foreign = site in (b"cross-site", b"same-site") and route_path(scope) not in self.open_paths
        if foreign:
            raise ApiError(403, "Web pages of other origins may not use this server.", code="cross_origin")

    def _bounded(self, scope: Scope, receive: Receive, held: Held) -> Receive:
        """Return ``receive``, which raises for a body that is too large or comes too slowly."""
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if length.isdigit() and int(length) > self._most:
            raise self._too_large(int(length))
        left, whole, until = self._most, False, 0.0
        complete: Callable[[], bool] = scope.get("extensions", {}).get(COMPLETE, {}).get("complete", bool)

        async def bounded() -> Message:
            nonlocal left, whole, until
            if whole:
                return await receive()
            if complete():
                message = await receive()
            else:
                if not until:
                    await held.wait(int(length) if length.isdigit() else 0)
                if not until or held.is_live:
                    until = asyncio.get_running_loop().time() + _BODY_SECONDS
                try:
                    async with asyncio.timeout_at(until):
                        message = await receive()
                except TimeoutError:
                    problem = "Nothing of the body has come for" if held.is_live else "The body took longer than"
                    raise ApiError(408, f"{problem} {_BODY_SECONDS:g} s.", code="body_timeout") from None
            whole = not message.get("more_body", False)
            if size := len(message.get("body", b"")):
                left -= size
                if left < 0:
                    raise self._too_large(self._most - left)
                held.take(size)
            return message

        return bounded

    def _too_large(self, size: int) -> ApiError:
        return too_large(size, self._server.settings.limits.body_mib)


CONVERSATIONS = ("/v1/realtime", "/v1/live/sessions")
"""The paths that a short-lived key opens, which a browser holds."""


def scope_needed(method: str, path: str) -> str:
    """Return the scope that a request needs."""
    if path == "/metrics":
        return "metrics"
    if method in ("POST", "DELETE") and path.startswith(("/v1/audio/voices", "/v1/audio/voice_consents")):
        return "voices"
    return "inference"


def _request_id(scope: Scope) -> bytes:
    """Return the client's own id if it is harmless, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SAFE_ID.fullmatch(value):
            return bytes(value)
    return b"req_" + secrets.token_hex(12).encode()


async def deny(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a WebSocket: with the error as an answer of HTTP where the server can do that."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.message[:120]})
        return
    await error.response()(scope, receive, send)
