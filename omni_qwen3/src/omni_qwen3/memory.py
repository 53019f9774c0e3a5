"""Compute what each stage of Qwen3-Omni loads and holds in memory, and the placement that follows from it. Imports no torch."""

from __future__ import annotations

from functools import partial

from attrs import evolve

from omni_core.api import Machine, PipelineConfig, Placement
from omni_qwen3.config import BY_COLUMNS, BY_ROWS, KEYS_AND_VALUES, DecoderConfig, QwenConfig, read_config
from omni_qwen3.sizes import is_config_alone, tensors_of, with_weights
from omni_qwen3.works import has_expert_parallel, ranks_of
from omni_qwen3.works import works as works
from omni_torch.api import LIBRARIES, CacheShape, Network, config_folder, download, listing
from omni_torch.api import place as choose_places

FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "additional_chat_templates/*.jinja")
"""The checkpoint files that are read, and downloaded."""

PATCHES = 16_384
FRAMES = 30_000
_CHUNK_FRAMES = 64
"""The largest usual inputs of a pass: patches of pictures (4 megapixels), mel frames (5 minutes), codec frames."""


def fetch(model: str) -> str:
    """Download the checkpoint; return its folder. Raises ConfigError if that has no weights, which a plan does not need."""
    return with_weights(download(model, FILES))


def place(config: PipelineConfig, machine: Machine) -> Placement:
    """Choose devices, dtypes and budgets; see :func:`omni_torch.placement.devices.place`. ``config.json`` alone is enough."""
    is_alone = is_config_alone(config.model_path)
    speaks = any(stage.name == "talker_ar" for stage in config.stages)
    model = read_config(config_folder(config.model_path))
    tensors = tensors_of(model) if is_alone else listing(config.model_path).tensors
    networks = networks_of(model, speaks=speaks, expert_parallel=has_expert_parallel(config))
    made = choose_places(config, machine, tensors, networks)
    notes = {name: f"{note} (sizes from config.json)" for name, note in made.notes.items()}
    return evolve(made, notes=notes) if is_alone else made


def networks_of(config: QwenConfig, *, speaks: bool = True, expert_parallel: bool = False) -> dict[str, Network]:
    """Return what the stages load, by name."""
    thinker, talker = config.thinker, config.talker.text
    vision, audio = config.vision.hidden_size, config.audio.hidden_size
    networks = {
        "thinker": thinker_network(thinker, speaks=speaks, expert_parallel=expert_parallel),
        "image_encoder": Network(("thinker.visual.",), partial(working, PATCHES, vision)),
        "audio_encoder": Network(("thinker.audio_tower.",), partial(working, FRAMES // 2, audio)),
    }
    if speaks:
        networks["talker_ar"] = Network(("talker.",), cache=cache_shape(talker))
        width = 1536 if config.vocoder is None else config.vocoder.decoder_size
        samples = _CHUNK_FRAMES * 1920 // 4  # at the last but one level, a quarter of the samples in 1/8 of the width
        networks["code2wav"] = Network(("code2wav.",), partial(working, samples, width // 8))
    return networks


def thinker_network(decoder: DecoderConfig, *, speaks: bool, expert_parallel: bool = False) -> Network:
    """Return what a thinker loads; it keeps a hidden state per position if it ``speaks``. A rank that holds some experts whole has as
    many weights as one with a slice of every expert.
    """
    return Network(
        ("thinker.model.", "thinker.lm_head."),
        cache=cache_shape(decoder, decoder.hidden_size if speaks else 0),
        ranks=ranks_of(decoder, expert_parallel),
        parts=partial(_parts, decoder),
    )


def cache_shape(decoder: DecoderConfig, kept_width: int = 0) -> CacheShape:
    """Return the KV cache of a decoder."""
    return CacheShape(
        decoder.layers,
        decoder.kv_heads,
        decoder.head_dim,
        decoder.hidden_size,
        decoder.vocab_size,
        decoder.max_positions,
        kept_width,
    )


def _parts(decoder: DecoderConfig, name: str, ranks: int) -> int:
    if name.endswith((*BY_ROWS, *BY_COLUMNS)):
        return ranks
    return min(ranks, decoder.kv_heads) if name.endswith(KEYS_AND_VALUES) else 1


def working(rows: int, width: int, item_bytes: int) -> int:
    """Return the working memory of a pass: 16 times its rows (a feed-forward of four widths, attention, residuals)."""
    return rows * width * item_bytes * 16 + LIBRARIES
