"""The declared interface of the Qwen3-Omni pipelines: request parameters, modalities, voices and limits. Imports no
torch.
"""

from __future__ import annotations

from typing import Any

from attrs import asdict, evolve

from omni_core.api import SPEECH, TEXT, VOCODER, ConfigError, Interface, Parameter, ParameterGroup
from omni_media.api import Limits
from omni_torch.api import as_installed, sampling_parameters, text_parameters

ARCHITECTURES = ("Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe")

OPTIONS = {
    "processes": "'separate' (a process per stage, the default) or 'one' (all stages in one process)",
    "dtype": "weights of every stage: auto (default: the checkpoint's; on a CPU without bfloat16 float32), float32, bfloat16, float16",
    "gpu": "auto (default: the GPUs of this machine, if there are any), the number of one for every network stage, or none",
    "initial_chunk": "codec frames (80 ms each) in the first piece of sound",
    "chunk": "codec frames in a later piece of sound, at most: each has as many as all before it (`growth` of the vocoder)",
    "aligner": "folder or hub id of a CTC recogniser that finds when the words of the speech are heard (needs omni-transformers)",
    "max_image_pixels": "largest image, in pixels",
    "max_audio_seconds": "longest audio clip",
    "max_video_seconds": "longest video",
    "max_request_pixels": "most pixels of all images of a request",
    "max_request_samples": "most samples of all sound of a request, of every channel",
    "max_request_frame_pixels": "most pixels of all frames of a request's videos, as they are decoded",
    "max_context": "maximum number of tokens in a prompt",
}
"""Options of both pipelines, each with the line that ``omni pipelines`` prints."""

IMPORTS = {
    "pipeline": "Qwen3OmniSpeechPipelineConfig Qwen3OmniSpeechColocatedPipelineConfig",
    "codec_chunk_frames": "code2wav.factory_args.chunk",
    "initial_codec_chunk_frames": "code2wav.factory_args.initial_chunk",
    "codec_left_context_frames: *": "the vocoder keeps its state, so everything before a piece is its context",
    "codec_streaming: true": "codes go from the talker to the vocoder one by one",
}
"""The places here of keys in other systems' deploy files; see :data:`omni_core.services.IMPORTS`."""

TEXT_IMPORTS = {"pipeline": "qwen3_omni_moe_thinker_only Qwen3OmniPipelineConfig"}

THINKER_DEFAULTS = {"temperature": 0.0, "max_new_tokens": 1024}
"""The reference's generation defaults for the thinkers of both Qwen families: greedy (models' ``generate``)."""

TALKER_DEFAULTS = {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05, "max_new_tokens": 4096}
"""The reference's generation defaults for the talker."""

DEFAULT_SPEAKER = "ethan"

FRAME_SECONDS = 0.08
"""Seconds of sound in one frame of codes: 1920 samples at 24 kHz. The talker reads a token of text for each, until the text ends."""

THINKER = ParameterGroup(
    "thinker",
    TEXT,
    "how the text is chosen",
    [
        *sampling_parameters(THINKER_DEFAULTS),
        Parameter("stop", "strings", "end the text before this string; may be repeated", maximum=16),
        Parameter("ignore_eos", "boolean", "go on after the end of the turn, for measurements", False),
        *text_parameters(),
    ],
)

_TALKER = ParameterGroup("talker", SPEECH, "how the speech is chosen", sampling_parameters(TALKER_DEFAULTS))

VIDEO_SOUND = Parameter("use_audio_in_video", "boolean", "use the sound tracks of videos too", False)
_FIRST_WITHIN = Parameter(
    "first_within", "number", "seconds in which the first text or sound is wanted, by stages with a policy", None, 0
)
_DEADLINE = Parameter(
    "deadline", "number", "seconds in which a whole reply of text is wanted, by stages with a policy", None, 0
)
PRIORITY = Parameter("priority", "integer", "requests of a higher priority are served first", 0, -1000, 1000)


def _hello(*modalities: str) -> dict[str, Any]:
    """Return a short request that runs every stage."""
    messages = [{"role": "user", "content": "Hello!"}]
    return {
        "inputs": {"messages": messages},
        "modalities": list(modalities),
        "params": {"thinker": {"max_new_tokens": 8}},
    }


TEXT_INTERFACE = Interface(
    roles={TEXT: "thinker"},
    inputs=["text", "image", "audio", "video"],
    outputs=["text"],
    groups=[THINKER],
    metadata=[VIDEO_SOUND, PRIORITY, _FIRST_WITHIN, _DEADLINE],
    limits=asdict(Limits()),
    tool_format="tagged-json",
    tool_choice=True,
    completes=True,
    prompts={
        "transcription": "Transcribe the audio into text.",
        "translation": "Translate the speech into English. Write the translation and nothing else.",
    },
    warmup=[_hello("text")],
)

SPEECH_INTERFACE = evolve(
    TEXT_INTERFACE,
    roles={TEXT: "thinker", SPEECH: "talker_ar", VOCODER: "code2wav"},
    outputs=["text", "audio", SPEECH],
    groups=[THINKER, _TALKER],
    params=[Parameter("return_codes", "boolean", "return the codes beside the sound", False)],
    metadata=[
        Parameter("speaker", "string", "the voice, by name", DEFAULT_SPEAKER),
        VIDEO_SOUND,
        PRIORITY,
        _FIRST_WITHIN,
        _DEADLINE,
    ],
    voices_from="talker_config.speaker_id in the checkpoint's config.json",
    sample_rate=24_000,
    warmup=[_hello("text", "audio")],
)


def without_tools(declared: Interface) -> Interface:
    """Return a declaration for a checkpoint that calls no tools."""
    return evolve(declared, tool_format=None, tool_choice=False)


def interface_of(folder: str, declared: Interface, limits: dict[str, Any]) -> Interface:
    """Return a declaration with what a checkpoint adds: the voices, the size of the context, and if its chat template has tools.

    Args:
        limits: those that the options of the pipeline set.
    """
    # Not above: the plugin's module imports this one, and must take no time.
    from pathlib import Path

    from omni_torch.api import read_json, read_templates

    declared = as_installed(declared)
    try:
        raw = read_json(Path(folder) / "config.json")
        context = raw["thinker_config"]["text_config"]["max_position_embeddings"]
        voices = sorted(raw["talker_config"]["speaker_id"])
        templates = read_templates(folder)
    except (ConfigError, KeyError, TypeError):  # the stages report errors in these files
        return declared
    if templates and not any("tools" in each for each in templates.values()):
        declared = without_tools(declared)
    known = [each if each.name != "speaker" else evolve(each, choices=voices) for each in declared.metadata]
    return evolve(
        declared,
        metadata=known,
        voices=voices if declared.sample_rate else [],
        voices_from=None,
        limits={**declared.limits, "max_context": context, **limits},
    )
