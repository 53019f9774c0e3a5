"""Builds the thinker's decoder with a callable of another distribution, from the same checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import torch

from omni_core.api import ARModel, ConfigError, load
from omni_qwen3.checkpoint import open_checkpoint, sources, tied_names
from omni_qwen3.config import QwenConfig

_DECODER, _HEAD = "thinker.model.", "thinker.lm_head.weight"

ReadWeight = Callable[[str, torch.Size], torch.Tensor]
"""Reads a weight by its name below the decoder and its shape; projections that a decoder fuses are joined along dimension 0."""


def load_external(reference: str, model_path: str, config: QwenConfig, *, dtype: str, device: str) -> ARModel:
    """Build the thinker with ``package.module:callable``, such as ``omni_sglang.qwen3_moe:Qwen3MoeDecoder``.

    It is called with ``(text_config, read, head, capture=, deepstack=, device=)``: transformers' text config, a :data:`ReadWeight`,
    the output matrix ``[vocab, hidden]`` in the wanted dtype, the number of the layer whose input is captured, and the number of layers
    after which features are added. It returns an :class:`ARModel`, which may name its ``required_scheduler``.

    Raises:
        ConfigError: the reference cannot be imported; or the checkpoint is stored in a way that is not implemented.
    """
    try:
        build = load(reference)
    except (ConfigError, ImportError) as error:
        package = reference.partition(".")[0].replace("_", "-")
        raise ConfigError(f"decoder: {reference!r} cannot be imported (pip install {package}?): {error}") from error
    from transformers import AutoConfig

    checkpoint = open_checkpoint(model_path)

    def read(name: str, shape: torch.Size) -> torch.Tensor:
        names = [_DECODER + source for source, _ in sources(name, shape)]
        found = checkpoint.read(names)
        joined = torch.cat([found[each] for each in names]) if len(names) > 1 else found[names[0]]
        return joined.reshape(shape) if ".experts." in name else joined

    text = AutoConfig.from_pretrained(model_path, trust_remote_code=False).thinker_config.text_config
    name = tied_names(checkpoint).get(_HEAD, _HEAD)
    head = checkpoint.read([name])[name].to(getattr(torch, dtype))
    layers = config.raw["thinker_config"]["vision_config"]["deepstack_visual_indexes"]
    capture = config.talker.accept_hidden_layer
    model: ARModel = build(text, read, head, capture=capture, deepstack=len(layers), device=torch.device(device))
    return model
