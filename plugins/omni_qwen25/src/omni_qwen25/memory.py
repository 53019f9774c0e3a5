"""Compute what each stage of Qwen2.5-Omni loads and holds in memory, and the placement that follows from it. Imports no torch."""

from __future__ import annotations

from functools import partial

from omni_core.api import Machine, PipelineConfig, Placement
from omni_qwen3.memory import FRAMES, PATCHES, cache_shape, thinker_network, working
from omni_qwen25.config import OmniConfig, read_config
from omni_qwen25.works import works as works
from omni_torch.api import Network, config_folder, download, listing
from omni_torch.api import place as choose_places

FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "additional_chat_templates/*.jinja", "spk_dict.pt")
"""The checkpoint files that are read, and downloaded."""

_SPEECH_FRAMES = 2 * 3000
"""Mel frames of a usual pass of the denoising network: 30 s of speech, with and without guidance."""

_CHUNK_SAMPLES = 400 * 240
"""Samples of a chunk of sound with the mel frames on either side."""


def fetch(model: str) -> str:
    """Download the checkpoint; return its folder."""
    return download(model, FILES)


def place(config: PipelineConfig, machine: Machine) -> Placement:
    """Choose devices, dtypes and budgets; see :func:`omni_torch.placement.devices.place`."""
    tensors = listing(config.model_path).tensors
    speaks = any(stage.name == "talker" for stage in config.stages)
    networks = networks_of(read_config(config_folder(config.model_path)), speaks=speaks)
    return choose_places(config, machine, tensors, networks)


def networks_of(config: OmniConfig, *, speaks: bool = True) -> dict[str, Network]:
    """Return what the stages load, by name."""
    vision = _width(config, "thinker_config", "vision_config", "hidden_size", 3584)
    audio = _width(config, "thinker_config", "audio_config", "d_model", 1280)
    networks = {
        "thinker": thinker_network(config.thinker, speaks=speaks and config.talker is not None),
        "image_encoder": Network(("thinker.visual.",), partial(working, PATCHES, vision)),
        "audio_encoder": Network(("thinker.audio_tower.",), partial(working, FRAMES // 2, audio)),
    }
    if speaks and config.talker is not None:
        dit = _width(config, "token2wav_config", "dit_config", "hidden_size", 1024)
        channels = _width(config, "token2wav_config", "bigvgan_config", "upsample_initial_channel", 1536)
        networks["talker"] = Network(("talker.",), cache=cache_shape(config.talker.decoder))
        networks["code2mel"] = Network(("token2wav.code2wav_dit_model.",), partial(working, _SPEECH_FRAMES, dit))
        networks["mel2wav"] = Network(
            ("token2wav.code2wav_bigvgan_model.",), partial(working, _CHUNK_SAMPLES, max(1, channels // 64))
        )
    return networks


def _width(config: OmniConfig, part: str, section: str, name: str, default: int) -> int:
    """Return a dimension of a part that transformers' class reads, with that class's default."""
    value: int | None = config.raw[part][section].get(name)
    return default if value is None else value
