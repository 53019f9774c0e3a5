"""Builds the thinker's decoder from SGLang's own layers. Needs omni-sglang and its scheduler."""

from __future__ import annotations

import torch

from omni_core.errors import ConfigError
from omni_core.model_runner.types import ARModel
from omni_qwen3.checkpoint import Checkpoint, sources, tied_names
from omni_qwen3.config import QwenConfig

_DECODER, _HEAD = "thinker.model.", "thinker.lm_head.weight"


def thinker_on_sglang(model_path: str, config: QwenConfig, *, dtype: str, device: str) -> ARModel:
    """Return the thinker, whose weights are read once SGLang is up.

    Raises:
        ConfigError: omni-sglang is not installed, or the checkpoint has what SGLang's layers do not compute.
    """
    text, where = config.thinker, "config.json.thinker_config.text_config"
    for field, supported in (
        ("mlp_only_layers", not text.dense_layers),
        ("attention_bias", not text.attention_bias),
        ("hidden_act", text.activation == "silu"),
    ):
        if not supported:
            raise ConfigError(f"{where}.{field}: `layers: sglang` does not compute it; use `layers: own`")
    try:
        from omni_sglang.qwen3_moe import Qwen3MoeDecoder
    except ImportError as error:
        raise ConfigError(
            f"layers: 'sglang' needs omni-sglang and SGLang (pip install omni-sglang): {error}"
        ) from error
    from transformers import AutoConfig

    checkpoint = Checkpoint(model_path)

    def read(name: str, shape: torch.Size) -> torch.Tensor:
        names = [_DECODER + source for source, _ in sources(name, shape)]
        found = checkpoint.read(names)
        joined = torch.cat([found[each] for each in names]) if len(names) > 1 else found[names[0]]
        return joined.reshape(shape) if ".experts." in name else joined

    settings = AutoConfig.from_pretrained(model_path).thinker_config.text_config
    name = tied_names(checkpoint).get(_HEAD, _HEAD)
    head = checkpoint.read([name])[name].to(getattr(torch, dtype))
    layers = config.raw["thinker_config"]["vision_config"]["deepstack_visual_indexes"]
    capture = config.talker.accept_hidden_layer
    return Qwen3MoeDecoder(settings, read, head, capture=capture, deepstack=len(layers), device=torch.device(device))
