"""The declared interface of the Qwen3-TTS pipeline: speech parameters, voices, languages and limits. Imports no torch."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from omni_core.api import SPEECH, VOCODER, ConfigError, Interface, Parameter, ParameterGroup
from omni_torch.api import sampling_parameters

ARCHITECTURES = ("Qwen3TTSForConditionalGeneration", "qwen3_tts")

OPTIONS = {
    "processes": "'separate' (a process per stage, the default) or 'one' (all stages in one process)",
    "dtype": "weights of every stage: auto (default: the checkpoint's; on a CPU without bfloat16 float32), float32, bfloat16, float16",
    "gpu": "auto (default: the GPUs of this machine, if there are any), the number of one for every stage, or none",
    "initial_chunk": "frames (80 ms each) in the first piece of sound",
    "chunk": "frames in a later piece of sound, at most: each has as many as all before it (`growth` of the vocoder)",
    "max_characters": "maximum length of a text, in characters",
    "max_reference_seconds": "maximum length of a recording of a voice, in seconds",
    "voices_kept": "size of the cache of encoded voices",
    "reference": "with a Base checkpoint, a recording: the voice of requests that bring none",
    "reference_text": "the words that are said in it, if they are known",
    "max_context": "maximum number of positions, text and speech together",
    "aligner": "folder or hub id of a CTC recogniser that finds when the words are heard (needs omni-transformers)",
}
"""The pipeline's options, each with the line that ``omni pipelines`` prints."""

AUTO = "auto"
"""The language that is heard from the text."""

FRAME_SECONDS = 0.08
"""Seconds of sound in one frame of codes: 1920 samples at 24 kHz."""

MAX_CHARACTERS = 4000
"""Of one text: about five minutes, half of what the released checkpoints speak in one piece."""

DEFAULTS = {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05, "max_new_tokens": 2048}
"""The sampling of the first codes of frames, where ``generation_config.json`` does not say it."""

RESIDUAL_DEFAULTS = {"residual_temperature": 0.9, "residual_top_k": 50, "residual_top_p": 1.0}
"""That of the other codes."""

OWN = [
    Parameter("language", "string", "of the speech; auto: heard from the text", AUTO),
    Parameter("instructions", "string", "how to speak, or a description of the voice"),
    Parameter(
        "dual_track",
        "boolean",
        "read a token of text with each frame, not all text before the first; by default for texts that stream and for recorded voices",
    ),
]
"""Parameters beside those of sampling."""

RESIDUAL = [
    Parameter(
        "residual_temperature",
        "number",
        "temperature of a frame's further codes; 0 is greedy",
        0.9,
        0,
        100,
    ),
    Parameter("residual_top_k", "integer", "of them: keep the k most likely; 0 is off", 50, 0, 2**31 - 1),
    Parameter("residual_top_p", "number", "of them: keep this probability mass; 1 is off", 1.0, 1e-6, 1),
]

INTERFACE = Interface(
    roles={SPEECH: "talker", VOCODER: "code2wav"},
    inputs=["text", "reference"],
    input_streams=["text"],
    outputs=["audio"],
    groups=[
        ParameterGroup("talker", SPEECH, "how the speech is chosen", [*OWN, *sampling_parameters(DEFAULTS), *RESIDUAL])
    ],
    params=[Parameter("return_codes", "boolean", "return the codes beside the sound", False)],
    metadata=[
        Parameter("speaker", "string", "the voice, by name"),
        Parameter("priority", "integer", "requests of a higher priority are served first", 0, -1000, 1000),
        Parameter(
            "first_within", "number", "seconds in which the first sound is wanted, by stages with a policy", None, 0
        ),
    ],
    limits={"max_characters": MAX_CHARACTERS, "max_reference_seconds": 60.0, "min_reference_seconds": 0.1},
    voices_from="talker_config.spk_id in the checkpoint's config.json, or the recording in the request's references",
    sample_rate=24_000,
    warmup=[
        {
            "inputs": {"messages": [{"role": "user", "content": "Hello."}]},
            "params": {"talker": {"max_new_tokens": 16}},
        }
    ],
)


def defaults_of(generation: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the defaults of a checkpoint's sampling: of the first codes, and of the others, by our names.

    Args:
        generation: its ``generation_config.json``.
    """
    first = {name: generation.get(name, value) for name, value in DEFAULTS.items()}
    rest = {
        name: generation.get(name.replace("residual", "subtalker"), value) for name, value in RESIDUAL_DEFAULTS.items()
    }
    if generation.get("do_sample") is False:
        first["temperature"] = 0.0
    if generation.get("subtalker_dosample") is False:
        rest["residual_temperature"] = 0.0
    return first, rest


def interface_of(folder: str, limits: dict[str, Any]) -> Interface:
    """Return the declaration with what a checkpoint adds: voices, languages, what its kind takes, and its sampling.

    Args:
        limits: those that the options of the pipeline set.
    """
    # Not above: the plugin's module imports this one, and must take no time.
    from omni_qwen3_tts.config import BASE, CUSTOM_VOICE, generation_defaults, read_config

    limited = evolve(INTERFACE, limits={**INTERFACE.limits, **limits})
    try:
        config = read_config(folder)
    except ConfigError:  # the stages report errors in this file
        return limited
    first, rest = defaults_of(generation_defaults(folder))
    own = [
        evolve(each, choices=[AUTO, *config.spoken]) if each.name == "language" else each
        for each in OWN
        if each.name != "instructions" or config.reads_style
    ]
    residual = [evolve(each, default=rest[each.name]) for each in RESIDUAL]
    group = evolve(INTERFACE.groups[0], parameters=[*own, *sampling_parameters(first), *residual])
    voices = list(config.speakers) if config.kind == CUSTOM_VOICE else []
    speaker = Parameter("speaker", "string", "the voice, by name", next(iter(voices), None), choices=voices)
    return evolve(
        limited,
        groups=[group],
        inputs=["text", "reference"] if config.kind == BASE else ["text"],
        metadata=[*([speaker] if voices else []), *INTERFACE.metadata[1:]],
        voices=voices,
        voices_from="the recording in the request's references" if config.kind == BASE else None,
        warmup=[] if config.kind == BASE else INTERFACE.warmup,
    )
