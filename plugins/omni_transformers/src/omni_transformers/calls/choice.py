"""Chooses the backend of a model that has a loop of its own: whether the calls of its decoder are computed together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from omni_core.api import ConfigError
from omni_transformers.calls.batch import Calls
from omni_transformers.calls.packed import Packed
from omni_transformers.calls.stacked import Stacked
from omni_transformers.loading import load_model
from omni_transformers.words import engine_fit
from omni_transformers.words.engine_layers import Unfit

logger = logging.getLogger(__name__)


@frozen
class Loop:
    """A model with a loop of its own.

    Attributes:
        model: it.
        decoder: the network that it calls for each position; ``None``: that of ``get_decoder()``.
        others: networks that it calls between, whose rows can be stacked.
    """

    model: Any
    decoder: Any = None
    others: Sequence[Any] = ()


def backend_of(loop: Loop) -> tuple[str, list[str]]:
    """Return ``engine``, or ``steps`` and the reasons. It computes a few short forwards of the model, whose outputs stay as they were."""
    try:
        _packed(loop)
    except Unfit as unfit:
        reasons = _reasons(loop, unfit)
        return ("steps" if reasons else "engine"), reasons
    return "engine", []


def calls_of(loop: Loop, backend: str, running: int, kv_cache_mb: int | None = None) -> Calls | None:
    """Return what computes the calls of a model's decoder together; ``None``: each request computes its own.

    Args:
        backend: ``auto``, ``engine``, ``steps`` or ``generate``.
        running: requests at one time.
        kv_cache_mb: as of :class:`Calls`.

    Raises:
        ConfigError: ``backend`` is ``engine``, and the decoder does not fit.
    """
    if backend not in ("auto", "engine"):
        return None
    try:
        packed = _packed(loop)
    except Unfit as unfit:
        reasons = _reasons(loop, unfit) or unfit.reasons
        what = f"{type(loop.model).__name__} does not fit the engine: {'; '.join(reasons)}"
        if backend == "engine":
            raise ConfigError(f"backend: {what}; choose steps") from None
        logger.warning("%s; it computes by steps", what)
        return None
    load_model.cache_clear()  # its decoder is nobody else's
    logger.info("the decoder of %s computes on the engine", type(loop.model).__name__)
    return Calls(packed, [*map(Stacked, loop.others)], running, kv_cache_mb)


def _reasons(loop: Loop, unfit: Unfit) -> list[str]:
    """Return why a model does not fit; of a decoder alone those of the engine's own loop, which name layers. None: that one computes it."""
    if loop.decoder is not None or loop.model.config.is_encoder_decoder:
        return unfit.reasons
    return engine_fit.backend_of(loop.model)[1]


def _packed(loop: Loop) -> Packed:
    found = loop.model.get_decoder() if loop.decoder is None else loop.decoder
    while loop.decoder is None and (inner := getattr(found, "get_decoder", lambda: found)()) is not found:  # noqa: B023
        found = inner
    return Packed(found, getattr(loop.model, "get_output_embeddings", lambda: None)())
