"""Compute the work of each stage of Fish S2 from its config, for plans of hardware that is not there. Imports no torch."""

from __future__ import annotations

from attrs import evolve

from omni_core.api import PipelineConfig
from omni_fish_s2.codec import SAMPLE_RATE
from omni_fish_s2.codec.config import CodecConfig
from omni_fish_s2.config import DecoderConfig, FishConfig, read_config
from omni_torch.api import Ask, DecoderWork, PassWork, PipelineWorks, StageWork, config_folder, sound_decoder

_PROMPT = 40
"""Positions of a prompt beside the text: markers and the instruction. A reference voice of the request is not counted."""

_TOKENS_PER_SECOND = 4
"""Tokens of text of a second of speech, where a request does not say how long it is."""


def works(config: PipelineConfig) -> PipelineWorks:
    """Return the work of the stages of a config."""
    return works_of(read_config(config_folder(config.model_path)))


def works_of(model: FishConfig, codec: CodecConfig | None = None) -> PipelineWorks:
    """Return the work of a model's stages.

    Args:
        codec: the released one by default; a checkpoint says its dimensions in the tensors of the codec only.
    """
    codec = codec or CodecConfig()
    frame = codec.samples_per_frame / SAMPLE_RATE
    fast = _decoder(model.fast, model.codebook_size)
    choices = model.codebook_size + 1  # rows of the head that are read: the semantic tokens and the end
    slow = evolve(
        _decoder(model.slow, choices),
        inner=fast,
        inner_steps=model.codebooks,
        inner_heads=0,
        embeddings=model.slow.dim * (model.vocab_size + model.codebooks * model.codebook_size),
    )

    def visits(ask: Ask) -> dict[str, StageWork]:
        frames = max(1, round((ask.speech or ask.text / _TOKENS_PER_SECOND) / frame))
        return {
            "preprocessing": StageWork(),
            "semantic_ar": StageWork(ask.text + _PROMPT, frames + 1),
            "vocoder": StageWork(frames, frames),
        }

    return PipelineWorks(
        stages={"semantic_ar": slow, "vocoder": _vocoder(codec)},
        visits=visits,
        kinds={"preprocessing": "function"},
        vocoders={"vocoder": frame},
    )


def _decoder(config: DecoderConfig, candidates: int) -> DecoderWork:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return DecoderWork(
        layers=config.layers,
        hidden_size=config.dim,
        shared=config.layers * config.dim * (2 * queries + 2 * keys + 3 * config.intermediate_size),
        head=config.dim * candidates,
        cached=2 * config.layers * keys,
        heads=queries,
    )


def _vocoder(codec: CodecConfig) -> PassWork:
    """A stream keeps what its layers need of earlier frames, so nothing is computed again."""
    latent, rows = codec.latent, 1
    weights = codec.layers * (4 * latent**2 + 3 * latent * codec.intermediate)
    weights += codec.codebooks * latent * codec.codebook_dim
    multiplied, values = float(weights), float(codec.layers * latent * 16)
    pointwise = 2 * latent * codec.convnext + 7 * latent
    for factor in codec.factors:
        rows *= factor
        weights += factor * latent**2 + pointwise
        multiplied += (latent**2 + pointwise) * rows
        values += 8 * latent * rows
    weights += 7 * latent * codec.decoder_dim
    multiplied += 7 * latent * codec.decoder_dim * rows
    before = PassWork(weights, 2 * multiplied, values, codec.layers * 12 + 10 * len(codec.factors))
    return before.plus(sound_decoder(codec.decoder_dim, codec.decoder_rates, rows))
