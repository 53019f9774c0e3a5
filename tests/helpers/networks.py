"""The encoders and the vocoder of a checkpoint, in transformers' networks and in ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.qwen3_omni_moe import configuration_qwen3_omni_moe as configs
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as models

from omni_core.model_runner import ForwardBatch
from omni_qwen3.audio_network import AudioEncoder
from omni_qwen3.checkpoint import Checkpoint, load_module
from omni_qwen3.code2wav_network import Code2Wav
from omni_qwen3.config import read_config
from omni_qwen3.thinker_network import Thinker
from omni_qwen3.vision_network import VisionEncoder
from omni_torch.api import FrameWindow

PREFIXES = {"vision": "thinker.visual.", "audio": "thinker.audio_tower.", "vocoder": "code2wav."}


def reference(folder: Path, part: str, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' network."""
    raw = read_config(folder).raw
    model, config, section = {
        "vision": (models.Qwen3OmniMoeVisionEncoder, configs.Qwen3OmniMoeVisionEncoderConfig, "vision_config"),
        "audio": (models.Qwen3OmniMoeAudioEncoder, configs.Qwen3OmniMoeAudioEncoderConfig, "audio_config"),
        "vocoder": (models.Qwen3OmniMoeCode2Wav, configs.Qwen3OmniMoeCode2WavConfig, "code2wav_config"),
    }[part]
    values = raw[section] if part == "vocoder" else raw["thinker_config"][section]
    return _loaded(model._from_config(config(**values)), folder, part, dtype)


def own(folder: Path, part: str, dtype: torch.dtype = torch.float32) -> Any:
    """Our network."""
    config = read_config(folder)
    assert config.vocoder is not None
    with torch.device("meta"):
        made: nn.Module = {
            "vision": lambda: VisionEncoder(config.vision),
            "audio": lambda: AudioEncoder(config.audio),
            "vocoder": lambda: Code2Wav(config.vocoder),  # type: ignore[arg-type]
        }[part]()
    return _loaded(made, folder, part, dtype)


def _loaded(network: nn.Module, folder: Path, part: str, dtype: torch.dtype) -> nn.Module:
    return load_module(network, Checkpoint(folder), {"": PREFIXES[part]}, dtype=dtype)


def one_shot(network: Code2Wav, codes: torch.Tensor) -> torch.Tensor:
    """Decode ``[B, codebooks, T]`` at once, as transformers' network does: ``[B, 1, samples]``."""
    frames = [each.T for each in codes]
    hidden = network.transform(frames, [FrameWindow() for _ in frames])
    return network.synthesize(torch.stack(hidden).transpose(1, 2)).unsqueeze(1)


LAYERS = r"^thinker\.model\.layers\.\d+\.(self_attn|mlp\.experts)\..*_proj\.weight$"


def attend(
    layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)[0].transpose(0, 1)


@torch.inference_mode()
def logits_of(model: Thinker) -> torch.Tensor:
    ids = torch.arange(40) * 7 % model.vocab_size
    batch = ForwardBatch(
        requests=[], starts=[0], lengths=[len(ids)], input_ids=ids, input_embeds=model.embed(ids), attention=attend,
        positions=torch.arange(len(ids)).expand(3, -1), sample_rows=torch.arange(len(ids)), sampled=[],
    )  # fmt: skip
    return model.compute_logits(model(batch).hidden).double()
