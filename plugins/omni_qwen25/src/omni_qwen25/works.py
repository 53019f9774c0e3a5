"""Compute the work of each stage of Qwen2.5-Omni from its config, for plans of hardware that is not there. Imports no torch.

Dimensions that a section leaves out are the defaults of transformers' class for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from omni_core.api import PipelineConfig
from omni_qwen3.works import decoder_work, ranks_of
from omni_qwen25.config import OmniConfig, read_config
from omni_qwen25.interface import CODE_SECONDS, TOKEN2WAV_DEFAULTS
from omni_torch.api import Ask, PassWork, PipelineWorks, StageWork, Work, config_folder

MEL_RATE = 100
"""Mel frames of a second of sound, heard or spoken."""

_CHUNK = 300
"""Mel frames of a chunk of sound, by default."""

EVALUATIONS = 4 * (int(TOKEN2WAV_DEFAULTS["num_steps"]) - 1)
"""Evaluations of the denoising network: four for each step between two of its points in time."""

_PAIR = 2
"""Rows of a request with guidance, as by default."""


def works(config: PipelineConfig) -> PipelineWorks:
    """Return the work of the stages of a config."""
    return works_of(read_config(config_folder(config.model_path)), {stage.name for stage in config.stages})


def works_of(model: OmniConfig, names: set[str]) -> PipelineWorks:
    """Return the work of a model's stages of these names."""
    stages: dict[str, Work] = {
        "image_encoder": _vision(_section(model, "thinker_config", "vision_config")),
        "audio_encoder": _audio(_section(model, "thinker_config", "audio_config")),
        "thinker": evolve(decoder_work(model.thinker), ranks=ranks_of(model.thinker)),
    }
    if model.talker is not None:
        talker = decoder_work(model.talker.decoder)
        projection = model.talker.embedding_size * model.talker.decoder.hidden_size
        tables = model.talker.embedding_size * model.talker.decoder.vocab_size
        stages["talker"] = evolve(talker, shared=talker.shared + projection, embeddings=tables)
        stages["code2mel"] = _denoising(_section(model, "token2wav_config", "dit_config"))
        stages["mel2wav"] = _vocoder(_section(model, "token2wav_config", "bigvgan_config"))
    return PipelineWorks(
        stages={name: work for name, work in stages.items() if name in names},
        visits=lambda ask: {name: each for name, each in _visits(model, ask).items() if name in names},
        kinds={"preprocessing": "function", "mm_aggregate": "function", "decode": "stream"},
        sounding={"mel2wav": (1 / MEL_RATE, _CHUNK)},
        admit_after={"talker": 2},
    )


def _visits(model: OmniConfig, ask: Ask) -> dict[str, StageWork]:
    """Return what each stage does for a request: a placeholder stands for 2 x 2 patches, or for four mel frames."""
    vision = _section(model, "thinker_config", "vision_config")
    patches = ask.pixels // vision.get("patch_size", 14) ** 2
    pictures = patches // vision.get("spatial_merge_size", 2) ** 2
    heard = round(ask.audio * MEL_RATE)
    prompt, width = ask.text + pictures + heard // 4, model.thinker.hidden_size
    found = {"preprocessing": StageWork()}
    if patches:
        found["image_encoder"] = StageWork(patches, hidden=width * pictures // patches)
    if heard:
        found["audio_encoder"] = StageWork(heard, hidden=width // 4)
    found |= {
        "mm_aggregate": StageWork(),
        "thinker": StageWork(prompt, ask.reply, hidden=2 * width),
        "decode": StageWork(),
    }
    if ask.speech and model.talker is not None:
        frames = max(2, round(ask.speech * MEL_RATE))
        found["talker"] = StageWork(prompt + 2, round(ask.speech / CODE_SECONDS) + 1)
        found["code2mel"] = StageWork(frames)
        found["mel2wav"] = StageWork(frames)
    return found


def _section(model: OmniConfig, part: str, name: str) -> Mapping[str, Any]:
    return {key: value for key, value in model.raw[part][name].items() if value is not None}


def _vision(config: Mapping[str, Any]) -> PassWork:
    hidden, layers, merge = (
        config.get("hidden_size", 3584),
        config.get("depth", 32),
        config.get("spatial_merge_size", 2),
    )
    layer = 4 * hidden**2 + 3 * hidden * config.get("intermediate_size", 3420)
    merged = hidden * merge**2
    merger = merged**2 + merged * config.get("out_hidden_size", 3584)
    patch = 3 * config.get("temporal_patch_size", 2) * config.get("patch_size", 14) ** 2 * hidden
    flops = 2 * (layers * layer + merger / merge**2 + patch)
    return PassWork(layers * layer + merger + patch, flops, layers * hidden * 16, layers * 12)


def _audio(config: Mapping[str, Any]) -> PassWork:
    """Positions are mel frames; the layers see one for two of them."""
    hidden, layers = config.get("d_model", 1280), config.get("encoder_layers", 32)
    layer = 4 * hidden**2 + 2 * hidden * config.get("encoder_ffn_dim", 5120)
    first, second = 3 * config.get("num_mel_bins", 128) * hidden, 3 * hidden**2
    last = hidden * config.get("output_dim", 3584)
    flops = 2 * (first + second / 2 + layers * layer / 2 + last / 4)
    return PassWork(layers * layer + first + second + last, flops, layers * hidden * 8, layers * 12)


def _denoising(config: Mapping[str, Any]) -> PassWork:
    """All evaluations of a request as one pass, over the frames of both rows of its guidance. Attention sees the blocks beside its own."""
    hidden, layers = config.get("hidden_size", 1024), config.get("num_hidden_layers", 22)
    heads = config.get("num_attention_heads", 16) * config.get("head_dim", 64)
    always = layers * (4 * hidden * heads + 2 * config.get("ff_mult", 2) * hidden**2)
    always += 2 * config.get("mel_dim", 80) * hidden
    moments = 6 * layers * hidden**2  # of the point in time, for all frames at once
    attended = layers * 4 * heads * config.get("block_size", 24)
    return PassWork(
        EVALUATIONS * (always + moments),
        EVALUATIONS * _PAIR * (2 * always + attended),
        EVALUATIONS * _PAIR * layers * hidden * 16,
        EVALUATIONS * layers * 16,
    )


def _vocoder(config: Mapping[str, Any]) -> PassWork:
    """BigVGAN: at each rate a transposed convolution halves the channels, and blocks of two convolutions for each dilation follow."""
    width, rows = config.get("upsample_initial_channel", 1536), 1
    weights = 7 * config.get("mel_dim", 80) * width
    multiplied, values = float(weights), 0.0
    rates, kernels = (
        config.get("upsample_rates", [5, 3, 2, 2, 2, 2]),
        config.get("upsample_kernel_sizes", [11, 7, 4, 4, 4, 4]),
    )
    sizes = config.get("resblock_kernel_sizes", [3, 7, 11])
    dilations = config.get("resblock_dilation_sizes", [[1, 3, 5]] * 3)
    taps = sum(2 * size * len(each) for size, each in zip(sizes, dilations, strict=True))
    convolutions = 2 * sum(map(len, dilations))
    for rate, kernel in zip(rates, kernels, strict=True):
        rows, narrow = rows * rate, width // 2
        weights += kernel * width * narrow + taps * narrow**2
        multiplied += (kernel / rate * width * narrow + taps * narrow**2) * rows
        values += 12 * convolutions * narrow * rows  # a block reads and writes twice the rate around each activation
        width = narrow
    weights += 7 * width
    return PassWork(weights, 2 * (multiplied + 7 * width * rows), values, 8 * convolutions * len(rates))
