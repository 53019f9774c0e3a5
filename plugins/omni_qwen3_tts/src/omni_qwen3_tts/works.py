"""Compute the work of each stage of Qwen3-TTS from its config, for plans of hardware that is not there. Imports no torch."""

from __future__ import annotations

from attrs import evolve

from omni_core.api import PipelineConfig
from omni_qwen3_tts.codec.config import SAMPLE_RATE, CodecConfig, read_codec
from omni_qwen3_tts.config import DecoderConfig, TTSConfig, read_config
from omni_torch.api import Ask, DecoderWork, PassWork, PipelineWorks, StageWork, config_folder, sound_decoder

_PROMPT = 10
"""Positions of a prompt beside the text. A recording of the request is not counted."""

_TOKENS_PER_SECOND = 4
"""Tokens of text of a second of speech, where a request does not say how long it is."""


def works(config: PipelineConfig) -> PipelineWorks:
    """Return the work of the stages of a config."""
    folder = config_folder(config.model_path)
    return works_of(read_config(folder), read_codec(folder))


def works_of(model: TTSConfig, codec: CodecConfig) -> PipelineWorks:
    """Return the work of a model's stages."""
    frame = codec.samples_per_frame / SAMPLE_RATE
    predictor, groups, width = _decoder(model.predictor), model.code_groups, model.talker.hidden_size
    narrow = (width + 1) * model.predictor.hidden_size if width != model.predictor.hidden_size else 0
    predictor = evolve(predictor, shared=predictor.shared + narrow, embeddings=width * model.predictor.vocab_size)
    text = model.text_hidden_size
    talker = evolve(
        _decoder(model.talker),
        inner=predictor,
        inner_steps=groups - 1,
        # Of text: its embeddings and their projection, which a position reads once.
        embeddings=width * model.talker.vocab_size + text * (model.text_vocab_size + text + width),
    )

    def visits(ask: Ask) -> dict[str, StageWork]:
        frames = max(1, round((ask.speech or ask.text / _TOKENS_PER_SECOND) / frame))
        return {
            "preprocessing": StageWork(),
            "talker": StageWork(ask.text + _PROMPT, frames + 1),
            "code2wav": StageWork(frames, frames),
        }

    return PipelineWorks(
        stages={"talker": talker, "code2wav": _vocoder(codec)},
        visits=visits,
        kinds={"preprocessing": "stream"},
        vocoders={"code2wav": frame},
    )


def _decoder(config: DecoderConfig) -> DecoderWork:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return DecoderWork(
        layers=config.layers,
        hidden_size=config.hidden_size,
        shared=config.layers * config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size),
        head=config.hidden_size * config.vocab_size,
        cached=2 * config.layers * keys,
        heads=queries,
    )


def _vocoder(codec: CodecConfig) -> PassWork:
    """A stream keeps what its layers need of earlier frames, so nothing is computed again."""
    hidden, latent, rows = codec.hidden_size, codec.latent, 1
    queries, keys = codec.heads * codec.head_dim, codec.kv_heads * codec.head_dim
    weights = codec.layers * hidden * (2 * queries + 2 * keys + 3 * codec.intermediate_size) + 2 * hidden * latent
    weights += codec.codebook_dim * (3 * latent + codec.codebook_dim)
    multiplied, values = float(weights), float(codec.layers * hidden * 16)
    weights += codec.codebooks * codec.codebook_size * codec.codebook_dim // 2
    pointwise = 8 * latent**2 + 7 * latent
    for factor in codec.upsampling:
        rows *= factor
        weights += factor * latent**2 + pointwise
        multiplied += (latent**2 + pointwise) * rows
        values += 8 * latent * rows
    weights += 7 * latent * codec.decoder_size
    multiplied += 7 * latent * codec.decoder_size * rows
    before = PassWork(weights, 2 * multiplied, values, codec.layers * 12 + 10 * len(codec.upsampling))
    return before.plus(sound_decoder(codec.decoder_size, codec.rates, rows))
