"""What each stage of Qwen3-Omni loads and holds in memory, and the placement that follows from it. Imports no torch."""

from __future__ import annotations

from functools import partial

from omni_core.config.completion import Machine, Placement
from omni_core.config.schema import PipelineConfig
from omni_qwen3.config import DecoderConfig, QwenConfig, read_config
from omni_torch.budgets import LIBRARIES, CacheShape, Network
from omni_torch.hub import config_folder, download, listing
from omni_torch.placement import place as choose_places

BY_ROWS = ("q_proj.weight", "gate_proj.weight", "up_proj.weight")
BY_COLUMNS = ("o_proj.weight", "down_proj.weight")
KEYS_AND_VALUES = ("k_proj.weight", "v_proj.weight")
"""Ends of the names of tensors that tensor parallel ranks split; see :mod:`omni_qwen3.sharding`."""

FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja")
"""The checkpoint files that are read, and downloaded."""

_PATCHES = 16_384
_FRAMES = 30_000
_CHUNK_FRAMES = 64
"""The largest usual inputs of a pass: patches of pictures (4 megapixels), mel frames (5 minutes), codec frames."""


def fetch(model: str) -> str:
    """Download the checkpoint; return its folder."""
    return download(model, FILES)


def place(config: PipelineConfig, machine: Machine) -> Placement:
    """Choose devices, dtypes and budgets; see :func:`omni_torch.placement.place`."""
    tensors = listing(config.model_path).tensors
    speaks = any(stage.name == "talker_ar" for stage in config.stages)
    networks = networks_of(read_config(config_folder(config.model_path)), speaks=speaks)
    return choose_places(config, machine, tensors, networks)


def networks_of(config: QwenConfig, *, speaks: bool = True) -> dict[str, Network]:
    """Return what the stages load, by name."""
    thinker, talker = config.thinker, config.talker.text
    vision, audio = config.raw["thinker_config"]["vision_config"], config.raw["thinker_config"]["audio_config"]
    networks = {
        "thinker": Network(
            ("thinker.model.", "thinker.lm_head."),
            cache=_cache(thinker, thinker.hidden_size if speaks else 0),
            ranks=tuple(ranks for ranks in (1, 2, 4, 8, 16) if _can_share(thinker, ranks)),
            parts=partial(_parts, thinker),
        ),
        "image_encoder": Network(("thinker.visual.",), partial(_working, _PATCHES, _width(vision, "hidden_size"))),
        "audio_encoder": Network(("thinker.audio_tower.",), partial(_working, _FRAMES // 2, _width(audio, "d_model"))),
    }
    if speaks:
        networks["talker_ar"] = Network(("talker.",), cache=_cache(talker, 0))
        vocoder = config.raw.get("code2wav_config", {})
        samples = _CHUNK_FRAMES * 1920 // 4  # at the last but one level, a quarter of the samples in 1/8 of the width
        networks["code2wav"] = Network(
            ("code2wav.",), partial(_working, samples, _width(vocoder, "decoder_dim", 1536) // 8)
        )
    return networks


def _cache(decoder: DecoderConfig, kept_width: int) -> CacheShape:
    return CacheShape(
        decoder.layers,
        decoder.kv_heads,
        decoder.head_dim,
        decoder.hidden_size,
        decoder.vocab_size,
        decoder.max_positions,
        kept_width,
    )


def _can_share(decoder: DecoderConfig, ranks: int) -> bool:
    """Return True if so many ranks can share the decoder evenly; see :func:`omni_qwen3.sharding.local_config`."""
    shared = (decoder.heads, decoder.intermediate_size, decoder.moe_intermediate_size, decoder.shared_expert_size)
    heads = min(ranks, decoder.kv_heads)
    even = not any(each % ranks for each in shared) and not decoder.kv_heads % heads and not ranks % heads
    return ranks == 1 or (even and not decoder.attention_bias)


def _parts(decoder: DecoderConfig, name: str, ranks: int) -> int:
    if name.endswith((*BY_ROWS, *BY_COLUMNS)):
        return ranks
    return min(ranks, decoder.kv_heads) if name.endswith(KEYS_AND_VALUES) else 1


def _width(section: object, name: str, default: int = 1280) -> int:
    value = section.get(name, default) if isinstance(section, dict) else default
    return value if isinstance(value, int) else default


def _working(rows: int, width: int, item_bytes: int) -> int:
    """Return the working memory of a pass: 16 times its rows (a feed-forward of four widths, attention, residuals)."""
    return rows * width * item_bytes * 16 + LIBRARIES
