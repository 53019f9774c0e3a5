"""Compute what each stage of Fish S2 loads and holds in memory, and the placement that follows from it. Imports no torch."""

from __future__ import annotations

from omni_core.api import ConfigError, Machine, PipelineConfig, Placement
from omni_fish_s2.config import FishConfig, read_config
from omni_fish_s2.works import works as works
from omni_torch.api import (
    LIBRARIES,
    CacheShape,
    Network,
    TensorInfo,
    config_folder,
    download,
    listing,
)
from omni_torch.api import (
    place as choose_places,
)

FILES = ("*.json", "*.safetensors", "codec.pth")
"""The checkpoint files that are read, and downloaded."""

CODEC = "codec.pth"


def fetch(model: str) -> str:
    """Download the checkpoint; return its folder."""
    return download(model, FILES)


def place(config: PipelineConfig, machine: Machine) -> Placement:
    """Choose devices, dtypes and budgets; see :func:`omni_torch.placement.devices.place`.

    Raises:
        ConfigError: the checkpoint has no codec.
    """
    found = listing(config.model_path, needs=(CODEC,))
    if CODEC not in found.files:
        raise ConfigError(f"{config.model_path}: {CODEC} is missing; download the checkpoint again")
    # No safetensors file: its size stands for its float32 values. Encoder and decoder are each less than the whole.
    tensors = {**found.tensors, CODEC: TensorInfo("F32", found.files[CODEC] // 4)}
    return choose_places(config, machine, tensors, networks_of(read_config(config_folder(config.model_path))))


def networks_of(config: FishConfig) -> dict[str, Network]:
    """Return what the stages load, by name."""
    slow = config.slow
    cache = CacheShape(slow.layers, slow.kv_heads, slow.head_dim, slow.dim, config.vocab_size, config.max_positions)
    codec = Network((CODEC,), _codec_working)
    return {
        "preprocessing": codec,
        "semantic_ar": Network(("text_model.", "audio_decoder."), cache=cache),
        "vocoder": codec,
    }


def _codec_working(item_bytes: int) -> int:
    """Return the working memory of a pass over 64 frames of 2048 samples, at 16 rows of 96 values each."""
    return 64 * 2048 * 96 * 16 * item_bytes // 4 + LIBRARIES
