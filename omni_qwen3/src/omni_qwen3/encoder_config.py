"""Reads and validates the sections of a checkpoint's config for the encoders and the vocoder.

Absent fields have the defaults of transformers' classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from attrs import frozen

from omni_torch.api import Section

LAYERS, HEADS, WIDTH, INNER, VOCABULARY, POSITIONS = 1024, 1024, 2**17, 2**20, 2**24, 2**24
"""Upper bounds on the dimensions of a config: far above any known model, and low enough that startup stays fast."""

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")
"""Values of ``hidden_act`` that the networks compute (:func:`omni_qwen3.layers.activation`)."""


@frozen
class VisionConfig:
    """The vision encoder.

    Attributes:
        patch: pixels of a patch's side.
        temporal: frames in a patch.
        merge: patches of the side of one output row's window.
        side: rows and columns of the square table of learned positions.
        deepstack: the layers whose outputs go to the thinker as well, in the order of the weights that project them.
    """

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    output_size: int
    patch: int
    temporal: int
    merge: int
    side: int
    deepstack: tuple[int, ...]
    rope_theta: float
    activation: str

    @property
    def patch_values(self) -> int:
        """Values of a patch: three channels."""
        return 3 * self.temporal * self.patch**2


@frozen
class AudioConfig:
    """The audio encoder.

    Attributes:
        window: mel frames of the chunks that the convolutions see.
        attention_windows: chunks that attend to each other.
        conv_batch: chunks that go through the convolutions at once.
    """

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    output_size: int
    mel_bins: int
    channels: int
    window: int
    attention_windows: int
    conv_batch: int
    activation: str

    def tokens(self, frames: int) -> int:
        """Return the placeholders of a clip of so many mel frames."""
        return sum(map(halved_thrice, self.chunks(frames)))

    def chunks(self, frames: int) -> list[int]:
        """Return the mel frames of a clip's chunks."""
        return pieces(frames, self.window)


@frozen
class VocoderConfig:
    """The vocoder ``code2wav``.

    Attributes:
        upsampling: factors of the layers before the decoder.
        rates: factors of the decoder's blocks, each of which halves the width.
        window: frames that a frame attends to, itself included.
    """

    codebooks: int
    codebook_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    window: int
    norm_eps: float
    rope_theta: float
    activation: str
    attention_bias: bool
    upsampling: tuple[int, ...]
    rates: tuple[int, ...]
    decoder_size: int


def halved_thrice(size: int) -> int:
    """Return what three convolutions of stride 2 make of ``size``: each halves it, rounded up."""
    return -(-size // 8)


def pieces(total: int, size: int) -> list[int]:
    """Divide ``total`` into pieces of ``size`` and a smaller last one."""
    rest = total % size
    return [size] * (total // size) + [rest] * bool(rest)


def vision_config(section: Section, output_size: int, decoder_layers: int) -> VisionConfig:
    """Read ``vision_config``.

    Args:
        output_size: the thinker's width.
        decoder_layers: of the thinker, to which deepstack features are added.
    """
    layers, hidden = section.integer("depth", 1, LAYERS, 27), section.integer("hidden_size", 1, WIDTH, 1152)
    heads = section.integer("num_heads", 1, HEADS, 16)
    section.multiple("hidden_size", "num_heads")
    if hidden % (4 * heads):  # a quarter of a head's width for the sine and the cosine of either axis
        raise section.fail("hidden_size", f"a multiple of {4 * heads}, four times num_heads")
    deepstack = section.integers("deepstack_visual_indexes", 0, layers - 1, (8, 16, 24))
    if len(deepstack) > decoder_layers:
        raise section.fail("deepstack_visual_indexes", f"at most {decoder_layers} layers, as many as the thinker has")
    if len(set(deepstack)) < len(deepstack):
        raise section.fail("deepstack_visual_indexes", "a list without repetitions")
    section.integer("in_channels", 3, 3, 3)
    return VisionConfig(
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        intermediate_size=section.integer("intermediate_size", 1, INNER, 4304),
        output_size=_output_size(section, "out_hidden_size", output_size),
        patch=section.integer("patch_size", 1, 256, 16),
        temporal=section.integer("temporal_patch_size", 1, 16, 2),
        merge=section.integer("spatial_merge_size", 1, 16, 2),
        side=isqrt(section.integer("num_position_embeddings", 1, 2**20, 2304)),
        deepstack=deepstack,
        rope_theta=rope_theta(section, ("default", "axial"), 10_000.0),
        activation=section.choice("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh"),
    )


def audio_config(section: Section, output_size: int) -> AudioConfig:
    """Read ``audio_config``. ``output_size``: the thinker's width."""
    hidden = section.integer("d_model", 4, WIDTH, 1280)
    heads = section.integer("encoder_attention_heads", 1, HEADS, 20)
    section.multiple("d_model", "encoder_attention_heads")
    if hidden % 2:
        raise section.fail("d_model", "an even number")
    # The model counts 13 positions for each full chunk, which is right for these sizes only.
    half = section.integer("n_window", 49, 52, 50)
    return AudioConfig(
        hidden_size=hidden,
        layers=section.integer("encoder_layers", 1, LAYERS, 32),
        heads=heads,
        intermediate_size=section.integer("encoder_ffn_dim", 1, INNER, 5120),
        output_size=_output_size(section, "output_dim", output_size),
        mel_bins=section.integer("num_mel_bins", 1, 4096, 128),
        channels=section.integer("downsample_hidden_size", 1, WIDTH, 480),
        window=2 * half,
        attention_windows=section.integer("n_window_infer", 2 * half, 2**20, 800) // (2 * half),
        conv_batch=section.integer("conv_chunksize", 1, 2**20, 500),
        activation=section.choice("activation_function", ACTIVATIONS, "gelu"),
    )


def vocoder_config(section: Section, code_groups: int) -> VocoderConfig:
    """Read ``code2wav_config``. ``code_groups``: codes per frame that the talker makes."""
    hidden = section.integer("hidden_size", 1, WIDTH, 1024)
    heads = section.integer("num_attention_heads", 1, HEADS, 16)
    section.multiple("hidden_size", "num_attention_heads")
    kv_heads = section.integer("num_key_value_heads", 1, heads, heads)
    section.multiple("num_attention_heads", "num_key_value_heads")
    head_dim = section.integer("head_dim", 2, 1024, max(2, hidden // heads))
    if head_dim % 2:
        raise section.fail("head_dim", "an even number")
    rates = section.integers("upsample_rates", 1, 1024, (8, 5, 4, 3))
    codebooks = section.integer("num_quantizers", 1, 256, 16)
    if codebooks != code_groups:
        raise section.fail("num_quantizers", f"the talker's num_code_groups, {code_groups}")
    return VocoderConfig(
        codebooks=codebooks,
        codebook_size=section.integer("codebook_size", 1, 2**20, 2048),
        hidden_size=hidden,
        layers=section.integer("num_hidden_layers", 1, LAYERS, 8),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=section.integer("intermediate_size", 1, INNER, 3072),
        window=section.integer("sliding_window", 1, POSITIONS, 72),
        norm_eps=section.number("rms_norm_eps", 1e-12, 1.0, 1e-5),
        rope_theta=rope_theta(section, ("default",), 10_000.0),
        activation=section.choice("hidden_act", ACTIVATIONS, "silu"),
        attention_bias=section.flag("attention_bias", False),
        upsampling=section.integers("upsampling_ratios", 1, 1024, (2, 2)),
        rates=rates,
        decoder_size=section.integer("decoder_dim", 2 ** len(rates), WIDTH, 1536),
    )


def rope_theta(section: Section, kinds: Sequence[str], default: float) -> float:
    """Read the base of rotary positions, from the new or the old place in the config.

    Args:
        kinds: the implemented types of rotary positions.
    """
    rope = section.section("rope_scaling" if "rope_parameters" not in section else "rope_parameters", optional=True)
    for name in ("rope_type", "type"):
        rope.choice(name, kinds, kinds[0])
    for each in (section, rope):
        each.choice("partial_rotary_factor", (1, 1.0), 1)
    return rope.number("rope_theta", 1.0, 1e15, section.number("rope_theta", 1.0, 1e15, default))


def _output_size(section: Section, name: str, expected: int) -> int:
    size = section.integer(name, 1, WIDTH, 3584)
    if size != expected:
        raise section.fail(name, f"the thinker's hidden_size, {expected}")
    return size
