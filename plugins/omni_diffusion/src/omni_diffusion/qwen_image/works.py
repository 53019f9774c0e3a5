"""Compute the work of each stage of Qwen-Image from its networks' configs, for plans of hardware that is not there. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.api import ConfigError, PipelineConfig
from omni_torch.api import Ask, PassWork, PipelineWorks, StageWork, config_folder

SIZE = 1024 * 1024
"""Pixels of an image by default, and about those to which one that is edited is resized."""

STEPS = 50
"""Denoising steps by default."""

_ROWS = 2
"""Rows of a request: with its prompt and with its negative prompt, as guidance has by default."""

_LATENT, _POSITION = 8, 16
"""Pixels of a latent and of a position of the denoising network, in each direction."""

_PLACE = 28
"""Pixels of a position of the text encoder that stands for a part of an image, in each direction."""

_TEMPLATE = 34, 64
"""Tokens around the prompt that the text encoder reads beside it, without and with an image; the denoising network does not."""

Config = Mapping[str, Any]


def works(config: PipelineConfig) -> PipelineWorks:
    """Return the work of the stages of a config.

    Raises:
        ConfigError: the config of a network is missing or no JSON.
    """
    return works_of(*(read_config(config.model_path, name) for name in ("text_encoder", "transformer", "vae")))


def read_config(model: str, name: str) -> Config:
    """Return ``config.json`` of a component of a checkpoint in diffusers' layout."""
    file = f"{name}/config.json"
    folder = Path(config_folder(model, file))
    path = folder / file if (folder / file).is_file() else folder / "config.json"  # of a hub id it is the component's
    try:
        found: Config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return found


def works_of(text: Config, transformer: Config, vae: Config) -> PipelineWorks:
    """Return the work of a model's stages.

    Steps that requests share are taken one request after the other. Two networks of the encoder that see the pixels of an image that is
    edited are left out, which take less than a step; negative prompts are taken to be in its cache.
    """

    def visits(ask: Ask) -> dict[str, StageWork]:
        drawn, edited = ask.drawn or SIZE, SIZE if ask.pixels else 0
        prompt = ask.text + edited // _PLACE**2
        return {
            "encode": StageWork(prompt + _TEMPLATE[bool(edited)], hidden=text_section(text)["hidden_size"]),
            "denoise": StageWork((drawn + edited) // _POSITION**2 + prompt, ask.steps or STEPS),
            "decode": StageWork(drawn // _LATENT**2),
        }

    return PipelineWorks(
        stages={"encode": encoder_work(text), "denoise": denoiser_work(transformer), "decode": decoder_work(vae)},
        visits=visits,
    )


def text_section(config: Config) -> Config:
    """Return the part of the text encoder's config that describes its decoder."""
    found: Config = config.get("text_config") or config
    return found


def encoder_work(config: Config) -> PassWork:
    """Return the work of a pass of the text encoder; a position attends to half of the others on average.

    Embeddings, the output layer and the tower that sees images are loaded too, and not read.
    """
    vision: Config = config.get("vision_config") or {}
    config = text_section(config)
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    keys = hidden // heads * config["num_key_value_heads"]
    weights = layers * (2 * hidden**2 + 2 * hidden * keys + 3 * hidden * config["intermediate_size"])
    unread = (1 if config.get("tie_word_embeddings") else 2) * config.get("vocab_size", 0) * hidden + vision_weights(
        vision
    )
    return PassWork(weights, 2 * weights, 16 * layers * hidden, 12 * layers, pair=2 * layers * hidden, unread=unread)


def vision_weights(config: Config) -> int:
    """Return the values of the matrices of the tower that sees images; 0 for one that the config does not describe."""
    if not config:
        return 0
    width, merged = config["hidden_size"], config["hidden_size"] * config.get("spatial_merge_size", 2) ** 2
    block = 4 * width**2 + 3 * width * config["intermediate_size"]
    patch = (
        config.get("in_channels", config.get("in_chans", 3))
        * config.get("temporal_patch_size", 2)
        * config.get("patch_size", 14) ** 2
    )
    found: int = config["depth"] * block + patch * width + merged * (merged + config["out_hidden_size"])
    return found


def denoiser_work(config: Config) -> PassWork:
    """Return the work of a step: both rows of a request with guidance.

    A block has two sets of weights, for the positions of the image and for those of the prompt, and what scales and shifts both for the
    point in time, once for all positions.
    """
    blocks = config.get("num_layers", 60)
    width = config.get("num_attention_heads", 24) * config.get("attention_head_dim", 128)
    channels = config.get("in_channels", 64)
    made = config.get("patch_size", 2) ** 2 * config.get("out_channels", 16)
    position = blocks * 12 * width**2
    around = width * (channels + made)
    once = blocks * 12 * width**2 + (256 + 3 * width) * width + width * config.get("joint_attention_dim", 3584)
    return PassWork(
        2 * position + around + once,
        _ROWS * 2 * (position + around),
        _ROWS * 24 * blocks * width,
        32 * blocks,
        pair=_ROWS * 4 * blocks * width,
    )


def decoder_work(config: Config) -> PassWork:
    """Return the work of the autoencoder's decoder for one frame, by latent.

    At each level come residual blocks of two convolutions, and between two levels a convolution that halves the channels at twice the
    resolution. At the first one, latents attend to each other.
    """
    base, factors, z = config.get("base_dim", 96), config.get("dim_mult", [1, 2, 4, 4]), config.get("z_dim", 16)
    residual = config.get("num_res_blocks", 2) + 1
    widths = [base * each for each in reversed(factors)]
    wide, rows = widths[0], 1
    weights = z**2 + 9 * z * wide + 2 * 2 * 9 * wide**2 + 4 * wide**2
    multiplied, values, narrow = float(weights), 12.0 * wide, wide
    for level, width in enumerate(widths):
        made = 9 * (narrow * width + (2 * residual - 1) * width**2) + (narrow * width if narrow != width else 0)
        weights += made
        multiplied += made * rows
        values += 6 * residual * width * rows
        if level < len(widths) - 1:
            rows, narrow = rows * 4, width // 2
            weights += 9 * width * narrow
            multiplied += 9 * width * narrow * rows
    weights += 9 * 3 * width
    multiplied += 9 * 3 * width * rows
    return PassWork(weights, 2 * multiplied, values, 8 * residual * len(widths) + 16, pair=4 * wide)
