"""An OpenAI-compatible server for every pipeline. :func:`create_app` makes the application, :class:`Settings` says what it allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_serve.app import create_app
    from omni_serve.settings import Settings

_MODULES = {"create_app": "app", "Settings": "settings"}

__all__ = ["Settings", "create_app"]


def __getattr__(name: str) -> Any:
    """Import what is public when it is first used: ``omni --help`` imports the plugin, and must not load a web framework."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
