"""The declared interface of the Qwen2.5-Omni pipelines: request parameters, modalities, voices and limits. Imports no torch."""

from __future__ import annotations

from typing import Any

from attrs import asdict, evolve

from omni_core.api import SEED, SPEECH, TEXT, VOCODER, ConfigError, Interface, Parameter, ParameterGroup
from omni_media.api import Limits
from omni_qwen3.interface import OPTIONS as QWEN3_OPTIONS
from omni_qwen3.interface import PRIORITY, THINKER, VIDEO_SOUND
from omni_torch.api import as_installed, sampling_parameters

ARCHITECTURES = ("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration", "qwen2_5_omni")

OPTIONS = {name: text for name, text in QWEN3_OPTIONS.items() if "chunk" not in name and name != "aligner"} | {
    "dtype": "weights of the encoders, the thinker and the talker: auto (default: the checkpoint's; on a CPU without bfloat16 float32), "
    "float32, bfloat16, float16; token2wav computes in float32",
    "max_audio_seconds": "longest audio clip; the processor's is 300",
}
"""Options of both pipelines, each with the line that ``omni pipelines`` prints."""

IMPORTS = {"stages.code2wav": "code2mel+mel2wav"}
"""The places here of keys in other systems' deploy files; see :data:`omni_core.services.IMPORTS`."""

TEXT_IMPORTS = {"pipeline": "qwen2_5_omni_thinker_only"}

TALKER_DEFAULTS = {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "repetition_penalty": 1.05, "max_new_tokens": 4096}
"""The reference's generation defaults for the talker."""

TOKEN2WAV_DEFAULTS = {"num_steps": 10, "guidance_scale": 0.5, "sway_coefficient": -1.0}
"""The reference's defaults for token2wav."""

DEFAULT_SPEAKER = "Chelsie"

CODE_SECONDS = 0.02
"""Seconds of sound of one code: two mel frames of 240 samples at 24 kHz. The talker reads a token of text for each, until the text ends."""

LIMITS = Limits(max_audio_seconds=300.0)

SPEECH_PROMPT = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and visual inputs, "
    "as well as generating text and speech."
)
"""The system message with which the released model speaks."""

_TALKER = ParameterGroup("talker", SPEECH, "how the speech is chosen", sampling_parameters(TALKER_DEFAULTS))

_TOKEN2WAV = ParameterGroup(
    "token2wav",
    "mel",
    "how the sound is made",
    [
        Parameter("num_steps", "integer", "points in time of the denoising, each but the last a step", 10, 2, 1000),
        Parameter("guidance_scale", "number", "how closely the sound follows codes and voice; 0 is off", 0.5, 0, 100),
        Parameter("sway_coefficient", "number", "below 0: more of the steps at the beginning", -1.0, -1, 1),
        Parameter(SEED, "integer", "seed of the noise; random by default", minimum=0, maximum=2**63 - 1),
    ],
)

_METADATA = [VIDEO_SOUND, PRIORITY]


def _hello(*modalities: str) -> dict[str, Any]:
    """Return a short request that runs every stage."""
    params: dict[str, Any] = {"thinker": {"max_new_tokens": 8}}
    if "audio" in modalities:
        params |= {"talker": {"max_new_tokens": 16}, "token2wav": {"num_steps": 2}}
    return {
        "inputs": {"messages": [{"role": "user", "content": "Hello!"}]},
        "modalities": list(modalities),
        "params": params,
    }


TEXT_INTERFACE = Interface(
    roles={TEXT: "thinker"},
    inputs=["text", "image", "audio", "video"],
    outputs=["text"],
    groups=[THINKER],
    metadata=_METADATA,
    limits=asdict(LIMITS),
    completes=True,
    prompts={
        "transcription": "Transcribe the audio into text.",
        "translation": "Translate the speech into English. Write the translation and nothing else.",
    },
    warmup=[_hello("text")],
)

SPEECH_INTERFACE = evolve(
    TEXT_INTERFACE,
    roles={TEXT: "thinker", SPEECH: "talker", "mel": "code2mel", VOCODER: "mel2wav"},
    outputs=["text", "audio", SPEECH],
    groups=[THINKER, _TALKER, _TOKEN2WAV],
    params=[Parameter("return_codes", "boolean", "return the codes beside the sound", False)],
    metadata=[Parameter("speaker", "string", "the voice, by name", DEFAULT_SPEAKER), *_METADATA],
    voices_from="spk_dict.pt in the checkpoint",
    sample_rate=24_000,
    warmup=[_hello("text", "audio")],
)


def interface_of(folder: str, declared: Interface, limits: dict[str, Any]) -> Interface:
    """Return a declaration with what a checkpoint adds: the voices, the size of the context, and the longest speech.

    Args:
        limits: those that the options of the pipeline set.
    """
    # Not above: the plugin's module imports this one, and must take no time.
    from omni_qwen25.config import read_config
    from omni_qwen25.voices import voice_names

    try:
        config = read_config(folder)
    except ConfigError:  # the stages report errors in this file
        return declared
    declared = as_installed(declared)
    declared = evolve(declared, limits={**declared.limits, "max_context": config.thinker.max_positions, **limits})
    if config.talker is None:
        return declared
    groups = [each if each.name != "talker" else _bounded(each, config.talker.most_codes) for each in declared.groups]
    declared = evolve(declared, groups=groups)
    voices = voice_names(folder) if declared.sample_rate else None
    if voices is None:
        return declared
    known = [each if each.name != "speaker" else evolve(each, choices=voices) for each in declared.metadata]
    return evolve(declared, metadata=known, voices=voices, voices_from=None)


def _bounded(group: ParameterGroup, most: int) -> ParameterGroup:
    """Return the talker's parameters with the number of codes that token2wav can hold as a bound."""
    bounded = [
        each if each.name != "max_new_tokens" else evolve(each, maximum=most, default=min(each.default, most))
        for each in group.parameters
    ]
    return evolve(group, parameters=bounded)
