"""The path of a request below the place where the application is mounted."""

from __future__ import annotations

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """Return the path that routes are compared with: ``path`` without the ``root_path`` of a mount, or of a proxy (ASGI, HTTP 2.3)."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    rest = path[len(root) :]
    return rest if path.startswith(root) and rest[:1] in ("", "/") else path
