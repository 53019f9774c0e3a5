"""Import torch beside the event loop: it takes a second or more, and most processes never need it.

A caller that decodes a value with tensors checks :func:`is_here` first and awaits :func:`bring` if it is false.
:func:`begin` starts the import ahead of the first tensor.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from omni_core.protocol.tensors import import_torch

_lock = threading.Lock()
_coming: Future[None] | None = None


def is_here() -> bool:
    """Return whether tensors can be decoded at once. (A half imported torch is in ``sys.modules`` as well.)"""
    return _coming is not None and _coming.done() and _coming.exception() is None


async def bring() -> None:
    """Return when torch is imported.

    Raises:
        ImportError: torch is not installed, or it is broken.
    """
    await asyncio.shield(asyncio.wrap_future(begin()))


def begin() -> Future[None]:
    """Begin the import in a thread unless it has begun; the future is done when it is. After a failure it is tried again."""
    global _coming
    with _lock:
        if _coming is None or (_coming.done() and _coming.exception() is not None):
            _coming = Future()
            threading.Thread(target=_import, args=(_coming,), name="import-torch", daemon=True).start()
        return _coming


def _import(coming: Future[None]) -> None:
    try:
        import_torch()
    except BaseException as error:
        coming.set_exception(error if isinstance(error, ImportError) else ImportError(f"torch: {error}"))
    else:
        coming.set_result(None)
