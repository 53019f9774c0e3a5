"""Compute what each stage of Qwen3-TTS loads and holds in memory, and the placement that follows from it. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from omni_core.api import ConfigError, Machine, PipelineConfig, Placement
from omni_qwen3_tts.config import BASE, CODEC, TTSConfig, read_config
from omni_qwen3_tts.works import works as works
from omni_torch.api import LIBRARIES, CacheShape, Network, TensorInfo, config_folder, download, listing
from omni_torch.api import place as choose_places

FILES = ("*.json", "*.safetensors", "merges.txt", f"{CODEC}/*.json", f"{CODEC}/*.safetensors")
"""The checkpoint files that are read, and downloaded."""

_WEIGHTS = f"{CODEC}/model.safetensors"

_FRAMES, _SAMPLES, _WIDTH = 64, 1920, 96
"""Of a pass of the decoder: frames, samples of one, and channels where these are."""

_RECORDED = 60 * 24_000
"""Samples of the longest recording of a voice."""


def fetch(model: str) -> str:
    """Download the checkpoint; return its folder."""
    return download(model, FILES)


def place(config: PipelineConfig, machine: Machine) -> Placement:
    """Choose devices, dtypes and budgets; see :func:`omni_torch.placement.devices.place`.

    Raises:
        ConfigError: the checkpoint has no codec.
    """
    found, folder = listing(config.model_path), config_folder(config.model_path)
    codec = Path(folder) / CODEC
    if (codec / "config.json").is_file():
        sizes = {f"{CODEC}.{name}": each for name, each in listing(str(codec)).tensors.items()}
    elif _WEIGHTS in found.files:
        sizes = {f"{CODEC}.decoder.": TensorInfo("F32", found.files[_WEIGHTS] // 4)}
    else:
        raise ConfigError(f"{config.model_path}: {CODEC} is missing; download the checkpoint again")
    return choose_places(config, machine, {**found.tensors, **sizes}, networks_of(read_config(folder)))


def networks_of(config: TTSConfig) -> dict[str, Network]:
    """Return what the stages load, by name."""
    talker = config.talker
    cache = CacheShape(
        talker.layers, talker.kv_heads, talker.head_dim, talker.hidden_size, talker.vocab_size, talker.max_positions
    )
    networks = {
        "talker": Network(("talker.",), cache=cache),
        "code2wav": Network((f"{CODEC}.decoder.",), _decoding),
    }
    if config.kind == BASE:
        networks["preprocessing"] = Network(("speaker_encoder.", f"{CODEC}.encoder."), _encoding)
    return networks


def _decoding(item_bytes: int) -> int:
    """Return the working memory of a pass, at 16 rows of values for each sample."""
    return _FRAMES * _SAMPLES * _WIDTH * 16 * item_bytes // 4 + LIBRARIES


def _encoding(item_bytes: int) -> int:
    """Return the working memory of a recording: four rows of 64 channels for each sample."""
    return _RECORDED * 64 * 4 * item_bytes + LIBRARIES
