"""The stage that makes the prompts of a model on the engine: its encoders, and what it does before its decoder."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from typing import Any

from omni_core.api import SimpleScheduler, StagePayload
from omni_media.api import Limits
from omni_transformers.checkpoints import read
from omni_transformers.loading import load_model, load_processor
from omni_transformers.words.encoders import Encoders
from omni_transformers.words.engine import Key, engine_model, free_others
from omni_transformers.words.engine_model import Decoder
from omni_transformers.words.engine_prompts import Prompt, captured, makes_masks
from omni_transformers.words.engine_ranks import without_layers
from omni_transformers.words.prompts import Prompts
from omni_transformers.words.steps import placed


class Prepare(SimpleScheduler):
    """Makes a :class:`Prompt` of each request. Its statistics include those of the encoders' outputs that it keeps.

    Args:
        decoder: of the model; ``None``: prompts are texts.
        prompts: ``None``: requests are handed on.
        key: of the model; ``None``: no other stage shares it.
        sees_blocks: some positions of its prompts attend to each other.
    """

    def __init__(
        self,
        decoder: Decoder | None,
        prompts: Prompts | None,
        max_bytes: int,
        key: Key | None,
        sees_blocks: bool = False,
    ) -> None:
        super().__init__(self.prompt)
        self._decoder, self._prompts, self._key, self._sees_blocks = decoder, prompts, key, sees_blocks
        self._encoders = None if decoder is None else Encoders(decoder.model, max_bytes)

    def start(self) -> None:
        if self._key is not None:
            free_others(self._key, "prepare")
        super().start()

    def prompt(self, payload: StagePayload) -> Any:
        """Return the prompt of a request."""
        if self._prompts is None:
            return payload.request
        inputs = self._prompts.inputs(payload.request)
        if self._decoder is None:
            return Prompt(inputs["input_ids"][0].tolist()).sent()
        inputs = placed(inputs, self._decoder.model)
        return captured(self._decoder, inputs, self._encoders, self._sees_blocks).sent()

    def statistics(self) -> dict[str, float]:
        return {**super().statistics(), **({} if self._encoders is None else self._encoders.cache.statistics())}

    def flush_caches(self) -> None:
        """Forget what was encoded before. From any thread."""
        if self._encoders is not None:
            self._encoders.cache.clear()


def create_prepare(
    model_path: str,
    device: str = "cpu",
    dtype: str = "auto",
    backend: str = "auto",
    limits: dict[str, Any] | None = None,
    encodes_only: bool = False,
    cache_mb: int = 256,
) -> Prepare:
    """Return the stage that makes a :class:`Prompt` of a request, as data; for another backend than the engine the request itself.

    Args:
        limits: of the media of a request, as fields of :class:`Limits`.
        encodes_only: true if the engine computes the decoder in other processes. Of the model, what encodes media is kept.
        cache_mb: MiB of encoder outputs kept for media that are sent again; 0 keeps none.

    Raises:
        ConfigError: as :func:`engine_model`, or ``cache_mb`` is negative.
    """
    found = read(model_path).architecture
    key: Key | None = None
    decoder: Decoder | None = None
    sees_blocks = False
    if not encodes_only:
        key = model_path, device, dtype, backend
        model = engine_model(*key, stage="prepare")
        if model is None:
            return Prepare(None, None, 0, key)
        decoder, sees_blocks = model.decoder, model.sees_blocks
    elif found.inputs != ["text"]:
        decoder = without_layers(load_model(model_path, dtype, device, placed=False), device)
        load_model.cache_clear()
        sees_blocks = makes_masks(decoder)
    prompts = Prompts(load_processor(model_path), found.inputs, found.name, Limits(**(limits or {})))
    return Prepare(decoder, prompts, cache_mb * 2**20, key, sees_blocks)
