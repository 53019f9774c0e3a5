"""Compute what each stage of Qwen2.5-Omni loads and holds in memory, and the placement that follows from it. Imports no torch."""

from __future__ import annotations

from functools import partial

from attrs import evolve

from omni_core.api import Machine, PipelineConfig, Placement
from omni_qwen3.memory import FRAMES, PATCHES, cache_shape, thinker_network, working
from omni_qwen3.sizes import decoder_sizes, is_config_alone, with_weights
from omni_qwen25.config import OmniConfig, read_config
from omni_qwen25.works import EVALUATIONS, works_of
from omni_qwen25.works import works as works
from omni_torch.api import Network, PassWork, TensorInfo, config_folder, download, listing
from omni_torch.api import place as choose_places

FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "additional_chat_templates/*.jinja", "spk_dict.pt")
"""The checkpoint files that are read, and downloaded."""

_SPEECH_FRAMES = 2 * 3000
"""Mel frames of a usual pass of the denoising network: 30 s of speech, with and without guidance."""

_CHUNK_SAMPLES = 400 * 240
"""Samples of a chunk of sound with the mel frames on either side."""


def fetch(model: str) -> str:
    """Download the checkpoint; return its folder. Raises ConfigError if that has no weights, which a plan does not need."""
    return with_weights(download(model, FILES))


def place(config: PipelineConfig, machine: Machine) -> Placement:
    """Choose devices, dtypes and budgets; see :func:`omni_torch.placement.devices.place`. ``config.json`` alone is enough."""
    is_alone = is_config_alone(config.model_path)
    speaks = any(stage.name == "talker" for stage in config.stages)
    model = read_config(config_folder(config.model_path))
    tensors = tensors_of(model) if is_alone else listing(config.model_path).tensors
    made = choose_places(config, machine, tensors, networks_of(model, speaks=speaks))
    notes = {name: f"{note} (sizes from config.json)" for name, note in made.notes.items()}
    return evolve(made, notes=notes) if is_alone else made


def tensors_of(model: OmniConfig) -> dict[str, TensorInfo]:
    """Return a tensor for each kind of weight, of all layers together, under a name that begins and ends as those of the checkpoint."""
    thinker = model.thinker
    values = {
        **decoder_sizes("thinker.model.", thinker),
        "thinker.model.embed_tokens.weight": thinker.vocab_size * thinker.hidden_size,
        "thinker.lm_head.weight": thinker.vocab_size * thinker.hidden_size,
    }
    if model.talker is not None:
        decoder, width = model.talker.decoder, model.talker.embedding_size
        values |= {
            **decoder_sizes("talker.model.", decoder),
            "talker.model.embed_tokens.weight": decoder.vocab_size * width,
            "talker.thinker_to_talker_proj.weight": width * decoder.hidden_size,
            "talker.codec_head.weight": decoder.vocab_size * decoder.hidden_size,
        }
    prefixes = {
        "image_encoder": "thinker.visual.",
        "audio_encoder": "thinker.audio_tower.",
        "code2mel": "token2wav.code2wav_dit_model.",
        "mel2wav": "token2wav.code2wav_bigvgan_model.",
    }
    for name, work in works_of(model, set(prefixes)).stages.items():
        if isinstance(work, PassWork):
            values[f"{prefixes[name]}all.weight"] = work.weights // (EVALUATIONS if name == "code2mel" else 1)
    return {name: TensorInfo("BF16", count) for name, count in values.items() if count}


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
