"""Calls the endpoints that read requests by themselves directly: the way through FastAPI's stack costs more than an answer.

What that stack does for other endpoints is done elsewhere for these: the guard answers exceptions and bounds bodies, and no
dependency has to be closed.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from omni_serve.bodies import RawRoute
from omni_serve.paths import route_path


class Dispatch:
    """Calls the endpoint of a :class:`~omni_serve.bodies.RawRoute` whose path has no parameters; the rest goes through the stack.

    Args:
        app: whose routes they are, with everything that was added to it: its further middleware, and routes that come first, are
            for all requests.
        stack: FastAPI's own.
    """

    def __init__(self, app: FastAPI, stack: ASGIApp) -> None:
        self._stack = stack
        self._routes: dict[tuple[str, str], RawRoute] = {}
        for route in app.routes if not app.user_middleware else ():
            if isinstance(route, RawRoute) and "{" not in route.path:
                for method in route.methods or ():
                    if _first(app, method, route.path) is route:
                        self._routes[method, route.path] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. What an endpoint raises is for the guard."""
        route = None
        if scope["type"] == "http" and "fastapi.telemetry" not in scope:
            route = self._routes.get((scope["method"], route_path(scope)))
        if route is None:
            await self._stack(scope, receive, send)
            return
        scope["route"], scope["endpoint"], scope["path_params"] = route, route.endpoint, {}
        response = await route.handler(Request(scope, receive, send))
        await response(scope, receive, send)


def _first(app: FastAPI, method: str, path: str) -> object:
    """Return the route that answers a request."""
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    return next((route for route in app.routes if route.matches(scope)[0] == Match.FULL), None)
