"""torch, imported beside the event loop when the first tensor arrives: it takes a second or more, and most processes never need it.

Who decodes a value that holds tensors asks :func:`is_here` first and awaits :func:`bring` where it is not. The thread loads
the large libraries before the import does: the loader of Python's extension modules would keep every other thread waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import importlib.util
import os
import threading
from concurrent.futures import Future
from pathlib import Path

_LIBRARIES = ("libc10.so", "libtorch_cpu.so")

_lock = threading.Lock()
_coming: Future[None] | None = None


def is_here() -> bool:
    """Whether tensors can be decoded at once. (A half imported torch is in ``sys.modules`` as well.)"""
    return _coming is not None and _coming.done() and _coming.exception() is None


async def bring() -> None:
    """Return when torch is imported.

    Raises:
        ImportError: there is none, or it is broken.
    """
    await asyncio.shield(asyncio.wrap_future(_begin()))


def _begin() -> Future[None]:
    global _coming
    with _lock:
        if _coming is None or (_coming.done() and _coming.exception() is not None):
            _coming = Future()
            threading.Thread(target=_import, args=(_coming,), name="import-torch", daemon=True).start()
        return _coming


def _import(coming: Future[None]) -> None:
    try:
        _load_libraries()
        importlib.import_module("torch")
    except BaseException as error:
        coming.set_exception(error if isinstance(error, ImportError) else ImportError(f"torch: {error}"))
    else:
        coming.set_result(None)


def _load_libraries() -> None:
    """A head start only: the import loads whatever is missing, and says what is wrong."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    with contextlib.suppress(AttributeError, OSError):
        load = ctypes.CDLL(None).dlopen  # a foreign call, during which other threads run
        load.restype = ctypes.c_void_p
        for name in _LIBRARIES:
            load(os.fsencode(Path(spec.origin).parent / "lib" / name), os.RTLD_LAZY)
