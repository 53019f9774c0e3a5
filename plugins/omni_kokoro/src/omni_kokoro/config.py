"""The dimensions of a checkpoint, read from its ``config.json``. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from omni_core.api import ConfigError
from omni_torch.api import Section, read_json

FRAME = 600
"""Samples of one unit of a phoneme's duration: 25 ms."""


@frozen
class SoundConfig:
    """The network that makes the sound.

    Attributes:
        upsample_rates, upsample_kernels: of its transposed convolutions.
        kernels, dilations: of the residual blocks after each of them; a sum over all kernels.
        channels: before the first of them; they halve at each.
        width: channels of the blocks before these; the published files do not say that it is 1024.
        fft, hop: of the short-time Fourier transform at its end, in samples.
    """

    upsample_rates: tuple[int, ...]
    upsample_kernels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[tuple[int, ...], ...]
    channels: int
    width: int
    fft: int
    hop: int


@frozen
class KokoroConfig:
    """Dimensions of the networks.

    Attributes:
        vocabulary: ids of phonemes.
        tokens: rows of the embeddings.
        hidden: width of text and prosody.
        style: width of each half of a voice's vector: the first is of the sound, the second of the prosody.
        layers: of the text encoder, and of the encoder of durations.
        kernel: of the text encoder.
        longest: most units of one phoneme.
        bert_hidden, bert_heads, bert_intermediate, bert_layers: of the ALBERT that reads the phonemes.
        context: most phonemes, with one of silence on either side.
    """

    vocabulary: dict[str, int]
    tokens: int
    hidden: int
    style: int
    layers: int
    kernel: int
    longest: int
    bert_hidden: int
    bert_heads: int
    bert_intermediate: int
    bert_layers: int
    context: int
    sound: SoundConfig

    @property
    def most(self) -> int:
        """Most phonemes of one pass."""
        return self.context - 2


def read_config(folder: str | Path) -> KokoroConfig:
    """Read ``config.json``.

    Raises:
        ConfigError: it is not of a Kokoro checkpoint, or out of bounds; the message names the field.
    """
    path = Path(folder) / "config.json"
    config = Section(read_json(path), "config.json", "Kokoro")
    bert, sound = config.section("plbert"), config.section("istftnet")
    tokens = config.integer("n_token", 1, 100_000)
    dilations = sound["resblock_dilation_sizes"]
    sounds = SoundConfig(
        upsample_rates=sound.integers("upsample_rates", 1, 100),
        upsample_kernels=sound.integers("upsample_kernel_sizes", 1, 200),
        kernels=sound.integers("resblock_kernel_sizes", 1, 63),
        dilations=tuple(tuple(each) for each in dilations),
        channels=sound.integer("upsample_initial_channel", 1, 8192),
        width=sound.integer("decoder_width", 1, 8192, 1024),
        fft=sound.integer("gen_istft_n_fft", 2, 4096),
        hop=sound.integer("gen_istft_hop_size", 1, 4096),
    )
    made = 2 * sounds.hop
    for rate in sounds.upsample_rates:
        made *= rate
    if made != FRAME:
        raise ConfigError(f"{path}: a phoneme's unit of {made} samples; a Kokoro has {FRAME}")
    return KokoroConfig(
        vocabulary=_vocabulary(config, tokens),
        tokens=tokens,
        hidden=config.integer("hidden_dim", 2, 8192),
        style=config.integer("style_dim", 1, 8192),
        layers=config.integer("n_layer", 1, 64),
        kernel=config.integer("text_encoder_kernel_size", 1, 63),
        longest=config.integer("max_dur", 1, 1000),
        bert_hidden=bert.integer("hidden_size", 1, 8192),
        bert_heads=bert.integer("num_attention_heads", 1, 128),
        bert_intermediate=bert.integer("intermediate_size", 1, 65_536),
        bert_layers=bert.integer("num_hidden_layers", 1, 128),
        context=bert.integer("max_position_embeddings", 8, 65_536),
        sound=sounds,
    )


def _vocabulary(config: Section, tokens: int) -> dict[str, int]:
    given = config["vocab"]
    if not isinstance(given, dict) or not all(
        len(phoneme) == 1 and isinstance(number, int) and 0 < number < tokens for phoneme, number in given.items()
    ):
        raise config.fail("vocab", f"an object from single phonemes to numbers from 1 to {tokens - 1}")
    return given
