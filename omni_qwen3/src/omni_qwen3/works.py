"""Compute the work of each stage of Qwen3-Omni from its config, for plans of hardware that is not there. Imports no torch."""

from __future__ import annotations

from attrs import evolve

from omni_core.api import PipelineConfig
from omni_qwen3.config import DecoderConfig, QwenConfig, read_config
from omni_qwen3.encoder_config import AudioConfig, VisionConfig, VocoderConfig, halved_thrice
from omni_torch.api import Ask, DecoderWork, PassWork, PipelineWorks, StageWork, Work, config_folder, sound_decoder

FRAME_SECONDS = 0.08
"""The sound of a codec frame: 1920 samples at 24 kHz."""

MEL_RATE = 100
"""Mel frames of a second of sound."""

_LOOK_BACK = 11
"""Codec frames that the vocoder's convolutions compute again before each chunk, at the released dimensions."""

_SPOKEN_START = 9
"""Positions that begin the talker's answer, after those of the user's turns."""


def works(config: PipelineConfig) -> PipelineWorks:
    """Return the work of the stages of a config."""
    names = {stage.name for stage in config.stages}
    return works_of(read_config(config_folder(config.model_path)), names, has_expert_parallel(config))


def has_expert_parallel(config: PipelineConfig) -> bool:
    """Return whether the ranks of the thinker hold experts whole."""
    given = (stage.factory_args.get("expert_parallel") for stage in config.stages if stage.name == "thinker")
    return any(each is True for each in given)


def works_of(model: QwenConfig, names: set[str], expert_parallel: bool = False) -> PipelineWorks:
    """Return the work of a model's stages of these names."""
    stages: dict[str, Work] = {
        "image_encoder": _vision(model.vision),
        "audio_encoder": _audio(model.audio),
        "thinker": evolve(decoder_work(model.thinker), ranks=ranks_of(model.thinker, expert_parallel)),
    }
    if model.vocoder is not None:
        stages["talker_ar"] = decoder_work(
            model.talker.text, inner=decoder_work(model.talker.predictor), inner_steps=model.talker.code_groups - 1
        )
        stages["code2wav"] = _vocoder(model.vocoder)
    return PipelineWorks(
        stages={name: work for name, work in stages.items() if name in names},
        visits=lambda ask: {name: each for name, each in _visits(model, ask).items() if name in names},
        kinds={"preprocessing": "function", "mm_aggregate": "function", "decode": "stream"},
        vocoders={"code2wav": FRAME_SECONDS},
        admit_after={"talker_ar": 2},
    )


def _visits(model: QwenConfig, ask: Ask) -> dict[str, StageWork]:
    """Return what each stage does for a request: a placeholder stands for 2 x 2 patches, or for eight mel frames."""
    patches = ask.pixels // model.vision.patch**2
    pictures, sound = patches // model.vision.merge**2, halved_thrice(round(ask.audio * MEL_RATE))
    prompt, width = ask.text + pictures + sound, model.thinker.hidden_size
    found = {"preprocessing": StageWork()}
    if patches:
        levels = 1 + len(model.vision.deepstack)
        found["image_encoder"] = StageWork(patches, hidden=width * levels // model.vision.merge**2)
    if sound:
        found["audio_encoder"] = StageWork(round(ask.audio * MEL_RATE) // 2, hidden=width // 4)
    found |= {
        "mm_aggregate": StageWork(),
        "thinker": StageWork(prompt, ask.reply, hidden=2 * width),
        "decode": StageWork(),
    }
    if ask.speech:
        frames = max(1, round(ask.speech / FRAME_SECONDS))
        found["talker_ar"] = StageWork(prompt + _SPOKEN_START, frames + 1)
        found["code2wav"] = StageWork(frames, frames)
    return found


def decoder_work(config: DecoderConfig, inner: DecoderWork | None = None, inner_steps: int = 0) -> DecoderWork:
    """Return the work of a decoder of Qwen's architecture. ``inner``: see :class:`~omni_torch.placement.work.DecoderWork`."""
    queries, keys, hidden = config.heads * config.head_dim, config.kv_heads * config.head_dim, config.hidden_size
    sparse = sum(config.is_sparse(layer) for layer in range(config.layers))
    attention = hidden * (2 * queries + 2 * keys)
    dense = 3 * hidden * config.intermediate_size
    always = 3 * hidden * config.shared_expert_size + hidden * config.experts
    return DecoderWork(
        layers=config.layers,
        hidden_size=hidden,
        shared=config.layers * attention + (config.layers - sparse) * dense + sparse * always,
        head=hidden * config.vocab_size,
        cached=2 * config.layers * keys,
        heads=queries,
        expert=sparse * 3 * hidden * config.moe_intermediate_size,
        experts=config.experts,
        chosen=config.experts_per_token,
        inner=inner,
        inner_steps=inner_steps,
    )


def ranks_of(decoder: DecoderConfig, expert_parallel: bool = False) -> tuple[int, ...]:
    """Return the numbers of ranks that can share a thinker."""
    return tuple(ranks for ranks in (1, 2, 4, 8, 16) if _can_share(decoder, ranks, expert_parallel))


def _can_share(decoder: DecoderConfig, ranks: int, expert_parallel: bool) -> bool:
    """Return True if so many ranks can share the decoder evenly; see :func:`omni_qwen3.sharding.local_config`."""
    mixture = decoder.experts if expert_parallel else decoder.moe_intermediate_size
    shared = (decoder.heads, decoder.intermediate_size, mixture, decoder.shared_expert_size)
    heads = min(ranks, decoder.kv_heads)
    even = not any(each % ranks for each in shared) and not decoder.kv_heads % heads and not ranks % heads
    return ranks == 1 or (even and not decoder.attention_bias)


def _vision(config: VisionConfig) -> PassWork:
    hidden = config.hidden_size
    layer = 4 * hidden**2 + 2 * hidden * config.intermediate_size
    merged = hidden * config.merge**2
    merger = (merged**2 + merged * config.output_size) * (1 + len(config.deepstack))
    weights = config.layers * layer + merger + hidden * config.patch_values
    flops = 2 * (config.layers * layer + merger / config.merge**2 + hidden * config.patch_values)
    return PassWork(weights, flops, config.layers * hidden * 16, config.layers * 12)


def _audio(config: AudioConfig) -> PassWork:
    """Positions are mel frames after the first convolution: two of them; the layers see one for eight mel frames."""
    hidden = config.hidden_size
    layer = 4 * hidden**2 + 2 * hidden * config.intermediate_size
    inner = 9 * config.channels**2
    flops = 2 * (config.layers * layer / 4 + config.mel_bins / 2 * (9 * config.channels + inner / 4 + inner / 16))
    return PassWork(config.layers * layer + 2 * inner, flops, config.layers * hidden * 4, config.layers * 12)


def _vocoder(config: VocoderConfig) -> PassWork:
    hidden, rows = config.hidden_size, 1
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    weights = config.layers * (hidden * (2 * queries + 2 * keys) + 3 * hidden * config.intermediate_size)
    multiplied, values = float(weights), float(config.layers * hidden * 16)
    for factor in config.upsampling:
        rows *= factor
        weights += 10 * hidden**2
        multiplied += 10 * hidden**2 * rows
        values += 8 * hidden * rows
    weights += 7 * hidden * config.decoder_size
    multiplied += 7 * hidden * config.decoder_size * rows
    kernels = config.layers * 12 + 10 * len(config.upsampling)
    before = PassWork(weights, 2 * multiplied, values, kernels, again=_LOOK_BACK)
    return before.plus(sound_decoder(config.decoder_size, config.rates, rows))
